"""What is folded is what is right on every batch that was seen."""

import pytest
import torch
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.passes.survey import Survey, traced_functions, ways_through

INT8 = {
    "weight": {"dtype": "int8", "scheme": "sym", "granularity": "per_channel", "algorithm": "minmax"},
    "activation": {
        "dtype": "uint8",
        "scheme": "asym",
        "granularity": "per_tensor",
        "algorithm": "minmax",
        "quant_mode": "static",
    },
}


def normalised(channels):
    norm = nn.BatchNorm2d(channels)
    nn.init.uniform_(norm.weight, 2, 3)
    norm.running_mean.normal_()
    return norm


class Branch(nn.Module):
    """The norm, and the second convolution, are for bright images alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.relu = nn.Conv2d(1, 4, 3, padding=1), normalised(4), nn.ReLU()
        self.bright, self.dark = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        y = self.conv(x)
        return self.bright(self.relu(self.norm(y))) if x.mean() > 0 else self.dark(self.relu(y))


class ReadsWeight(nn.Module):
    """A weight that a function reads as well must not change."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(2, 2, 1), normalised(2)
        self.last, self.last_norm = nn.Conv2d(2, 2, 1), normalised(2)

    def forward(self, x):
        return self.last_norm(self.last(self.norm(self.conv(x)) + nn.functional.conv2d(x, self.conv.weight)))


class ReadsNorm(ReadsWeight):
    def forward(self, x):
        return self.last_norm(self.last(self.norm(self.conv(x)) * self.norm.weight.sum()))


def batches():
    bright = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(1)) + 0.1
    return [bright, -bright]


def decibels(found, expected):
    return 10 * torch.log10(expected.square().mean() / (found - expected).square().mean())


def quantized(adaptor, model, **kwargs):
    ops = adaptor.query_fw_capability(model)["opwise"]
    return adaptor.quantize({"op": dict.fromkeys(ops, INT8)}, model, **kwargs)


def exact_on(model, new):
    with torch.no_grad():
        assert all(decibels(new(x), model(x)) > 25 for x in batches())


def test_a_norm_of_one_branch_is_not_folded_and_ops_of_the_other_are_found():
    model = Branch().eval()
    adaptor = PyTorchAdaptor({"dataloader": batches()})
    new = quantized(adaptor, model, dataloader=batches())
    exact_on(model, new)
    records = {record.name: record for record in adaptor.summary(new)}
    assert {name: r.precision for name, r in records.items()} == dict.fromkeys(("conv", "bright", "dark"), "int8")
    assert "'norm' is not folded" in records["conv"].reason


@pytest.mark.parametrize("by_function", [True, False], ids=["calib_func", "other data"])
def test_what_calibration_shows_to_be_wrong_is_undone(by_function):
    model = Branch().eval()
    adaptor = PyTorchAdaptor({"example_inputs": batches()[0]})
    key = ("conv", "Conv2d")
    assert adaptor.query_fw_capability(model)["opwise"].keys() == {key, ("bright", "Conv2d")}

    def calibrate(found):
        for x in batches():
            found(x)

    data = {"q_func": calibrate} if by_function else {"dataloader": batches()}
    new = adaptor.quantize({"op": {key: INT8}}, model, **data)
    exact_on(model, new)
    assert "'norm' is not folded" in adaptor.summary(new)[0].reason


def test_a_signature_that_comes_later_is_looked_at():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).eval()
    model[1].running_mean.normal_()
    survey = Survey(model)
    survey.see(torch.rand(3, 4))
    assert survey.structure.folded
    survey.see(torch.rand(2, 6, 4))
    assert not survey.structure.folded


@pytest.mark.parametrize("cls", [ReadsWeight, ReadsNorm])
def test_a_fold_that_changes_the_outputs_is_given_up_alone(cls):
    survey = Survey(cls().eval())
    survey.see(torch.rand(1, 2, 4, 4))
    assert survey.structure.folded == {"last_norm": "last"}
    assert "changes the outputs" in survey.structure.unfolded["conv"]


def test_random_numbers_and_inputs_written_in_place_are_no_difference():
    class Noisy(ReadsWeight):
        def forward(self, x):
            x += 1
            return self.norm(self.conv(x)) * torch.rand(())

    survey, x = Survey(Noisy().eval()), torch.zeros(1, 2, 4, 4)
    survey.see(x)
    assert survey.structure.folded == {"norm": "conv"}
    assert not x.any()


def test_equal_ways_through_the_model_are_kept_once():
    survey = Survey(Branch().eval())
    for x in batches() * 3:
        survey.see(x)
    assert len(survey.traces) == 2


