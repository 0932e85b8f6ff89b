"""An image classifier in bf16 where that keeps a promise, with the 2.x API."""

import argparse
from pathlib import Path

import numpy as np
import torch

from neural_compressor import mix_precision
from neural_compressor.config import AccuracyCriterion, MixedPrecisionConfig
from transformers import AutoModelForImageClassification

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/mobilenet_v2"), help="folder of a Hugging Face image classifier"
)
parser.add_argument("--images", type=Path, default=Path("models/photographs.npz"), help="npz file with the array test")
parser.add_argument("--precision", choices=("bf16", "fp16"), default="bf16")
parser.add_argument("--output", type=Path, default=Path("out/mixed_precision"), help="folder for the converted model")
args = parser.parse_args()

test = torch.from_numpy(np.load(args.images)["test"])[:24]
model = AutoModelForImageClassification.from_pretrained(args.model).eval()
with torch.no_grad():
    labels = model(test).logits.argmax(1)  # what the float model sees, as the photographs have no labels


@torch.no_grad()
def eval_func(model):
    return (model(test).logits.argmax(1) == labels).float().mean().item()


conf = MixedPrecisionConfig(
    precisions=args.precision, accuracy_criterion=AccuracyCriterion(tolerable_loss=0.05), example_inputs=test[:1]
)
converted_model = mix_precision.fit(model, conf, eval_func=eval_func)
converted_model.save(args.output)
sizes = [
    sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6 for folder in (args.model, args.output)
]
print(f"same class {eval_func(converted_model):.1%}, weights {sizes[0]:.1f} -> {sizes[1]:.1f} MB")
print(converted_model.verdict)
