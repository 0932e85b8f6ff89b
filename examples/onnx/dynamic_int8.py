"""An ONNX sentence encoder in dynamic int8: how often it still finds the other half of a paragraph."""

import argparse
import time
from pathlib import Path

import numpy as np
import onnxruntime

from onnx_neural_compressor.quantization import config, quantize
from transformers import AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--model", type=Path, default=Path("models/minilm.onnx"), help="sentence encoder, an ONNX file")
parser.add_argument("--tokenizer", type=Path, default=Path("models/minilm"), help="folder of its tokenizer")
parser.add_argument(
    "--pairs", type=Path, default=Path("models/pairs.tsv"), help="two texts on one subject a line, a tab between"
)
parser.add_argument("--output", type=Path, default=Path("out/dynamic_int8.onnx"), help="file for the quantized model")
args = parser.parse_args()

pairs = [line.split("\t") for line in args.pairs.read_text(encoding="utf-8").splitlines()]
tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)


def accuracy_and_time(path):
    """The share of first halves whose nearest second half is their own."""
    session = onnxruntime.InferenceSession(path)
    start = time.perf_counter()
    sides = []
    for texts in zip(*pairs, strict=True):
        means = []
        for text in texts:
            tokens = tokenizer(text, truncation=True, max_length=128, return_tensors="np")
            inputs = {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
            means.append(session.run(None, inputs)[0][0].mean(0))
        sides.append(np.stack(means) / np.linalg.norm(means, axis=1, keepdims=True))
    nearest = (sides[0] @ sides[1].T).argmax(1)
    return (nearest == np.arange(len(pairs))).mean(), time.perf_counter() - start


quantize(args.model, args.output, config.DynamicQuantConfig(per_channel=True))

before, after = accuracy_and_time(args.model), accuracy_and_time(args.output)
sizes = [file.stat().st_size / 1e6 for file in (args.model, args.output)]
print(
    f"found {before[0]:.1%} -> {after[0]:.1%}, {before[1]:.1f} -> {after[1]:.1f} s, {sizes[0]:.0f} -> {sizes[1]:.0f} MB"
)