def test_data_that_can_be_read_once_is_left_to_calibration():
    model = nn.Sequential(nn.Conv2d(1, 2, 1)).eval()
    data = iter([*batches(), *batches()])
    new = PyTorchAdaptor().quantize({"op": {("0", "Conv2d"): INT8}}, model, data)
    assert next(data, None) is None
    assert float(new[0].input_scale) > 0


def test_batches_that_can_be_read_once_calibrate_also_where_a_fold_is_undone():
    model = Branch().eval()
    adaptor = PyTorchAdaptor({"example_inputs": batches()[0]})  # shows the bright branch alone
    new = quantized(adaptor, model, dataloader=iter([(x, 0) for x in batches()]))
    assert isinstance(new.norm, nn.BatchNorm2d)
    exact_on(model, new)


class ManyWays(nn.Module):
    """Another way through it for each brightness."""

    def __init__(self, count):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(1, 4, 1), normalised(4)
        self.ways = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(count))

    def forward(self, x):
        number = int(x.flatten()[0])
        y = self.conv(x)
        y = y if number == len(self.ways) - 1 else self.norm(y)
        return self.ways[number](y)


def test_of_many_ways_through_a_model_some_are_kept_and_all_are_heard():
    survey = Survey(ManyWays(50).eval())
    for number in range(50):
        survey.see(torch.full((1, 1, 3, 3), float(number)))
        assert bool(survey.structure.folded) == (number < 49)
    assert len(survey.traces) < 50


class OnceInAWhile(Branch):
    """Calibration data need not show that the norm is not always there."""

    def forward(self, x):
        y = self.conv(x)
        return self.bright(self.relu(self.norm(y) if x.flatten()[0] > 0.5 else y))


class BySize(OnceInAWhile):
    def forward(self, x):
        y = self.conv(x)
        return self.bright(self.relu(self.norm(y) if x.shape[0] > 2 else y))


class Checked(OnceInAWhile):
    """An assertion is no branch."""

    def forward(self, x):
        assert x.dim() == 4
        return self.bright(self.relu(self.norm(self.conv(x))))


@pytest.mark.parametrize("kind", [OnceInAWhile, BySize])
def test_where_a_forward_branches_nothing_is_folded_on_the_strength_of_what_was_seen(kind):
    model = kind().eval()
    seen, other = batches()[0], batches()[0][:2]
    seen[0, 0, 0, 0], other[0, 0, 0, 0] = 1.0, 0.2
    adaptor = PyTorchAdaptor({"dataloader": [seen]})
    new = quantized(adaptor, model, dataloader=[seen])
    (record,) = (r for r in adaptor.summary(new) if r.name == "conv")
    assert "branches on its inputs" in record.reason
    with torch.no_grad():
        assert decibels(new(seen), model(seen)) > 25
        assert decibels(new(other), model(other)) > 25


class Elsewhere(Branch):
    """What it branches on does not part the two."""

    def forward(self, x):
        y = self.relu(self.norm(self.conv(x)))
        return self.bright(y) if x.mean() > 0 and x.shape[0] > 1 else self.dark(y)


class Endless(Branch):
    def forward(self, x):
        while x.norm() > 1:
            x = x / 2
        return self.norm(self.conv(x))


@pytest.mark.parametrize(
    ("kind", "folded"),
    [(Checked, {"norm": "conv"}), (Elsewhere, {"norm": "conv"}), (Endless, {}), (OnceInAWhile, {}), (BySize, {})],
)
def test_what_a_branch_may_part_is_not_folded_and_the_rest_is(kind, folded):
    survey = Survey(kind().eval())
    survey.see(batches()[0])
    assert survey.structure.folded == folded
    assert bool(survey.structure.relus) == (kind in (Checked, Elsewhere))


class Counts(Checked):
    """A buffer that is another tensor behind each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x) if x.mean() > 0 else super().forward(-x)


def test_a_buffer_that_the_forward_replaces_is_the_same_when_its_ways_are_known():
    model = Counts().eval()
    calls = model.calls
    assert len(ways_through(model)) == 2
    assert model.calls is calls
    traced_functions(model)
    assert model.calls is calls


def test_what_is_quantized_already_is_refused():
    adaptor = PyTorchAdaptor({"dataloader": batches()})
    new = quantized(adaptor, Branch().eval(), dataloader=batches())
    with pytest.raises(ConfigError, match="quantized already"):
        PyTorchAdaptor({"dataloader": batches()}).query_fw_capability(new)


def test_a_compiled_model_is_refused():
    with pytest.raises(ConfigError, match=r"compiled by torch\.compile"):
        PyTorchAdaptor({"dataloader": batches()}).query_fw_capability(torch.compile(Branch().eval(), backend="eager"))
