"""What stays in float where a race on this machine decides: told what the race says, no time is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace as Kit
from typing import Any

import onnx_ir as ir
import pytest

from neural_compressor.kernel_race import Race, Work
from neural_compressor.kernel_timings import KernelTimings
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.ops import quantizable_nodes
from neural_compressor.onnx.methods.static import integer_race
from neural_compressor.onnx.methods.static.integer_race import IntegerRace, Place
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.fusion_check import as_run
from neural_compressor.onnx.runtime.op_race import known_shapes, racing


def net(kit: Kit) -> ir.Model:
    """A depthwise convolution between functions that have no integer kernel, and a product."""
    net = kit.Net()
    hidden = net.op("Tanh", net.conv("x", (3, 8), name="first"))
    hidden = net.op("Tanh", net.conv(hidden, (8, 8), group=8, name="depthwise"))
    flat = net.op("Flatten", net.op("Relu", net.conv(hidden, (8, 4), name="last")))
    return net.model({"x": ["n", 3, 6, 6]}, net.op("MatMul", flat, net.weight(144, 5), name="product"))


def left_of(kit: Kit, model: ir.Model, race: Race | None) -> dict[str, str]:
    left: dict[Any, str] = {}
    with racing(race):
        samples = Samples(kit.Reader(kit.feeds_of(model)))
        quantized = quantize_static(model, kit.plan_for(model), samples, left=left)
    kit.check_close(model, quantized)
    return {name: reason for (name, kind), reason in left.items() if kind in integer_race.RACED}


def test_the_race_decides_and_not_the_rules(kit: Kit, told: type[Any]) -> None:
    assert set(left_of(kit, net(kit), None)) == {"depthwise"}
    assert left_of(kit, net(kit), told(lambda key: False)) == {}
    left = left_of(kit, net(kit), told(lambda key: key.startswith("float: MatMul")))
    assert set(left) == {"product"}
    assert "1 us against 2 us" in left["product"]


def test_an_op_is_raced_where_it_stands_and_the_largest_first(kit: Kit, told: type[Any]) -> None:
    race = told(lambda key: False)
    left_of(kit, net(kit), race)
    assert [key.split("]")[0] for key in race.asked][:2] == ["Conv [4, 8, 3, 3", "Conv [8, 3, 3, 3"]
    (last,) = (key for key in race.asked if key.startswith("Conv [4, 8"))
    assert last.endswith("on [2, 8, 6, 6], fed False, emits True")
    (product,) = (key for key in race.asked if key.startswith("MatMul"))
    assert product.endswith("on [2, 144], fed True, emits False")


def test_what_the_neighbours_lose_is_raced_anew(kit: Kit, told: type[Any]) -> None:
    race = told(lambda key: key.startswith("float: Conv [4"))
    assert set(left_of(kit, net(kit), race)) == {"last"}
    products = [key for key in race.asked if key.startswith("MatMul")]
    assert ["fed True" in key for key in products] == [True, False]


def test_without_time_the_rules_decide(kit: Kit, told: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IntegerRace.__init__, "__defaults__", (-1.0,))
    assert set(left_of(kit, net(kit), told(lambda key: True))) == {"depthwise"}


def test_a_model_that_integers_make_no_faster_is_quantized_for_its_size(
    kit: Kit, told: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert left_of(kit, net(kit), told(lambda key: True)).keys() == {"depthwise"}
    assert "none of the 4 ops with weights faster" in caplog.text


def test_an_op_that_does_not_run_alone_is_left_to_the_rules(kit: Kit, told: type[Any]) -> None:
    class Broken(told):  # type: ignore[name-defined,misc]
        def microseconds(self, makers: Mapping[str, Callable[[], Work]]) -> dict[str, float]:
            raise RuntimeError("not implemented")

    assert set(left_of(kit, net(kit), Broken(lambda key: True))) == {"depthwise"}


def test_ops_that_would_take_long_are_not_raced(kit: Kit, told: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_race, "MOST_PRODUCTS", 10_000)
    race = told(lambda key: False)
    left_of(kit, net(kit), race)
    assert {key.split("]")[0] for key in race.asked} == {"Conv [8, 1, 3, 3", "MatMul [144, 5"}


def test_a_product_with_its_summand_is_what_the_plan_calls_it(kit: Kit, told: type[Any]) -> None:
    """The two become a Gemm on the way."""
    net = kit.Net()
    hidden = net.op("MatMul", "x", net.weight(12, 8), name="first")
    hidden = net.op("Relu", net.op("Add", hidden, net.weight(8)))
    model = net.model({"x": [4, 12]}, net.op("MatMul", hidden, net.weight(8, 5), name="second"))
    race = told(lambda key: key.startswith("float: Gemm"))
    left: dict[Any, str] = {}
    with racing(race):
        samples = Samples(kit.Reader(kit.feeds_of(model)))
        kit.check_close(model, quantize_static(model, kit.plan_for(model), samples, left=left))
    assert ("first", "MatMul") in left


def test_a_gemm_that_is_fused_in_float_stays_there(kit: Kit, told: type[Any]) -> None:
    net = kit.Net()
    hidden = net.op("Relu", net.op("Gemm", "x", net.weight(12, 8), net.weight(8), name="first"))
    second = net.op("MatMul", hidden, net.weight(8, 5), name="second")
    other = net.op("MatMul", net.op("Tanh", "x"), net.weight(12, 3), name="other")
    model = net.model({"x": [4, 12]}, second, other)
    left = left_of(kit, model, told(lambda key: key.startswith("float: MatMul [8, 5]")))
    assert set(left) == {"first", "second"}
    assert "with the Relu behind it" in left["first"]


def test_named_ops_are_not_raced(kit: Kit, told: type[Any]) -> None:
    race = told(lambda key: True)
    with racing(race):
        kit.quantize(net(kit), named=["first", "depthwise", "last", "product"])
    assert race.asked == []


def test_other_providers_are_not_raced(kit: Kit, told: type[Any]) -> None:
    race = told(lambda key: True)
    with racing(race):
        kit.quantize(net(kit), target="TensorrtExecutionProvider")
    assert race.asked == []


def test_shapes_are_those_of_a_sample(kit: Kit) -> None:
    model = net(kit)
    assert known_shapes(model, {}) == {}
    shapes = known_shapes(model, {"x": (5, 3, 6, 6)})
    assert shapes["x"] == (5, 3, 6, 6)
    assert shapes[str(model.graph[0].outputs[0].name)] == (5, 8, 6, 6)
    assert model.graph.inputs[0].shape == ir.Shape(["n", 3, 6, 6])


INTEGER = {"Conv": {"QLinearConv"}, "MatMul": {"QLinearMatMul", "MatMulIntegerToFloat"}, "Gemm": {"QGemm"}}


@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("emits", [True, False])
@pytest.mark.parametrize("kind", INTEGER)
def test_what_is_raced_is_what_would_run(kit: Kit, kind: str, fed: bool, emits: bool) -> None:
    net = kit.Net()
    weight = net.weight(6, 3, 3, 3) if kind == "Conv" else net.weight(12, 6)
    bias = [] if kind == "MatMul" else [net.weight(6)]
    shape = (2, 3, 6, 6) if kind == "Conv" else (2, 12)
    model = net.model({"x": shape}, net.op(kind, "x", weight, *bias, name="op"))
    (info,) = quantizable_nodes(model).values()
    place = Place(shape, fed, emits)
    for integers in (True, False):
        proto = integer_race._model(info, place, integers)
        run = as_run(read_model(proto), ["CPUExecutionProvider"])
        kinds = {node.op_type for node in run.values()}
        assert kinds & INTEGER[kind] if integers else kind in kinds or f"Fused{kind}" in kinds
        integer_race._work(info, place, integers)()


def test_a_real_race_is_remembered(kit: Kit) -> None:
    race = Race(KernelTimings(None))
    left_of(kit, net(kit), race)
    known = dict(race.timings._all())
    assert len(known) >= 8
    assert all(value > 0 for value in known.values())
    left_of(kit, net(kit), race)
    assert race.timings._all() == known
