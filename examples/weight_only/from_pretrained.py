"""Quantize a language model while it is loaded, as transformers does, save it and load it again."""

import argparse
import math
from pathlib import Path

import torch

from neural_compressor.transformers import AutoModelForCausalLM, RtnConfig
from transformers import AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/smollm2"), help="folder of a Hugging Face language model"
)
parser.add_argument("--test", type=Path, default=Path("models/test.txt"), help="text to measure perplexity on")
parser.add_argument("--output", type=Path, default=Path("out/from_pretrained"), help="folder for the quantized model")
args = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(args.model)
ids = tokenizer(args.test.read_text(encoding="utf-8"), return_tensors="pt").input_ids
test = ids[0, : 8 * 128].reshape(8, 128)


@torch.no_grad()
def perplexity(model):
    return math.exp(model(test, labels=test).loss.item())


model = AutoModelForCausalLM.from_pretrained(args.model)
before = perplexity(model)
model = AutoModelForCausalLM.from_pretrained(
    args.model, quantization_config=RtnConfig(bits=4, group_size=32, sym=False)
)
after = perplexity(model)
model.save_pretrained(args.output)
tokenizer.save_pretrained(args.output)
model = AutoModelForCausalLM.from_pretrained(args.output)
again = perplexity(model)

prompt = tokenizer("The import statement", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=8, do_sample=False)[0]))
sizes = [
    sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6 for folder in (args.model, args.output)
]
print(f"perplexity {before:.1f} -> {after:.1f} (loaded {again:.1f}), weights {sizes[0]:.0f} -> {sizes[1]:.0f} MB")
