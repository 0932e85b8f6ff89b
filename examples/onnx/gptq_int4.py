"""Weights of an ONNX language model in 4 bits by GPTQ, with one layer kept in float by a rule."""

import argparse
import math
from pathlib import Path

import numpy as np
import onnxruntime

from onnx_neural_compressor import data_reader
from onnx_neural_compressor.quantization import config, quantize
from transformers import AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--model", type=Path, default=Path("models/smollm2.onnx"), help="language model, an ONNX file")
parser.add_argument("--tokenizer", type=Path, default=Path("models/smollm2"), help="folder of its tokenizer")
parser.add_argument("--calibration", type=Path, default=Path("models/calibration.txt"), help="text to calibrate on")
parser.add_argument("--test", type=Path, default=Path("models/test.txt"), help="text to measure perplexity on")
parser.add_argument("--keep", default="/model/lm_head/MatMul", help="the node that stays in float")
parser.add_argument("--output", type=Path, default=Path("out/gptq_int4.onnx"), help="file for the quantized model")
args = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)


def windows(file, count):
    """Inputs of 128 tokens each."""
    ids = np.array(tokenizer(file.read_text(encoding="utf-8"))["input_ids"][: count * 128], np.int64)
    return [{"input_ids": row, "attention_mask": np.ones_like(row)} for row in ids.reshape(-1, 1, 128)]


class DataReader(data_reader.CalibrationDataReader):
    def __init__(self, samples):
        self.samples = samples
        self.rewind()

    def get_next(self):
        return next(self.iterator, None)

    def rewind(self):
        self.iterator = iter(self.samples)


def perplexity(path):
    session, losses = onnxruntime.InferenceSession(path), []
    for inputs in windows(args.test, 8):
        logits = session.run(None, inputs)[0][0, :-1].astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        right = np.take_along_axis(logits, inputs["input_ids"][0, 1:, None], axis=1)[:, 0]
        losses.append(np.log(np.exp(logits).sum(1)) - right)
    return math.exp(np.mean(losses))


quant_config = config.GPTQConfig(
    weight_bits=4,
    weight_dtype="int",
    weight_sym=False,
    weight_group_size=32,
    calibration_data_reader=DataReader(windows(args.calibration, 8)),
)
quant_config.set_local(args.keep, config.GPTQConfig(weight_dtype="fp32"))
quantize(args.model, args.output, quant_config)

sizes = [file.stat().st_size / 1e6 for file in (args.model, args.output)]
print(f"perplexity {perplexity(args.model):.1f} -> {perplexity(args.output):.1f}, {sizes[0]:.0f} -> {sizes[1]:.0f} MB")
