"""Train a small network on handwritten digits with 2-bit weights, with the 2.x API."""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from neural_compressor import QuantizationAwareTrainingConfig, quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.training import prepare_compression

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--model", type=Path, help="weights to start from, a file of torch.save; trained here without it")
parser.add_argument("--epochs", type=int, default=6, help="of training with rounded weights")
parser.add_argument("--output", type=Path, default=Path("out/qat"), help="folder for the quantized model")
args = parser.parse_args()

torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)
order = torch.randperm(len(x))
train, test = order[:1200], order[1200:]
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(512, 10)),
)


def fit(model, epochs, rate):
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(epochs):
        for batch in train[torch.randperm(len(train))].split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model):
    return (model(x[test]).argmax(1) == y[test]).float().mean().item()


if args.model is None:
    fit(model, 4, 0.002)
else:
    model.load_state_dict(torch.load(args.model, weights_only=True))
model.eval()

op_type_dict = {"Conv2d|Linear": {"weight": {"dtype": ["int2"]}, "activation": {"dtype": ["uint8"]}}}
after_training = quantization.fit(
    model, PostTrainingQuantConfig(op_type_dict=op_type_dict), calib_dataloader=[(x[train[:256]], y[train[:256]])]
)

conf = QuantizationAwareTrainingConfig(op_type_dict=op_type_dict, learned_step_size=True)
compression_manager = prepare_compression(model, conf, example_inputs=x[:8])
compression_manager.callbacks.on_train_begin()
fit(compression_manager.model, args.epochs, 0.002)
compression_manager.callbacks.on_train_end()
compression_manager.save(args.output)
trained = accuracy(compression_manager.model)
print(
    f"accuracy {accuracy(model):.1%} in float, {accuracy(after_training):.1%} rounded afterwards, {trained:.1%} trained"
)
