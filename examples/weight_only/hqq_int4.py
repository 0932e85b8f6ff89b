"""Weights of a language model in 4 bits by HQQ, which fits zero points: no data, seconds."""

import argparse
import math
from pathlib import Path

import torch

from neural_compressor.torch.quantization import HQQConfig, convert, prepare
from neural_compressor.torch.utils.llm_utility import get_default_llm_dataloader, initialize_model_and_tokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/smollm2"), help="folder of a Hugging Face language model"
)
parser.add_argument("--test", type=Path, default=Path("models/test.txt"), help="text to measure perplexity on")
parser.add_argument("--output", type=Path, default=Path("out/hqq_int4"), help="folder for the quantized model")
args = parser.parse_args()

model, tokenizer = initialize_model_and_tokenizer(args.model)
test = get_default_llm_dataloader(tokenizer, args.test, bs=1, nsamples=8, seq_len=128)


@torch.no_grad()
def perplexity(model):
    return math.exp(sum(model(**batch, labels=batch["input_ids"]).loss.item() for batch in test) / len(test))


before = perplexity(model)
quant_config = HQQConfig(bits=4, group_size=64, quant_zero=True)
model = prepare(model, quant_config)
model = convert(model)
after = perplexity(model)
model.save(args.output)

sizes = [
    sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6 for folder in (args.model, args.output)
]
print(f"perplexity {before:.1f} -> {after:.1f}, weights {sizes[0]:.0f} -> {sizes[1]:.0f} MB")
