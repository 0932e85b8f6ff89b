"""Quantize a checkpoint several times larger than the memory allowed for it, and show that the limit is real.

A synthetic sharded checkpoint (Llama architecture, random float32 weights) is written to a temporary folder. Each job then
runs in a process of its own: it imports what it needs, quantizes a tiny model so that everything is loaded, measures its
address space, and from there on may map only so much more (``RLIMIT_AS``, what ``ulimit -v`` sets). Loading the whole
model under the same limit must fail.

A job that calibrates runs a second time, with few tokens a sample: what its memory grows by is taken for what activations
take, on a line through the two. What is left when the start, the result and these are taken away is given in blocks.

    python benchmarks/layer_wise_memory.py --blocks 48 --hidden 768 --allowance 370
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peak_memory import peak_mib
from rich.console import Console
from rich.table import Table

MIB = 2**20
JOBS = {
    "rtn": "RTN, block by block",
    "gptq": "GPTQ, block by block, data in bfloat16",
    "gptq-published": "GPTQ as published, data in bfloat16",
    "whole": "load the whole model",
    "file": "RTN, file to file",
}
CALIBRATED = ("gptq", "gptq-published")

# What is limited is address space, where memory given back to the system may still count. So that it does not: one heap
# for all threads, since each further one reserves 64 MiB, and no large arrays in it, since holes stay mapped.
ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(MIB)}


def write_checkpoint(folder: Path, hidden: int, blocks: int, shard_bytes: int) -> int:
    """A sharded checkpoint with random weights, written tensor by tensor; returns the bytes of one block."""
    from neural_compressor.formats import ShardWriter
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=hidden,
        intermediate_size=math.ceil(hidden * 8 / 3 / 64) * 64,
        num_hidden_layers=blocks,
        num_attention_heads=hidden // 64,
        dtype="float32",
        architectures=["LlamaForCausalLM"],
    )
    folder.mkdir()
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    writer = ShardWriter(folder, shard_bytes)
    for name, parameter in model.named_parameters():
        values = torch.empty(parameter.shape)
        writer.add(name, values.fill_(1) if values.dim() == 1 else values.normal_(0, 0.02, generator=generator))
    writer.close()
    return sum(parameter.numel() * 4 for parameter in model.model.layers[0].parameters())


def quantized(folder: str, algorithm: str, samples: int, tokens: int) -> int:
    """Quantize the checkpoint of ``folder`` layer by layer; the bytes of the model that comes out."""
    from neural_compressor.torch import load_empty_model
    from neural_compressor.torch.quantization import GPTQConfig, RTNConfig, quantize

    fields: dict[str, Any] = {"bits": 4, "group_size": 64, "use_layer_wise": True, "model_path": folder}
    config = {
        "rtn": lambda: RTNConfig(**fields),
        "gptq": lambda: GPTQConfig(**fields, amp=True),
        "gptq-published": lambda: GPTQConfig(**fields, amp=True, correct_upstream=False, scale_search="none"),
    }[algorithm]()
    generator = torch.Generator().manual_seed(0)

    def calibrate(model: Any) -> None:
        for _ in range(samples):
            model(torch.randint(0, 1024, (1, tokens), generator=generator))

    model = quantize(load_empty_model(folder), config, run_fn=calibrate)
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


def rewritten(folder: str) -> int:
    """Quantize the checkpoint of ``folder`` file to file; nothing of the result stays in memory."""
    from neural_compressor.algorithms import rtn
    from neural_compressor.dtypes import dtype
    from neural_compressor.formats import FORMATS, LayerCompression, LinearWeight, quantize_checkpoint
    from neural_compressor.schemes import PerGroup, TensorScheme

    scheme = TensorScheme(dtype("int4"), True, PerGroup(64))
    layers = LayerCompression(
        FORMATS["pack-quantized"],
        lambda name, weight: LinearWeight.from_quantized(rtn(weight, scheme)) if "_proj" in name else None,
    )
    with tempfile.TemporaryDirectory(dir=Path(folder).parent) as target:
        quantize_checkpoint(folder, Path(target) / "new", layers, config=layers.config, files=layers.files)
    return 0


def whole(folder: str) -> int:
    """Load the checkpoint as usual."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return sum(tensor.nbytes for tensor in model.parameters())


