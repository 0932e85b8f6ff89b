"""Which ops are dynamic where a race on this machine decides: told what the race says, no time is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from neural_compressor.kernel_race import Race, Work
from neural_compressor.kernel_timings import KernelTimings
from neural_compressor.onnx.executor import Executor
from neural_compressor.onnx.quantization import DynamicQuantConfig
from neural_compressor.onnx.quantization.resolution import Resolution, resolve
from neural_compressor.onnx.quantization.source_model import read_float_model
from neural_compressor.onnx.runtime.op_race import racing


def net(build: Any, batch: int | str = "n") -> onnx.ModelProto:
    weights = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"], "first"),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("MatMul", ["t", "v"], ["y"], "second"),
    ]
    constants = {"k": weights.random((8, 3, 3, 3)), "w": weights.random((288, 40)), "v": weights.random((40, 5))}
    return build(nodes, {"x": [batch, 3, 6, 6]}, {"y": [batch, 5]}, constants)


def one_product(build: Any, shape: list[Any]) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "only")]
    return build(nodes, {"x": shape}, {"y": [*shape[:-1], 40]}, {"w": np.random.default_rng(0).random((12, 40))})


def in_integers(resolution: Resolution) -> set[str]:
    """The nodes that compute in integers; not those whose weights are stored."""
    return {name for (name, _), scheme in resolution.plan.items() if scheme.activation and not scheme.is_float}


def resolved(model: onnx.ModelProto, race: Race | None, config: DynamicQuantConfig | None = None) -> Resolution:
    with racing(race):
        config = config or DynamicQuantConfig()
        return resolve(config, Executor(read_float_model(model)))


@pytest.mark.parametrize(
    ("faster_in_float", "integers", "stored"),
    [
        (lambda key: False, {"conv", "first", "second"}, set()),
        (lambda key: "Conv" in key, {"first", "second"}, {"conv"}),
        (lambda key: "[40, 5]" in key, {"conv", "first"}, set()),
    ],
)
def test_the_race_decides_and_not_the_rules(
    build: Any, told: type[Any], faster_in_float: Callable[[str], bool], integers: set[str], stored: set[str]
) -> None:
    found = resolved(net(build), told(faster_in_float))
    assert in_integers(found) == integers
    assert {name for name, _ in found.stored} == stored
    assert all("1 us against 2 us" in why for why in found.slower.values())
    assert {name for name, _ in found.slower} == {"conv", "first", "second"} - integers


def test_without_a_race_the_rules_decide(build: Any) -> None:
    assert in_integers(resolved(net(build), None)) == {"first", "second"}


def test_an_op_is_raced_with_the_shape_the_model_says(build: Any, told: type[Any]) -> None:
    race = told(lambda key: False)
    resolved(net(build), race)
    assert any("MatMul" in key and "[288, 40]" in key and key.endswith("on [1, 288]") for key in race.asked)
    resolved(net(build, 3), race)
    assert any(key.endswith("on [3, 288]") for key in race.asked)


def test_what_is_named_is_not_raced(build: Any, told: type[Any]) -> None:
    config = DynamicQuantConfig().set_local("second", DynamicQuantConfig())
    found = resolved(net(build), told(lambda key: True), config)
    assert in_integers(found) == {"second"}


def test_a_model_that_integers_make_no_faster_is_quantized_for_its_size(build: Any, told: type[Any]) -> None:
    model = one_product(build, ["n", 12])
    assert in_integers(resolved(model, told(lambda key: True))) == {"only"}


def test_shapes_that_are_not_known_are_left_to_the_rules(build: Any, told: type[Any]) -> None:
    model = one_product(build, ["n", "words", 12])
    race = told(lambda key: True)
    assert in_integers(resolved(model, race)) == {"only"}
    assert not race.asked


def test_both_sides_of_a_race_run(build: Any) -> None:
    class Ran(Race):
        def _measured(self, works: Mapping[str, Work]) -> dict[str, float]:
            return {key: float(np.asarray(work()).size) for key, work in works.items()}

    ran = Ran(KernelTimings(None))
    assert in_integers(resolved(net(build), ran)) == {"conv", "first", "second"}
    known = ran.timings._all()
    assert sorted((key.split(":")[0], int(size)) for key, size in known.items() if "MatMul" in key) == [
        ("float", 5),
        ("float", 40),
        ("int8", 5),
        ("int8", 40),
    ]


def test_the_model_that_was_given_is_left_as_it_is(build: Any) -> None:
    model = net(build)
    before = model.SerializeToString()
    resolved(model, Race(KernelTimings(None)))
    assert model.SerializeToString() == before
