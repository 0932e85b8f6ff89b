"""A sentence encoder in dynamic int8, with the 2.x API: no data is needed to quantize it."""

import argparse
from pathlib import Path

import torch

from neural_compressor import quantization
from neural_compressor.config import AccuracyCriterion, PostTrainingQuantConfig
from transformers import AutoModel, AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/minilm"), help="folder of a Hugging Face sentence encoder"
)
parser.add_argument(
    "--pairs", type=Path, default=Path("models/pairs.tsv"), help="two texts on one subject a line, a tab between"
)
parser.add_argument("--output", type=Path, default=Path("out/dynamic_int8"), help="folder for the quantized model")
args = parser.parse_args()

model, tokenizer = AutoModel.from_pretrained(args.model).eval(), AutoTokenizer.from_pretrained(args.model)
pairs = [line.split("\t") for line in args.pairs.read_text(encoding="utf-8").splitlines()]
sides = [
    tokenizer(list(side), padding=True, truncation=True, max_length=96, return_tensors="pt")
    for side in zip(*pairs, strict=True)
]


@torch.no_grad()
def eval_func(model):
    """The share of first halves whose nearest second half is their own."""
    means = []
    for tokens in sides:
        mask = tokens["attention_mask"][..., None]
        means.append((model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1))
    nearest = torch.cosine_similarity(means[0][:, None], means[1][None], dim=-1).argmax(1)
    return (nearest == torch.arange(len(pairs))).float().mean().item()


conf = PostTrainingQuantConfig(approach="dynamic", accuracy_criterion=AccuracyCriterion(tolerable_loss=0.03))
before = eval_func(model)
q_model = quantization.fit(model, conf, eval_func=eval_func)
q_model.save(args.output)
sizes = [
    sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6 for folder in (args.model, args.output)
]
print(f"found {before:.1%} -> {eval_func(q_model):.1%}, weights {sizes[0]:.0f} -> {sizes[1]:.0f} MB")
print(q_model.verdict)
