"""Models quantized for CUDA, on CUDA: speed and size beside float32 and half precision, and what is kept of the outputs.

Needs onnxruntime-gpu. Without --models it times a stack of a language model's products alone, one token at a time and many
at once; with the folder that onnx_cpu.py --prepare fills, its models too:

    python benchmarks/onnx_gpu.py [--models DIR] [--tasks recogniser magika]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnx_agreement import NO_ERROR, decibels
from onnx_inputs import Sample, StoredSamples
from onnx_quantizers import Feed
from rich.console import Console
from rich.table import Table

from neural_compressor.onnx.quantization import RTNConfig, StaticQuantConfig, convert_precision, quantize

CUDA = "CUDAExecutionProvider"
Kinds = Mapping[str, Callable[[onnx.ModelProto, Feed], onnx.ModelProto | None]]


def int4(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Weights of matrices in four bits, 32 of them to a scale."""
    return quantize(model, None, RTNConfig(weight_bits=4, weight_group_size=32, weight_sym=True, providers=[CUDA]))


def half(model: onnx.ModelProto, dtype: str = "fp16") -> onnx.ModelProto:
    """All in half precision."""
    new = convert_precision(model, dtype=dtype, execution_provider=CUDA)
    assert new is not None
    return new


KINDS: Kinds = {
    "float32": lambda model, _: model,
    "fp16": lambda model, _: half(model),
    "bf16": lambda model, _: half(model, "bf16"),
    "int4": lambda model, _: int4(model),
    "int4, fp16": lambda model, _: int4(half(model)),
    "int8 static": lambda model, feed: quantize(
        model, None, StaticQuantConfig(feed, per_channel=True, execution_provider=CUDA)
    ),
}


def products(hidden: int, wide: int, blocks: int) -> onnx.ModelProto:
    """Pairs of products with a ReLU between them, as wide as a language model's."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for block in range(blocks):
        for name, shape in (("up", (hidden, wide)), ("down", (wide, hidden))):
            array = random.standard_normal(shape, dtype=np.float32) * np.float32((2 / shape[0]) ** 0.5)
            weights.append(numpy_helper.from_array(array, f"{name}{block}.weight"))
            nodes.append(helper.make_node("MatMul", [last, weights[-1].name], [f"{name}{block}"], f"{name}{block}"))
            last = f"{name}{block}"
            if name == "up":
                nodes.append(helper.make_node("Relu", [last], [last := f"relu{block}"]))
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["tokens", hidden]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def runner(model: onnx.ModelProto, samples: list[Sample]) -> Callable[[], list[np.ndarray]]:
    """What runs the model on inputs that lie on the GPU, and leaves its outputs there until they are asked for."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # Timing every way to compute a convolution, for each size of image, would take minutes.
    cuda = (CUDA, {"cudnn_conv_algo_search": "HEURISTIC"})
    session = ort.InferenceSession(model.SerializeToString(), options, providers=[cuda, "CPUExecutionProvider"])
    assert session.get_providers()[0] == CUDA
    bindings = []
    for sample in samples:
        binding = session.io_binding()
        for name, value in sample.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0))
        for output in session.get_outputs():
            binding.bind_output(output.name, "cuda")
        bindings.append(binding)

    def run() -> list[np.ndarray]:
        for binding in bindings:
            session.run_with_iobinding(binding)
        return [binding.copy_outputs_to_cpu()[0] for binding in bindings]

    return run


def rows(model: onnx.ModelProto, feed: Feed, inputs: Mapping[str, list[Sample]], rounds: int) -> Any:
    """For each kind of model and of input: seconds beside float32, size, decibels."""
    made = {name: make(model, feed) for name, make in KINDS.items()}
    for shown, samples in inputs.items():
        runs = {name: runner(each, samples) for name, each in made.items() if each is not None}
        expected = runs["float32"]()
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():  # in turns, so that whatever else goes on hits all
                start = time.perf_counter()
                run()
                taken[name].append(time.perf_counter() - start)
        for name, run in runs.items():
            size = made[name].ByteSize() / model.ByteSize()
            found = decibels(expected, run())
            kept = "" if found >= NO_ERROR else f"{found:.1f}"
            ms = statistics.median(taken[name]) * 1e3 / len(samples)
            ratio = statistics.median(a / b for a, b in zip(taken["float32"], taken[name], strict=True))
            yield shown, name, f"{ms:.2f}", f"{ratio:.2f}", f"{size:.2f}", kept


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="the folder of models and their inputs")
    parser.add_argument("--tasks", nargs="+", default=["recogniser", "detector", "magika"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--wide", type=int, default=11008)
    parser.add_argument("--blocks", type=int, default=1)
    options = parser.parse_args()
    table = Table(title=f"on CUDA, {options.rounds} rounds in turns")
    for name in ("model", "kind", "ms", "speed", "size", "dB"):
        table.add_column(name, justify="left" if name in ("model", "kind") else "right")
    random = np.random.default_rng(1)
    stack = products(options.hidden, options.wide, options.blocks)
    tokens = {
        f"products, {count} tokens": [{"x": random.standard_normal((count, options.hidden)).astype(np.float32)}]
        for count in (1, 16, 512)
    }
    for row in rows(stack, Feed(tokens["products, 512 tokens"]), tokens, options.rounds):
        table.add_row(*row)
    for task in options.tasks if options.models else ():
        feed = Feed(StoredSamples(options.models / f"{task}-calibration.npz", 20))
        samples = list(StoredSamples(options.models / f"{task}-evaluation.npz"))[:8]
        model = onnx.load(options.models / f"{task}.onnx")
        for row in rows(model, feed, {task: samples}, options.rounds):
            table.add_row(*row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
