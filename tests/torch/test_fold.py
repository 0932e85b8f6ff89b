"""Batch norms are folded where, and only where, that changes nothing."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.torch.fold import find_structure, fold
from neural_compressor.torch.watch import watch


def randomise(model):
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model.eval()


def folded(model, x):
    copied = copy.deepcopy(model)
    structure = find_structure(copied, watch(copied, x))
    return fold(copied, structure), structure


@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        (nn.Conv1d(4, 6, 3, bias=False), nn.BatchNorm1d(6), (2, 4, 9)),
        (nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), (2, 4, 9, 9)),
        (nn.Conv3d(4, 6, 3), nn.BatchNorm3d(6), (2, 4, 5, 5, 5)),
        (nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6), (2, 4, 5, 5)),
        (nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), (2, 4, 5, 5)),
        (nn.Linear(4, 6), nn.BatchNorm1d(6), (5, 4)),
    ],
    ids=["conv1d", "conv2d-groups", "conv3d", "transposed", "transposed-groups", "linear"],
)
def test_outputs_stay_the_same(layer, norm, shape):
    torch.manual_seed(0)
    model, x = randomise(nn.Sequential(layer, norm, nn.ReLU())), torch.randn(shape)
    new, structure = folded(model, x)
    assert structure.folded == {"1": "0"}
    assert structure.relus == {"0": "2"}
    assert isinstance(new[1], nn.Identity)
    torch.testing.assert_close(new(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_norm_over_a_sequence_axis_is_left_alone():
    model, x = randomise(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(5))), torch.randn(2, 5, 4)
    assert folded(model, x)[1].folded == {}


def test_a_layer_whose_output_is_also_used_elsewhere_is_left_alone():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)

        def forward(self, x):
            x = self.conv(x)
            return x + self.bn(x)

    assert folded(randomise(Residual()), torch.randn(1, 1, 2, 2))[1].folded == {}


def test_a_norm_in_training_mode_is_left_alone():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))
    assert folded(model, torch.randn(2, 1, 2, 2))[1].folded == {}


def test_a_shared_layer_is_left_alone():
    conv = nn.Conv2d(1, 1, 1)
    model = randomise(nn.Sequential(conv, nn.BatchNorm2d(1), conv, nn.BatchNorm2d(1)))
    assert folded(model, torch.randn(2, 1, 2, 2))[1].folded == {}


def test_layers_whose_output_is_added_are_known():
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm, self.b, self.c = (
                nn.Conv2d(2, 2, 1),
                nn.BatchNorm2d(2),
                nn.Conv2d(2, 2, 1),
                nn.Conv2d(2, 2, 1),
            )

        def forward(self, x):
            y = self.norm(self.a(x)) + x
            return self.c(torch.relu(self.b(y)) + y)

    model = Sums().eval()
    assert find_structure(model, watch(model, torch.rand(1, 2, 4, 4))).summed == ["a"]
