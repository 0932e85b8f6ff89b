"""Weights and activations of a language model in fp8: real on GPUs that have it, simulated elsewhere."""

import argparse
import math
from pathlib import Path

import torch

from neural_compressor.torch.quantization import FP8Config, convert, prepare
from neural_compressor.torch.utils.llm_utility import get_default_llm_dataloader, initialize_model_and_tokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/smollm2"), help="folder of a Hugging Face language model"
)
parser.add_argument("--calibration", type=Path, default=Path("models/calibration.txt"), help="text to calibrate on")
parser.add_argument("--test", type=Path, default=Path("models/test.txt"), help="text to measure perplexity on")
parser.add_argument("--output", type=Path, default=Path("out/fp8"), help="folder for the quantized model")
args = parser.parse_args()

model, tokenizer = initialize_model_and_tokenizer(args.model)
calibration = get_default_llm_dataloader(tokenizer, args.calibration, bs=8, nsamples=16, seq_len=128)
test = get_default_llm_dataloader(tokenizer, args.test, bs=1, nsamples=8, seq_len=128)


@torch.no_grad()
def perplexity(model):
    return math.exp(sum(model(**batch, labels=batch["input_ids"]).loss.item() for batch in test) / len(test))


before = perplexity(model)
qconfig = FP8Config(fp8_config="E4M3", blocklist={"names": ["lm_head"]})
model = prepare(model, qconfig)
with torch.no_grad():
    for batch in calibration:
        model(**batch)
model = convert(model)
after = perplexity(model)
model.save(args.output)

sizes = [
    sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6 for folder in (args.model, args.output)
]
print(f"perplexity {before:.1f} -> {after:.1f}, weights {sizes[0]:.0f} -> {sizes[1]:.0f} MB")
