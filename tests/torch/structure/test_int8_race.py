"""Ops that float computes faster stay in float, by a race that a test decides."""

import pytest
import torch
from torch import nn

from neural_compressor import quantization, training
from neural_compressor.config import PostTrainingQuantConfig, QuantizationAwareTrainingConfig
from neural_compressor.kernel_timings import KernelTimings
from neural_compressor.strategy.build import build_space
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.modules.kernels.race import Race, racing
from neural_compressor.torch.structure.int8_race import slower_in_integers


class Rigged(Race):
    """Every work runs, so that it is known to; int8 takes as long as ``cost`` says of its key."""

    def __init__(self, cost):
        super().__init__(KernelTimings(None))
        self.cost, self.keys = cost, []

    def microseconds(self, makers):
        for key, make in makers.items():
            with torch.no_grad():
                assert isinstance(make()(), torch.Tensor)
            self.keys.append(key)
        return {key: self.cost(key) if " int8: " in key else 100.0 for key in makers}


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU6()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)),
    ).eval()


DATA = [(torch.rand(4, 3, 9, 9), torch.zeros(4))]
STATIC = PostTrainingQuantConfig(approach="static")


def plan(race, conf=STATIC):
    adaptor = PyTorchAdaptor({"dataloader": DATA})
    with racing(race):
        space = build_space(adaptor.query_fw_capability(model()), conf)
    return space, space.default_plan()


def test_what_is_slower_in_integers_stays_in_float_and_says_how_much():
    space, chosen = plan(Rigged(lambda key: 150.0 if "groups=8" in key else 50.0))
    assert {key[0] for key, scheme in chosen.items() if scheme.is_float} == {"3"}
    reason = space.ops["3", "Conv2d"].reason
    assert "float is faster here: 100 us against 150 us" in reason
    assert "[4, 8, 9, 9]" in reason


def test_a_calibration_function_shows_the_shapes_that_a_loader_shows(tmp_path):
    calls = []

    def calibrate(given):
        for x, _ in DATA * 2:
            calls.append(given(x).shape)

    races = [Rigged(lambda key: 150.0 if "groups=8" in key else 50.0) for _ in range(2)]
    results = []
    for race, data in zip(races, ({"calib_dataloader": DATA}, {"calib_func": calibrate}), strict=True):
        with racing(race):
            results.append(
                quantization.fit(model(), STATIC, workspace=tmp_path / str(len(results)), quiet=True, **data)
            )
    assert races[0].keys == races[1].keys != []
    assert len(calls) == 2  # the run that shows the shapes ends before the model has run
    reasons = [{record.name: record.reason for record in found.result.ops}["3"] for found in results]
    assert reasons[0] == reasons[1]
    assert "float is faster here: 100 us against 150 us" in reasons[1]


def test_a_rule_that_speaks_of_it_has_it_quantized():
    conf = PostTrainingQuantConfig(approach="static", op_name_dict={"3": {"weight": {"dtype": ["int8"]}}})
    _, chosen = plan(Rigged(lambda key: 150.0 if "groups=8" in key else 50.0), conf)
    assert not any(scheme.is_float for _, scheme in chosen.items())


def test_a_little_slower_is_not_slower():
    _, chosen = plan(Rigged(lambda key: 115.0))
    assert not any(scheme.is_float for _, scheme in chosen.items())


def test_where_nothing_is_raced_everything_is_quantized():
    _, chosen = plan(None)
    assert not any(scheme.is_float for _, scheme in chosen.items())


def test_each_op_is_raced_where_it_stands():
    race = Rigged(lambda key: 50.0)
    plan(race)
    static = [key for key in race.keys if key.startswith("static int8")]
    places = ["fed True" in key for key in static], ["emits True" in key for key in static]
    # The image comes in float; a GELU and an average lie between the others.
    assert places == ([False, True, False, False], [True, False, False, False])
    assert sum(key.startswith("dynamic") for key in race.keys) == 4


def test_large_batches_are_cut():
    race = Rigged(lambda key: 50.0)
    big = nn.Sequential(nn.Conv2d(64, 8, 1)).eval()
    with racing(race):
        adaptor = PyTorchAdaptor({"dataloader": [(torch.rand(64, 64, 32, 32), 0)]})
        adaptor.query_fw_capability(big)
    assert all("(16, 64, 32, 32)" in key for key in race.keys)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_every_rank_run_the_race(dims):
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims](4, 8, 3, padding=1)
    race = Rigged(lambda key: 200.0)
    with racing(race):
        adaptor = PyTorchAdaptor({"dataloader": [(torch.rand(2, 4, *[5] * dims), 0)]})
        adaptor.query_fw_capability(nn.Sequential(conv).eval())
    assert any(key.startswith("static int8") for key in race.keys)


def test_without_inputs_nothing_is_known():
    with racing(Rigged(lambda key: 500.0)):
        assert slower_in_integers(model(), {}, None, None) == {}


def test_a_model_that_integers_make_no_faster_is_quantized_for_its_size(caplog):
    with caplog.at_level("INFO", logger="neural_compressor"):
        _, chosen = plan(Rigged(lambda key: 500.0))
    assert not any(scheme.is_float for _, scheme in chosen.items())
    assert "none of the 4 ops faster here" in caplog.text


def test_an_op_that_was_not_raced_does_not_keep_the_others_in_float():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.out = nn.GRU(16, 32), nn.Linear(32, 5)

        def forward(self, x):
            return self.out(self.gru(x)[0])

    adaptor = PyTorchAdaptor({"dataloader": [(torch.randn(5, 2, 16), 0)]})
    with racing(Rigged(lambda key: 500.0)):
        space = build_space(adaptor.query_fw_capability(Recurrent().eval()), STATIC)
    assert not space.default_plan().ops["out", "Linear"].is_float


def test_images_without_a_batch_are_not_raced():
    race = Rigged(lambda key: 500.0)
    with racing(race):
        PyTorchAdaptor({"example_inputs": torch.rand(3, 9, 9)}).query_fw_capability(
            nn.Sequential(nn.Conv2d(3, 4, 3)).eval()
        )
    assert not race.keys


def test_a_race_that_cannot_be_run_leaves_ops_quantized():
    class Broken(Race):
        def microseconds(self, makers):
            raise RuntimeError("no engine")

    _, chosen = plan(Broken(KernelTimings(None)))
    assert not any(scheme.is_float for _, scheme in chosen.items())


def test_a_training_says_why_a_layer_stayed_in_float(capsys):
    conf = QuantizationAwareTrainingConfig()
    with racing(Rigged(lambda key: 150.0 if "groups=8" in key else 50.0)):
        manager = training.prepare_compression(model(), conf, example_inputs=DATA[0][0])
        manager.callbacks.on_train_begin()
        manager.model.train()(DATA[0][0])
        manager.callbacks.on_train_end()
    assert "float is faster here: 100 us against 150 us" in " ".join(capsys.readouterr().err.split())
