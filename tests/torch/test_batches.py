"""What of a batch is fed to a model, and what is its label."""

import pytest
import torch
from torch import nn

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion
from neural_compressor.torch.batches import split_batch


class Two(nn.Module):
    """Two inputs, both required."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 3), nn.Linear(4, 3)

    def forward(self, x, y):
        return self.left(x) + self.right(y)


class Listed(nn.Module):
    """A list of any length, and a mask."""

    def forward(self, values, mask):
        return sum(values) * mask


X, Y = torch.randn(8, 6), torch.randn(8, 4)
LABEL = torch.arange(8) % 3
SHAPES = {
    "pair of a tuple": ((X, Y), LABEL),
    "pair of a list": [[X, Y], LABEL],
    "pair of a mapping": ({"x": X, "y": Y}, LABEL),
}


@pytest.mark.parametrize("batch", SHAPES.values(), ids=SHAPES.keys())
def test_two_required_inputs_and_a_label(batch, tmp_path):
    torch.manual_seed(0)
    net = Two().eval()
    assert split_batch(net, batch) is batch[0]
    with torch.no_grad():
        right = float((net(X, Y).argmax(1) == LABEL).float().mean())
    conf = PostTrainingQuantConfig(tuning_criterion=TuningCriterion(max_trials=1))
    q_model = quantization.fit(
        net, conf, calib_dataloader=[batch], eval_dataloader=[batch], eval_metric="accuracy",
        quiet=True, workspace=str(tmp_path),
    )  # fmt: skip
    assert q_model.result.baseline.accuracy == pytest.approx(right)
    assert {name for name, module in q_model.model.named_modules() if "Quant" in type(module).__name__}


def test_what_forward_requires_as_a_whole_is_no_label():
    assert split_batch(Two(), (X, Y)) == (X, Y)
    assert split_batch(Two(), (X, Y, LABEL)) == (X, Y)
    three, mask = [X, X, X], torch.ones(8, 1)
    assert split_batch(Listed(), (three, mask)) == (three, mask)
    named = {"first": X}, mask
    assert split_batch(Listed(), named) == named
