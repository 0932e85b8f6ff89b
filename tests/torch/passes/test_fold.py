"""Batch norms are folded where, and only where, that changes nothing."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.torch.passes.fold import find_structure, fold
from neural_compressor.torch.structure.watch import watch


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


def test_only_pairs_of_every_run_are_folded_and_fused():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU()
            self.other, self.sure = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

        def forward(self, x, normalised):
            y = self.conv(x)
            return self.sure(self.other(self.relu(self.norm(y) if normalised else y)))

    model, x = randomise(Branch()), torch.rand(1, 1, 4, 4)
    both = [watch(model, (x, flag)) for flag in (True, False)]
    assert find_structure(model, both[0]).folded == {"norm": "conv", "sure": "other"}
    assert find_structure(model, both[0]).relus == {"conv": "relu"}
    agreed = find_structure(model, *both)
    assert agreed.folded == {"sure": "other"}
    assert not agreed.relus
    assert list(agreed.unfolded) == ["conv"]
    assert "'norm'" in agreed.unfolded["conv"]
    assert find_structure(model, both[0]).kept_by(model, both) == agreed


def test_a_pair_that_does_not_run_at_all_in_one_batch_is_still_one():
    class Optional(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU()

        def forward(self, x, used):
            return self.relu(self.norm(self.conv(x))) if used else x * 2

    model, x = randomise(Optional()), torch.rand(1, 1, 4, 4)
    found = find_structure(model, *(watch(model, (x, flag)) for flag in (False, True)))
    assert (found.folded, found.relus) == ({"norm": "conv"}, {"conv": "relu"})


def test_a_linear_of_another_rank_in_a_later_batch_keeps_its_norm():
    model = randomise(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    traces = [watch(model, torch.rand(shape)) for shape in ((3, 4), (2, 6, 4))]
    assert find_structure(model, traces[0]).folded == {"1": "0"}
    assert find_structure(model, *traces).folded == {}