def child(job: str, folder: str, tiny: str, allowance: int, samples: int, tokens: int) -> dict[str, Any]:
    """Run one job under the limit; what it took."""
    runs: dict[str, Callable[[str], int]] = {
        "whole": whole,
        "file": rewritten,
    }
    run = runs.get(job, lambda where: quantized(where, job, samples, tokens))
    run(tiny)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the largest resident size is counted anew from here
    base, limit = peak_mib(), mapped_bytes() + allowance
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    start = time.perf_counter()
    try:
        result, outcome = run(folder), "done"
    except (MemoryError, RuntimeError, OSError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        result, outcome = 0, f"out of memory ({type(error).__name__})"
    seconds = time.perf_counter() - start
    return {"base": base, "peak": peak_mib(), "seconds": seconds, "result": result / MIB, "outcome": outcome}


def mapped_bytes() -> int:
    """The address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def measured(job: str, *arguments: object) -> dict[str, Any]:
    """One job in a process of its own; what it took beyond its start and its result is its ``rest``."""
    command = [sys.executable, __file__, "--child", job, *map(str, arguments)]
    env = {**os.environ, **ALLOCATOR, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"outcome": f"ended with status {done.returncode}: {last}"}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**found, "rest": found["peak"] - found["base"] - found["result"]}


def cells(found: dict[str, Any], few: dict[str, Any] | None, ratio: float, block: float) -> list[str]:
    """The numbers of a table's row, with ``few`` what came of ``ratio`` times as many tokens."""
    if "rest" not in found:
        return [""] * 7
    shown = [f"{found['peak']:.0f}", f"{found['peak'] - found['base']:.0f}", f"{found['rest']:.0f}"]
    activations = 0.0
    if few is not None and "rest" in few:
        activations = max(0.0, found["rest"] - few["rest"]) / (1 - ratio)
    shown += [f"{found['rest'] / block:.2f}", f"{activations:.0f}", f"{(found['rest'] - activations) / block:.2f}"]
    return [*shown, f"{found['seconds']:.1f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768, help="width of the model, a multiple of 64")
    parser.add_argument("--blocks", type=int, default=48)
    parser.add_argument("--allowance", type=int, default=370, help="MiB that a job may map beyond what it starts with")
    parser.add_argument("--samples", type=int, default=2, help="calibration samples, for GPTQ")
    parser.add_argument("--tokens", type=int, default=384, help="of one sample: activations grow with these")
    parser.add_argument("--few-tokens", type=int, default=32, help="of a sample of the second run")
    parser.add_argument("--shard", type=int, default=64, help="MiB of one file of the checkpoint")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=["rtn", "gptq", "whole", "file"])
    parser.add_argument("--folder", help="where the checkpoint is written for a while (default: the system's)")
    parser.add_argument("--child", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        job, folder, tiny, *numbers = options.child
        print(json.dumps(child(job, folder, tiny, *map(int, numbers))))
        return
    table = Table(title="under RLIMIT_AS: what a job starts with plus an allowance; sizes in MiB")
    sizes = ("checkpoint", "block", "allowance", "peak", "over start", "and result", "in blocks")
    for column in ("job", *sizes, "activations", "blocks without", "s", "outcome"):
        table.add_column(column, justify="left" if column in ("job", "outcome") else "right")
    console = Console(width=140)
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folder, tiny = Path(place) / "float", Path(place) / "tiny"
        write_checkpoint(tiny, 128, 2, MIB)
        block = write_checkpoint(folder, options.hidden, options.blocks, options.shard * MIB) / MIB
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / MIB
        console.print(
            f"{size:.0f} MiB in {len(list(folder.glob('*.safetensors')))} files, {options.allowance} MiB allowed"
        )
        for job in options.jobs:
            limits = folder, tiny, options.allowance * MIB, options.samples
            found = measured(job, *limits, options.tokens)
            twice = job in CALIBRATED and options.few_tokens < options.tokens
            few = measured(job, *limits, options.few_tokens) if twice else None
            numbers = cells(found, few, options.few_tokens / options.tokens, block)
            table.add_row(JOBS[job], f"{size:.0f}", f"{block:.1f}", f"{options.allowance}", *numbers, found["outcome"])
            console.print(f"{JOBS[job]:22} {found['outcome']}")
    console.print(table)


if __name__ == "__main__":
    main()
