"""What autotune is told."""

from __future__ import annotations

import pytest
from toy_configs import Alpha, Beta

from neural_compressor.config.tuning_config import TuningConfig
from neural_compressor.errors import ConfigError


def test_defaults_are_the_documented_ones() -> None:
    tuning = TuningConfig(config_set=Alpha())
    assert (tuning.sampler, tuning.tolerable_loss, tuning.max_trials) == (None, 0.01, 100)
    assert (tuning.higher_is_better, tuning.criterion, tuning.timeout, tuning.workspace) == (True, "relative", 0, None)
    promise = TuningConfig([Alpha()], None, 0.5, 3, higher_is_better=False, criterion="absolute").accuracy_criterion
    assert (promise.absolute, promise.relative, promise.higher_is_better) == (0.5, None, False)


def test_sets_are_tried_in_their_order_and_each_configuration_once() -> None:
    tuning = TuningConfig(config_set=[Alpha(bits=[4, 8]), Beta(), Alpha(bits=[8, 2])])
    assert [(type(c), c.bits) for c in tuning.candidates()] == [(Alpha, 4), (Alpha, 8), (Beta, 4), (Alpha, 2)]
    assert TuningConfig(config_set=Alpha(bits=[4, 8])).candidates() == [Alpha(bits=4), Alpha(bits=8)]
    assert TuningConfig(config_set=Alpha() + Beta()).candidates() == [Alpha() + Beta()]


def test_samplers_arrange_what_there_is() -> None:
    space = Alpha(bits=[1, 2, 3, 4, 5, 6, 7, 8])
    shuffled = [c.bits for c in TuningConfig(space, "random").candidates()]
    assert sorted(shuffled) == list(range(1, 9))
    assert shuffled != sorted(shuffled)
    assert shuffled == [c.bits for c in TuningConfig(space, "random").candidates()]
    assert shuffled != [c.bits for c in TuningConfig(space, "random", seed=1).candidates()]
    assert [c.bits for c in TuningConfig(space, lambda every: every[:1:-3]).candidates()] == [8, 5]
    with pytest.raises(ConfigError, match=r"the sampler returned Alpha\(bits=8, size=64\)"):
        TuningConfig(space, lambda every: [Alpha(bits=8, size=64)]).candidates()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ["needs config_set"]),
        ({"config_set": []}, ["config_set", "empty"]),
        ({"config_set": [Alpha(), "rtn"]}, ["config_set", "'rtn'"]),
        ({"config_set": None}, ["config_set", "None"]),
        ({"config_set": Alpha(), "tolerable_loss": "-1"}, ["tolerable_loss", "'-1'"]),
        ({"config_set": Alpha(), "tolerable_loss": float("nan")}, ["tolerable_loss"]),
        ({"config_set": Alpha(), "max_trials": 0}, ["max_trials", "0"]),
        ({"config_set": Alpha(), "timeout": -1}, ["timeout"]),
        ({"config_set": Alpha(), "criterion": "relativ"}, ["criterion", "'relative'"]),
        ({"config_set": Alpha(), "sampler": "sequental"}, ["sampler", "'sequential'"]),
        ({"config_set": Alpha(), "workspace": 3}, ["workspace", "3"]),
        ({"config_set": Alpha(), "max_trial": 3}, ["'max_trial'", "'max_trials'"]),
    ],
)
def test_nonsense_is_refused(fields: dict, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        TuningConfig(**fields)
    for words in said:
        assert words in str(caught.value)


def test_it_survives_a_trip_through_a_file(tmp_path) -> None:
    tuning = TuningConfig([Alpha(bits=[4, 8]).set_local("a", Beta()), Alpha() + Beta()], "random", workspace="runs")
    tuning.to_json_file(tmp_path / "tuning.json")
    assert TuningConfig.from_json_file(tmp_path / "tuning.json") == tuning


def test_a_list_in_brackets_is_the_list() -> None:
    configs = [Alpha(bits=4), Alpha(bits=8)]
    assert TuningConfig(config_set=(configs,)).candidates() == configs
