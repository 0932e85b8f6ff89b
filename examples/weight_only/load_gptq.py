"""Load a GPTQ checkpoint, such as those that are published on the Hugging Face hub, from a local folder."""

import argparse
import math
import time
from pathlib import Path

import torch

from neural_compressor.torch.quantization import load
from transformers import AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--model", type=Path, default=Path("models/smollm2_gptq"), help="folder of a GPTQ checkpoint")
parser.add_argument("--test", type=Path, default=Path("models/test.txt"), help="text to measure perplexity on")
args = parser.parse_args()

start = time.perf_counter()
model = load(model_name_or_path=args.model, format="huggingface", device="cpu", torch_dtype=torch.bfloat16)
seconds = time.perf_counter() - start

tokenizer = AutoTokenizer.from_pretrained(args.model)
ids = tokenizer(args.test.read_text(encoding="utf-8"), return_tensors="pt").input_ids
test = ids[0, : 8 * 128].reshape(8, 128)
with torch.no_grad():
    perplexity = math.exp(model(test, labels=test).loss.item())
packed = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())) / 1e6
print(f"perplexity {perplexity:.1f}, {packed:.0f} MB in memory, loaded in {seconds:.1f} s")
