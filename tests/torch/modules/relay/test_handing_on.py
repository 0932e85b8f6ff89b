"""Int8 is handed on through activations, containers, shortcuts and additions, and outputs stay the same."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neural_compressor.torch import functional
from neural_compressor.torch.files.checkpoint import load_model, save_model


def conv(inputs=4, outputs=4, stride=1):
    return nn.Conv2d(inputs, outputs, 3, stride, 1)


class Functional(nn.Module):
    """F.relu, F.relu6, torch.relu, a pool and a view between convolutions."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.fc = conv(3), conv(), conv(), nn.Linear(4 * 16, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.a(x)), 2)
        x = torch.relu(self.c(F.relu6(self.b(x))))
        return self.fc(x.view(x.shape[0], -1))


class Residual(nn.Module):
    """Two blocks whose sums are read by a convolution and by the next sum."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv(3), nn.BatchNorm2d(4), nn.ReLU())
        self.first, self.second = nn.Sequential(conv(), nn.ReLU(), conv()), nn.Sequential(conv(), nn.ReLU(), conv())
        self.last = conv()

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(x + self.first(x))
        return self.last(x + self.second(x))


class Shortcut(nn.Module):
    """A shortcut that drops pixels and adds channels of zeros."""

    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b, self.last = conv(3), conv(4, 8, 2), conv(8, 8), conv(8, 8)

    def forward(self, x):
        x = self.stem(x).relu()
        y = self.b(torch.relu(self.a(x)))
        y = y + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        return self.last(torch.relu(y))


class Joined(nn.Module):
    """Two readers of one tensor, whose results are joined for a third."""

    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b, self.c = conv(3), conv(), conv(), conv(8)

    def forward(self, x):
        x = F.relu(self.stem(x))
        return self.c(torch.cat([self.a(x), self.b(x)], 1))


class Added(nn.Module):
    """An addition that is an op with ranges of its own."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.add, self.c = conv(3), conv(3), functional.Add(), conv()

    def forward(self, x):
        return self.c(self.add(self.a(x), self.b(x)))


def nested():
    inner = nn.Sequential(nn.Sequential(conv(), nn.ReLU6(inplace=True)), nn.Sequential(conv(), nn.Dropout(0.5)))
    return nn.Sequential(conv(3), nn.Sequential(nn.ReLU(), inner), conv())


def one_dimension():
    return nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 3), nn.Flatten(), nn.Linear(16, 3))


IMAGE = (6, 3, 8, 8)
EXACT = {
    "nested": (nested, IMAGE, 1),
    "functional": (Functional, IMAGE, 1),
    "joined": (Joined, IMAGE, 1),
    "add op": (Added, IMAGE, 1),
    "one dimension": (one_dimension, (6, 3, 8), 1),
    "linear": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2)), (6, 8), 1),
}
# The terms of a sum are rounded to 8 bits, which the module's own forward does not do.
SUMS = {"residual": (Residual, IMAGE, 1), "shortcut": (Shortcut, IMAGE, 1)}


@pytest.mark.parametrize("name", [*EXACT, *SUMS])
def test_int8_goes_from_op_to_op(name, quantized, without_relays, quantizations, decibels):
    make, shape, expected = (EXACT | SUMS)[name]
    x = torch.randn(shape)
    new = quantized(make(), x)
    assert new.quantization.relays.modules == [""], new.quantization.relays.reasons
    assert quantizations(new, x) == expected
    other = without_relays(new)
    for batch in (x, torch.randn(1, *shape[1:]), torch.randn(9, *shape[1:])):
        a, b = other(batch), new(batch)
        assert b.dtype == torch.float32
        assert b.is_contiguous()
        assert decibels(a, b) > (40 if name in EXACT else 30)


def test_a_residual_that_is_read_later_is_not_written_over(quantized, without_relays, decibels):
    class Later(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.a, self.b, self.c, self.d = conv(3), conv(), conv(), conv(), conv()

        def forward(self, x):
            x = torch.relu(self.stem(x))
            y = self.b(torch.relu(x + self.a(x)))
            return self.d(y), self.c(x)

    x = torch.randn(IMAGE)
    new = quantized(Later(), x)
    first = new(x)
    assert new.forward.active
    for a, b in zip(without_relays(new)(x), first, strict=True):
        assert decibels(a, b) > 30  # the sum is on codes
    assert torch.equal(new(x)[1], first[1])


@pytest.mark.parametrize("scheme", ["asym", "sym"])
def test_relu6_on_a_scale_that_reaches_further(scheme, quantized, without_relays, decibels):
    """Calibrated beyond 6 (signed symmetric codes have a zero-point of 128), codes are clipped as values would be."""
    x = torch.randn(IMAGE)
    model = nn.Sequential(conv(3), nn.ReLU6(), conv())
    with torch.no_grad():
        model[0].weight *= 30
    new = quantized(model, x, activation={"dtype": "int8", "scheme": scheme})
    assert new.quantization.relays.modules == [""]
    assert decibels(without_relays(new)(x), new(x)) > 40


def test_an_op_left_in_float_gets_floats(quantized, without_relays, quantizations, decibels):
    x = torch.randn(IMAGE)
    new = quantized(nn.Sequential(conv(3), nn.ReLU(), conv(), conv(), conv()), x, leave=("2",))
    assert new.quantization.relays.modules == [""]
    assert quantizations(new, x) == 2
    assert decibels(without_relays(new)(x), new(x)) > 40


def test_nothing_is_claimed_where_nothing_is_handed_on(quantized):
    x = torch.randn(IMAGE)
    new = quantized(nn.Sequential(conv(3), nn.Sigmoid(), conv()), x)
    assert new.quantization.relays.modules == []
    assert "no op reads the int8 output of another" in new.quantization.relays.reasons[""]


def test_a_loaded_residual_network_gives_the_same_bits(quantized, quantizations, tmp_path):
    x = torch.randn(IMAGE)
    new = quantized(Residual(), x)
    save_model(new, tmp_path)
    again = load_model(tmp_path, Residual())
    assert again.first[2].output_qparams == new.first[2].output_qparams is not None
    assert torch.equal(again(x), new(x))
    assert quantizations(again, x) == 1


def test_a_sum_whose_term_has_no_range_stays_in_float(quantized, without_relays, decibels):
    x = torch.randn(IMAGE)
    new = quantized(Residual(), x)
    for module in new.modules():
        if hasattr(module, "output_scale"):
            module.output_scale = module.output_zero_point = None
    new.first[0]._settle()
    assert decibels(without_relays(new)(x), new(x)) > 30


@pytest.mark.parametrize("gain", [1.0, 10.0])
@pytest.mark.parametrize("last", [False, True], ids=["sum in float", "sum as codes"])
def test_what_a_relu_cuts_off_is_kept_for_others(quantized, without_relays, decibels, gain, last):
    class PreActivation(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = conv(3), conv(), conv()
            with torch.no_grad():
                self.b.weight *= gain

        def forward(self, x):
            h = self.a(x)
            total = h + self.b(torch.relu(h))
            return self.c(total) if last else total

    x = torch.randn(IMAGE)
    new = quantized(PreActivation(), x)
    assert decibels(without_relays(new)(x), new(x)) > 30
