"""Weights and activations of a language model in int8, with outliers of activations moved into the weights."""

import argparse
import math
from pathlib import Path

import torch

from neural_compressor.torch.quantization import SmoothQuantConfig, StaticQuantConfig, convert, prepare
from neural_compressor.torch.utils.llm_utility import get_default_llm_dataloader, initialize_model_and_tokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/smollm2"), help="folder of a Hugging Face language model"
)
parser.add_argument("--calibration", type=Path, default=Path("models/calibration.txt"), help="text to calibrate on")
parser.add_argument("--test", type=Path, default=Path("models/test.txt"), help="text to measure perplexity on")
parser.add_argument("--alpha", type=float, default=0.5, help="how much of the outliers goes into the weights, 0 to 1")
parser.add_argument("--output", type=Path, default=Path("out/smooth_quant"), help="folder for the quantized model")
args = parser.parse_args()

model, tokenizer = initialize_model_and_tokenizer(args.model)
calibration = get_default_llm_dataloader(tokenizer, args.calibration, bs=8, nsamples=32, seq_len=128)
test = get_default_llm_dataloader(tokenizer, args.test, bs=1, nsamples=8, seq_len=128)


@torch.no_grad()
def perplexity(model):
    return math.exp(sum(model(**batch, labels=batch["input_ids"]).loss.item() for batch in test) / len(test))


@torch.no_grad()
def quantized(quant_config):
    prepared = prepare(model, quant_config, inplace=False, example_inputs=calibration[0]["input_ids"])
    for batch in calibration:
        prepared(**batch)
    return convert(prepared)


before = perplexity(model)
plain = perplexity(quantized(StaticQuantConfig()))
q_model = quantized(SmoothQuantConfig(alpha=args.alpha, folding=False))
after = perplexity(q_model)
q_model.save(args.output)
print(f"perplexity {before:.1f} -> {plain:.1f} in int8, {after:.1f} with SmoothQuant")
