"""What of a batch is fed to a model, and what is its label."""

import pytest
import torch
from torch import nn

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion
from neural_compressor.errors import CalibrationError
from neural_compressor.torch.batches import feed, first_inputs, split_batch


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


@pytest.mark.parametrize(
    "calibrate",
    [lambda m: m(X, Y), lambda m: m(x=X, y=Y), lambda m: m(X, y=Y), lambda m: [m(X, Y), m(2 * X, Y)]],
    ids=["by place", "by name", "both", "twice"],
)
def test_the_first_inputs_of_a_function_feed_the_model_as_it_does(calibrate):
    net = Two().eval()
    inputs = first_inputs(net, calibrate)
    assert torch.equal(feed(net, inputs), net(X, Y))
    assert not net._forward_pre_hooks


@pytest.mark.parametrize(
    "calibrate",
    [lambda m: None, lambda m: m.left(X), lambda m: m(X, object()), lambda m: m(X, {"cache": {1}})],
    ids=["nothing", "a part", "an object", "a set"],
)
def test_a_function_that_shows_no_inputs(calibrate):
    assert first_inputs(Two().eval(), calibrate) is None


def test_an_error_before_the_first_inputs_names_the_function():
    with pytest.raises(CalibrationError, match=r"calib_func.*ZeroDivisionError"):
        first_inputs(Two(), lambda m: 1 / 0)
