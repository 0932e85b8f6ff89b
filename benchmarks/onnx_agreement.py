"""How far a quantized ONNX model says what the float one says: agreement in the terms of its task, size, speed.

Runs as a process of its own and prints a line of JSON:

    python benchmarks/onnx_agreement.py TASK FLOAT.onnx QUANTIZED.onnx EVALUATION.npz
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx_inputs import LABEL, Sample, StoredSamples

Output = NDArray[np.float32]
Agreement = Callable[[list[Sample], list[Output], list[Output]], float]
"""Inputs, outputs of the float model, outputs of the other: 1 is the same."""

SMALL = 256
"""Constants of fewer numbers are no weights to speak of."""
FEWEST_ROUNDS = 7
MOST_BASIC = 40
"""Samples that two levels of graph optimisation are compared on."""
INK = 0.3
"""A pixel of the detector's map is text above this, as the package that ships it has it."""


def same_class(_: list[Sample], expected: list[Output], found: list[Output]) -> float:
    """How often the most probable class is the same."""
    return statistics.mean(float(a.argmax() == b.argmax()) for a, b in zip(expected, found, strict=True))


def letters(output: Output) -> list[int]:
    """What a recogniser reads: the best symbol of each step, repetitions and blanks (0) left out."""
    return [int(symbol) for symbol, _ in groupby(output[0].argmax(axis=-1)) if symbol]


def same_letters(_: list[Sample], expected: list[Output], found: list[Output]) -> float:
    """The share of letters that are the same, in order."""
    pairs = zip(expected, found, strict=True)
    return statistics.mean(difflib.SequenceMatcher(None, letters(a), letters(b), False).ratio() for a, b in pairs)


def same_ink(_: list[Sample], expected: list[Output], found: list[Output]) -> float:
    """The share that both call text of what either does."""
    pairs = [(a > INK, b > INK) for a, b in zip(expected, found, strict=True)]
    return statistics.mean(float((a & b).sum() / max((a | b).sum(), 1)) for a, b in pairs)


def same_meaning(samples: list[Sample], expected: list[Output], found: list[Output]) -> float:
    """The cosine of mean-pooled embeddings; the samples are single sentences, without padding."""
    pairs = [(a[0].mean(axis=0), b[0].mean(axis=0)) for a, b in zip(expected, found, strict=True)]
    return statistics.mean(float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b))) for a, b in pairs)


def nats(samples: list[Sample], outputs: list[Output]) -> float:
    """The mean surprise at the next token."""
    total, count = 0.0, 0
    for sample, output in zip(samples, outputs, strict=True):
        logits = output[0, :-1].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        chosen = np.take_along_axis(logits, sample["input_ids"][0, 1:, None], axis=-1)[:, 0]
        total += float((np.log(np.exp(logits).sum(axis=-1)) - chosen).sum())
        count += len(chosen)
    return total / count


def same_surprise(samples: list[Sample], expected: list[Output], found: list[Output]) -> float:
    """The perplexity of the float model over that of the other."""
    return float(np.exp(nats(samples, expected) - nats(samples, found)))


TASKS: dict[str, tuple[str, Agreement]] = {
    "classifier": ("same class", same_class),
    "detector": ("overlap of text", same_ink),
    "recogniser": ("same letters", same_letters),
    "magika": ("same class", same_class),
    "minilm": ("cosine", same_meaning),
    **dict.fromkeys(("mobilenet_v2", "resnet20", "resnet32"), ("same class", same_class)),
    "smollm2": ("perplexity, fp32 / this", same_surprise),
}


def log_odds(output: Output) -> Output:
    """What probabilities of two classes were computed from.

    They themselves are 0 or 1 but for a sample or two, and decibels of them tell of these alone.
    """
    logs = np.log(np.maximum(output.astype(np.float64), 1e-12))
    return (logs[..., :1] - logs[..., 1:]).astype(np.float32)


VIEWS: dict[str, Callable[[Output], Output]] = {"classifier": log_odds}
"""What decibels are taken of, where it is not the output itself."""


NO_ERROR = 100.0
"""Decibels from which on errors are those of float arithmetic, in which the order of sums is anybody's choice."""


def decibels(expected: list[Output], found: list[Output]) -> float:
    """The ratio of signal to error, up to where there is no error to speak of."""
    signal = sum(float((a.astype(np.float64) ** 2).sum()) for a in expected)
    error = sum(float(((a.astype(np.float64) - b) ** 2).sum()) for a, b in zip(expected, found, strict=True))
    return min(NO_ERROR, 10 * np.log10(signal / max(error, signal * 1e-20)))


