"""Weights of a language model in 4 bits by GPTQ, with the 2.x API."""

import argparse
import math
from pathlib import Path

import torch

from neural_compressor import PostTrainingQuantConfig, quantization
from neural_compressor.adaptor.torch_utils.auto_round import get_dataloader
from neural_compressor.torch.utils.llm_utility import initialize_model_and_tokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/smollm2"), help="folder of a Hugging Face language model"
)
parser.add_argument("--calibration", type=Path, default=Path("models/calibration.txt"), help="text to calibrate on")
parser.add_argument("--test", type=Path, default=Path("models/test.txt"), help="text to measure perplexity on")
parser.add_argument("--output", type=Path, default=Path("out/weight_only"), help="folder for the quantized model")
args = parser.parse_args()

model, tokenizer = initialize_model_and_tokenizer(args.model)
calib_dataloader = get_dataloader(tokenizer, seqlen=128, dataset_name=args.calibration, bs=2, n_samples=32)
test = get_dataloader(tokenizer, seqlen=128, dataset_name=args.test, bs=1, n_samples=8)


@torch.no_grad()
def perplexity(model):
    return math.exp(sum(model(**batch, labels=batch["input_ids"]).loss.item() for batch in test) / len(test))


conf = PostTrainingQuantConfig(
    approach="weight_only",
    op_type_dict={".*": {"weight": {"bits": 4, "group_size": 32, "scheme": "sym", "algorithm": "GPTQ"}}},
    op_name_dict={"lm_head": {"weight": {"dtype": "fp32"}}},
    recipes={"gptq_args": {"percdamp": 0.01, "act_order": False}},
)
before = perplexity(model)
q_model = quantization.fit(model, conf, calib_dataloader=calib_dataloader)
q_model.save(args.output)
sizes = [
    sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6 for folder in (args.model, args.output)
]
print(f"perplexity {before:.1f} -> {perplexity(q_model):.1f}, weights {sizes[0]:.0f} -> {sizes[1]:.0f} MB")
