"""What zero points that are no integers cost and gain in MatMulNBits: CPU time of one thread, and perplexity.

    python benchmarks/onnx_zero_points.py [--data DIR]

``DIR/docs_lm`` is a language model in Hugging Face layout with its ``eval.txt``; without it only times are printed.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, helper, numpy_helper

from neural_compressor.algorithms import ALGORITHMS
from neural_compressor.dtypes import dtype
from neural_compressor.onnx.quantization import HQQConfig, quantize
from neural_compressor.schemes import PerGroup, TensorScheme

SIZE, BLOCK, ROUNDS, CALLS = 1024, 64, 15, 5
WINDOWS, TOKENS = 24, 512


def models(level: int) -> dict[str, ModelProto]:
    """One product, three times quantized."""
    weight = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
    x, y = (helper.make_tensor_value_info(name, 1, ["n", SIZE]) for name in "xy")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(weight, "w")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = {
        name: quantize(proto, None, HQQConfig(accuracy_level=level, integer_zero=integer), quiet=True)
        for name, integer in (("integers", True), ("offsets beside", False))
    }
    scheme = TensorScheme(dtype("uint4"), False, PerGroup(BLOCK))
    floats = copy.deepcopy(found["integers"])
    product = next(node for node in floats.graph.node if node.op_type == "MatMulNBits")
    zeros = next(each for each in floats.graph.initializer if each.name == product.input[3])
    array = ALGORITHMS["hqq"](weight.T.copy(), scheme).array
    zeros.CopyFrom(numpy_helper.from_array(np.asarray(array.zero).reshape(SIZE, -1), zeros.name))
    return {**found, "floats in the kernel": floats}


def times(level: int, rows: int) -> dict[str, float]:
    """Milliseconds of a call, in turns."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = {name: ort.InferenceSession(model.SerializeToString(), options) for name, model in models(level).items()}
    feed = {"x": np.random.default_rng(1).standard_normal((rows, SIZE)).astype(np.float32)}
    seen: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            session.run(None, feed)
            start = time.thread_time()
            for _ in range(CALLS):
                session.run(None, feed)
            seen[name].append((time.thread_time() - start) / CALLS * 1e3)
    return {name: statistics.median(each) for name, each in seen.items()}


def print_perplexities(folder: Path) -> None:
    """Of the float model, and of its layers quantized by HQQ."""
    import torch

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(folder)((folder / "eval.txt").read_text(), return_tensors="pt").input_ids[0]
    windows = ids[: WINDOWS * TOKENS].view(WINDOWS, TOKENS)

    def perplexity(model: Any) -> float:
        with torch.no_grad():
            return math.exp(statistics.mean(model(w[None], labels=w[None]).loss.item() for w in windows))

    print(f"float: {perplexity(model):.3f}")
    for bits in (4, 3):
        for size, integer in ((64, True), (64, False), (32, True)):
            new, scheme = copy.deepcopy(model), TensorScheme(dtype(f"uint{bits}"), False, PerGroup(size))
            for name, layer in new.named_modules():
                if isinstance(layer, torch.nn.Linear) and name != "lm_head":
                    found = ALGORITHMS["hqq"](layer.weight.data, scheme, integer_zero=integer)
                    layer.weight.data = found.array.dequantize()
            stored = bits + (32 + bits + (0 if integer else 32)) / size
            kind = "integer zero points" if integer else "offsets beside"
            print(f"{bits} bits, groups of {size}, {kind}: {perplexity(new):.3f}, {stored:.2f} bits a weight")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    data = parser.parse_args().data
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "?")
    print(f"{cpu.split(':')[-1].strip()}, ONNX Runtime {ort.__version__}, {SIZE} x {SIZE}, groups of {BLOCK}, int4")
    for level in (1, 4):
        for rows in (1, 128):
            found = ", ".join(f"{name} {value:.3f} ms" for name, value in times(level, rows).items())
            print(f"accuracy_level {level}, {rows} rows: {found}")
    if data is not None:
        print_perplexities(data / "docs_lm")


if __name__ == "__main__":
    main()