def session(path: str, level: ort.GraphOptimizationLevel) -> ort.InferenceSession:
    """The model on one thread of the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = level
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def outputs(model: ort.InferenceSession, samples: list[Sample]) -> list[Output]:
    """The first output for each sample."""
    return [model.run(None, {name: a for name, a in sample.items() if name != LABEL})[0] for sample in samples]


def top1(samples: list[Sample], found: list[Output]) -> dict[str, float]:
    """How often the most probable class is the right one, in percent, where samples say which one is."""
    if LABEL not in samples[0]:
        return {}
    right = [one.argmax() == sample[LABEL].item() for one, sample in zip(found, samples, strict=True)]
    return {"top1": 100 * statistics.mean(map(float, right))}


def seconds(model: ort.InferenceSession, samples: list[Sample]) -> float:
    """How long a pass takes."""
    start = time.perf_counter()
    outputs(model, samples)
    return time.perf_counter() - start


def speedup(first: ort.InferenceSession, other: ort.InferenceSession, samples: list[Sample], limit: float) -> float:
    """How many times faster the other is: the median over passes that take turns for ``limit`` seconds."""
    ratios: list[float] = []
    start = time.perf_counter()
    while len(ratios) < FEWEST_ROUNDS or time.perf_counter() - start < limit:
        ratios.append(seconds(first, samples) / seconds(other, samples))
    return statistics.median(ratios)


def weight(path: str) -> int:
    """Bytes of a model and of the files that belong to it."""
    model = onnx.load(path, load_external_data=False)
    named = {e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"}
    return Path(path).stat().st_size + sum(Path(path).with_name(name).stat().st_size for name in named)


def floats(path: str) -> int:
    """How many numbers the matrices and kernels of a model have that are stored as floats."""
    model = onnx.load(path, load_external_data=False)
    constants = (a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute)
    tensors = [t for t in (*model.graph.initializer, *constants) if t.data_type == onnx.TensorProto.FLOAT]
    return sum(math.prod(t.dims) for t in tensors if len(t.dims) > 1 and math.prod(t.dims) >= SMALL)


def complaint(path: str) -> str:
    """What onnx's own check says against a model; nothing where it is valid."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return str(error).splitlines()[0]
    return ""


def measured(task: str, float_path: str, path: str, samples: list[Sample], limit: float) -> dict[str, object]:
    """The numbers of one quantized model."""
    agreement = TASKS[task][1]
    level = ort.GraphOptimizationLevel
    reference, quantized = session(float_path, level.ORT_ENABLE_ALL), session(path, level.ORT_ENABLE_ALL)
    expected, found = outputs(reference, samples), outputs(quantized, samples)
    few = samples[:MOST_BASIC]
    basic = outputs(session(path, level.ORT_ENABLE_BASIC), few)
    view = VIEWS.get(task, lambda output: output)
    seen = {name: [view(one) for one in each] for name, each in (("float", expected), ("all", found), ("basic", basic))}
    return {
        "agreement": agreement(samples, expected, found),
        "decibels": decibels(seen["float"], seen["all"]),
        "basic_agreement": agreement(few, expected[: len(few)], basic),
        "basic_decibels": decibels(seen["all"][: len(few)], seen["basic"]),
        "in_float": floats(path) / max(floats(float_path), 1),
        "complaint": complaint(path),
        "size": weight(path) / weight(float_path),
        "speedup": speedup(reference, quantized, samples[:4], limit),
        "digest": hashlib.sha256(b"".join(one.tobytes() for one in found)).hexdigest()[:12],
        **top1(samples, found),
        **{f"float_{name}": value for name, value in top1(samples, expected).items()},
    }


def main() -> None:
    """Compare two models and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("float_model")
    parser.add_argument("quantized_model")
    parser.add_argument("evaluation")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to time passes, if seven take less")
    parser.add_argument("--only-speed", action="store_true")
    options = parser.parse_args()
    samples, models = list(StoredSamples(Path(options.evaluation))), (options.float_model, options.quantized_model)
    if options.only_speed:
        sessions = [session(path, ort.GraphOptimizationLevel.ORT_ENABLE_ALL) for path in models]
        for each in sessions:
            outputs(each, samples[:4])
        print(json.dumps({"speedup": speedup(*sessions, samples[:4], options.seconds)}))
    else:
        print(json.dumps(measured(options.task, *models, samples, options.seconds)))


if __name__ == "__main__":
    main()
