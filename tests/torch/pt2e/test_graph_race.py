"""Ops of a graph that float computes faster stay in float, by a race that a test decides."""

import pytest
import torch
from torch import nn

from neural_compressor.kernel_timings import KernelTimings
from neural_compressor.torch.export import export
from neural_compressor.torch.modules.kernels.race import Race, racing
from neural_compressor.torch.pt2e.graph_race import slower_in_graph
from neural_compressor.torch.quantization import DynamicQuantConfig, StaticQuantConfig, convert, prepare
from neural_compressor.torch.quantization.plans import plan_for


class Rigged(Race):
    """Every work runs, so that it is known to; int8 takes as long as ``cost`` says of its key, float 100."""

    def __init__(self, cost):
        super().__init__(KernelTimings(None))
        self.cost, self.keys = cost, []

    def microseconds(self, makers):
        for key, make in makers.items():
            with torch.no_grad():
                assert isinstance(make()(), torch.Tensor)
            self.keys.append(key)
        return {key: self.cost(key) if " int8: " in key else 100.0 for key in makers}


@pytest.fixture
def exported():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))),
        *(nn.Conv2d(8, 8, 3, groups=8), nn.ReLU6()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 4)),
    ).eval()
    return export(model, torch.rand(4, 3, 9, 9))


def plan(exported, race, config=None):
    with racing(race):
        return plan_for(exported, config or StaticQuantConfig())


def depthwise_lost(key):
    return 150.0 if "groups=8" in key else 50.0


def test_what_is_slower_stays_in_float_and_says_how_much(exported):
    chosen, left = plan(exported, Rigged(depthwise_lost))
    assert {name for name, _ in chosen} == {"0", "7", "9"}
    assert "float is faster here: 100 us against 150 us in int8 for an input of [4, 8, 4, 4]" in left["3", "Conv2d"]


def test_it_is_said_of_the_quantized_graph(exported):
    with racing(Rigged(depthwise_lost)):
        prepared = prepare(exported, StaticQuantConfig())
        prepared(torch.rand(4, 3, 9, 9))
        q_model = convert(prepared, quiet=True)
    assert "float is faster" in q_model.quantization.reasons["3", "Conv2d"]


def test_a_rule_that_speaks_of_it_has_it_quantized(exported):
    config = StaticQuantConfig().set_local("3", StaticQuantConfig())
    assert len(plan(exported, Rigged(depthwise_lost), config)[0]) == 4


def test_a_little_slower_is_no_reason(exported):
    assert len(plan(exported, Rigged(lambda key: 120.0))[0]) == 4


def test_a_model_that_would_stay_as_it_is_is_quantized_for_its_size(exported):
    race = Rigged(lambda key: 900.0)
    assert len(plan(exported, race)[0]) == 4
    assert len(race.keys) == 8


def test_without_a_race_nothing_is_left(exported):
    assert slower_in_graph(exported, plan(exported, None)[0]) == {}


def test_ops_are_raced_where_they_stand(exported):
    """Integers come from layers with nothing but ReLUs, pooling and views between; a mean and a sigmoid end them."""
    race = Rigged(lambda key: 1.0)
    plan(exported, race)
    around = [key.split("fed ")[1] for key in race.keys if " int8: " in key]
    expected = [(False, True), (True, False), (False, False), (False, False)]
    assert [tuple(part in text for part in ("True, emits", "emits True")) for text in around] == expected


def test_dynamic_layers_and_times_that_are_known(exported):
    """Times are kept: the second race makes nothing."""
    race = Race(KernelTimings(None))
    first = plan(exported, race, DynamicQuantConfig())

    def fail(works):
        raise AssertionError("raced again")

    race._measured = fail
    assert plan(exported, race, DynamicQuantConfig()) == first


def test_shapes_that_vary_are_raced_with_those_of_the_export():
    race = Rigged(lambda key: 1.0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    plan(export(model, torch.rand(4, 7, 8)), race)
    assert any("on (4, 7, 8)" in key for key in race.keys)
