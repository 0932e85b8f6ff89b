"""Options of the algorithms: one description each, from which all else follows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import Field, PositiveInt

from neural_compressor.algorithms import (
    ALGORITHMS,
    InputStatistics,
    LayerOptions,
    LayerResult,
    needs_data,
    options_of,
    options_table,
    register_algorithm,
    rtn,
)
from neural_compressor.config.method_options import RECIPE_OPTIONS, method_from_args, method_of
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import Method, PerGroup, TensorScheme

SCHEME = TensorScheme(dtype("int4"), True, PerGroup(32))
GUIDE = Path(__file__).parents[2] / "docs" / "algorithm_options.md"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ALGORITHMS, "_items", dict(ALGORITHMS._items))


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_every_option_says_what_it_does_in_a_line(name: str) -> None:
    for option, field in ALGORITHMS[name].options_model.model_fields.items():
        assert field.description, option
        assert "\n" not in field.description
        assert len(field.description) < 110, option


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_each_option_is_for_the_function_or_for_the_executor(name: str) -> None:
    model = ALGORITHMS[name].options_model
    mine, theirs = model.names(executor=False), model.names(executor=True)
    assert sorted((*mine, *theirs)) == sorted(model.model_fields)
    assert set(model().for_function()) == set(mine)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gptq", {"act_oder": True}, "gptq.*no option 'act_oder'; did you mean 'act_order'"),
        ("gptq", {"percdamp": 2.0}, "gptq.*percdamp: got 2.0"),
        ("gptq", {"percdamp": float("nan")}, "gptq.*percdamp: got nan"),
        ("gptq", {"act_order": 1}, "gptq.*act_order: got 1"),
        ("gptq", {"act_order": True, "hybrid_order": True}, "gptq.*choose one"),
        ("rtn", {"importance": True}, "rtn.*importance: got True.*search='mse'"),
        ("hqq", {"p": 0}, "hqq.*p: got 0"),
        ("hqq", {"full_range": True}, "hqq.*no option 'full_range'"),
        ("awq", {"absorb": ["norm"]}, "awq.*absorb"),
        ("teq", {"steps": 0}, "teq.*steps: got 0"),
        ("autoround", {"iters": True}, "autoround.*iters: got True"),
        ("grptq", {}, "did you mean 'gptq'"),
    ],
)
def test_a_method_with_options_that_make_no_sense_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        options_of(Method(name, options))


def test_methods_that_mean_the_same_are_equal() -> None:
    gptq = ALGORITHMS["gptq"]
    assert gptq.method(percdamp=0.01, act_order=False) == gptq.method() == Method("gptq")
    assert gptq.method(block_size=2048) == Method("gptq"), "more columns than stay in the cache change nothing"
    assert options_of(gptq.method(search=None)).for_function()["search"] is None
    absorbing = ALGORITHMS["awq"].method(absorb={"norm": ["a", "b"]})
    assert options_of(Method.from_dict(absorbing.to_dict())) == options_of(absorbing)


def test_data_is_needed_by_algorithms_and_by_options() -> None:
    assert needs_data(Method("gptq"))
    assert needs_data(Method("autoround"))
    assert not needs_data(Method("hqq"))
    assert not needs_data(Method("rtn", {"search": "mse"}))
    assert needs_data(Method("rtn", {"search": "mse", "importance": True}))


def test_what_is_for_executors_means_nothing_to_one_weight(weight: Any, statistics: InputStatistics) -> None:
    with pytest.raises(ConfigError, match="gptq: hadamard says how a model is walked"):
        ALGORITHMS["gptq"](weight, SCHEME, statistics, hadamard=True)
    with pytest.raises(QuantizationError, match="autoround works on whole blocks"):
        ALGORITHMS["autoround"](weight, SCHEME, statistics)


class ShrunkOptions(LayerOptions):
    """The options of an algorithm of another package."""

    times: PositiveInt = Field(default=2, description="how often it is halved")


def test_a_registered_algorithm_brings_its_own_options(weight: Any, registry: None) -> None:
    @register_algorithm("shrunk", options=ShrunkOptions)
    def shrunk(weight: Any, scheme: TensorScheme, statistics: Any, *, times: int) -> LayerResult:
        return LayerResult(rtn(weight / 2**times, scheme))

    twice, thrice = (ALGORITHMS["shrunk"](weight, SCHEME, **given).dequantize() for given in ({}, {"times": 3}))
    np.testing.assert_allclose(twice, thrice * 2, rtol=1e-6)
    assert options_of(Method("shrunk", {"nsamples": 4})).for_function() == {"times": 2}
    for options, said in (
        ({"time": 1}, "shrunk.*no option 'time'; did you mean 'times'"),
        ({"times": 0}, "times: got 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            ALGORITHMS["shrunk"].method(**options)
    assert method_of("shrunk", {"bits": 4, "times": 5}, {}) == Method("shrunk", {"times": 5})
    assert "| `times` | 2 | how often it is halved |" in options_table("shrunk")


def test_without_a_model_the_parameters_of_the_function_are_the_options(weight: Any, registry: None) -> None:
    @register_algorithm("plain")
    def plain(weight: Any, scheme: Any, statistics: Any = None, *, times: int = 2, rotation: Any = None) -> LayerResult:
        return LayerResult(rtn(weight / 2**times, scheme))

    assert ALGORITHMS["plain"].method(times=2) == Method("plain")
    assert ALGORITHMS["plain"].takes("rotation")
    assert not ALGORITHMS["plain"].takes("use_up")
    for unknown in ("time", "rotation"):
        with pytest.raises(ConfigError, match=f"plain.*no option '{unknown}'"):
            options_of(Method("plain", {unknown: 1}))

    @register_algorithm("any")
    def takes_any(weight: Any, scheme: Any, statistics: Any = None, **options: Any) -> LayerResult:
        return LayerResult(rtn(weight * options["factor"], scheme))

    found = ALGORITHMS["any"](weight, SCHEME, factor=np.float32(1)).dequantize()
    np.testing.assert_array_equal(found, rtn(weight, SCHEME).dequantize())


def test_a_model_of_another_kind_is_refused(registry: None) -> None:
    with pytest.raises(ConfigError, match=r"'wrong'.*derived from LayerOptions"):
        register_algorithm("wrong", options=dict)  # type: ignore[arg-type]


def test_recipes_spell_options_through_their_table() -> None:
    every = {option for name in ALGORITHMS.names() for option in ALGORITHMS[name].options_model.model_fields}
    assert {each for each in RECIPE_OPTIONS.values() if isinstance(each, str)} <= every
    args = {"mse": False, "actorder": True, "correct_upstream": False, "percdamp": 0.1}
    options = {"search": None, "act_order": True, "upstream": False, "percdamp": 0.1}
    assert method_from_args("gptq", args) == Method("gptq", options)
    assert method_from_args("gptq", options) == Method("gptq", options)
    with pytest.raises(ConfigError, match="rtn_args has no 'actorder'"):
        method_from_args("rtn", {"actorder": True})


def test_the_example_of_the_guide_runs_as_printed(weight: Any, registry: None) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, GUIDE.name, "exec", dont_inherit=True), {"__name__": "guide"})
    assert ALGORITHMS["coarse"](weight, SCHEME, passes=1).dequantize().shape == weight.shape
    with pytest.raises(ConfigError, match=r"coarse.*passes: got 0"):
        ALGORITHMS["coarse"].method(passes=0)


def test_the_guide_lists_the_options_there_are() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    for name in ALGORITHMS.names():
        assert f"## {name}\n\n{options_table(name)}\n" in guide, f"print(options_table({name!r})) into {GUIDE.name}"
