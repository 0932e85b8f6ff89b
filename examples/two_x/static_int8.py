"""Tune an image classifier to static int8 under a promise, with the 2.x API."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from neural_compressor import PostTrainingQuantConfig, quantization
from neural_compressor.config import AccuracyCriterion, TuningCriterion
from transformers import AutoModelForImageClassification

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/mobilenet_v2"), help="folder of a Hugging Face image classifier"
)
parser.add_argument(
    "--images", type=Path, default=Path("models/photographs.npz"), help="npz file with the arrays calibration and test"
)
parser.add_argument("--output", type=Path, default=Path("out/static_int8"), help="folder for the quantized model")
parser.add_argument("--tolerable-loss", type=float, default=0.05, help="the promise, relative to the float model")
args = parser.parse_args()

images = np.load(args.images)
calibration, test = torch.from_numpy(images["calibration"]), torch.from_numpy(images["test"])
model = AutoModelForImageClassification.from_pretrained(args.model).eval()
with torch.no_grad():
    labels = model(test).logits.argmax(1)  # what the float model sees, as the photographs have no labels


@torch.no_grad()
def eval_func(model):
    """How often the class is the same."""
    return (model(test).logits.argmax(1) == labels).float().mean().item()


conf = PostTrainingQuantConfig(
    approach="static",
    accuracy_criterion=AccuracyCriterion(tolerable_loss=args.tolerable_loss),
    tuning_criterion=TuningCriterion(max_trials=4),
)
calib_dataloader = DataLoader(TensorDataset(calibration, torch.zeros(len(calibration))), batch_size=4)
q_model = quantization.fit(model, conf, calib_dataloader=calib_dataloader, eval_func=eval_func)
q_model.save(args.output)
again = quantization.load(args.output, model)
print(f"same class {eval_func(q_model):.1%}, loaded {eval_func(again):.1%}")
print(q_model.verdict)
