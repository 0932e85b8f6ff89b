"""Convolutions that integers make no faster stay in float, unless they are named or integers are there anyway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Kit
from typing import Any

import onnx_ir as ir
import pytest

from neural_compressor.onnx.methods.static.layout import conv_kind
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.schemes import OpKey


def left_of(kit: Kit, model: ir.Model) -> dict[OpKey, str]:
    left: dict[OpKey, str] = {}
    quantize_static(model, kit.plan_for(model), Samples(kit.Reader(kit.feeds_of(model))), left=left)
    return left


def gated(kit: Kit) -> ir.Model:
    """Depthwise between two functions that have no integer kernel."""
    net = kit.Net()
    hidden = net.op("Tanh", net.conv("x", (3, 8), name="first"))
    hidden = net.op("Tanh", net.conv(hidden, (8, 8), group=8, name="depthwise"))
    return net.model({"x": [1, 3, 6, 6]}, net.conv(hidden, (8, 4), name="last"))


@pytest.mark.parametrize(
    ("weight", "group", "image", "kind"),
    [
        ((8, 8, 3, 3), 1, [1, 8, 6, 6], ""),
        ((8, 1, 3, 3), 8, [1, 8, 6, 6], "depthwise"),
        ((8, 1, 3), 8, [1, 8, 6], ""),
        ((16, 1, 3, 3), 8, [1, 8, 6, 6], "slow"),
        ((8, 4, 3, 3), 2, [1, 8, 6, 6], "slow"),
        ((16, 8, 3, 3), 2, [1, 16, 6, 6], ""),
        ((8, 16, 1, 1), 1, [1, 16, 1, 1], "small"),
        ((256, 256, 1, 1), 1, [1, 256, 1, 1], ""),
        ((8, 16, 1, 1), 1, [1, 16, "h", "w"], ""),
    ],
    ids=[
        *("whole", "depthwise", "depthwise_1d", "two_a_channel", "groups_of_four", "groups_of_eight"),
        *("one_place", "large_at_one_place", "unknown_size"),
    ],
)
def test_which_are_of_which_kind(kit: Kit, weight: tuple[int, ...], group: int, image: list[Any], kind: str) -> None:
    net = kit.Net()
    pads = [weight[-1] // 2] * 2 * (len(weight) - 2)
    model = net.model({"x": image}, net.op("Conv", "x", net.weight(*weight), group=group, pads=pads))
    (conv,) = model.graph
    assert conv_kind(conv) == kind


def test_a_depthwise_convolution_between_floats_stays_in_float(kit: Kit, tmp_path: Path) -> None:
    model = gated(kit)
    assert {name: "before it" in reason for (name, _), reason in left_of(kit, model).items()} == {"depthwise": True}
    quantized = kit.quantize(model)
    kit.check_close(model, quantized)
    assert kit.executed(quantized, tmp_path)["QLinearConv"] == 2


def test_one_that_is_meant_runs_in_integers(kit: Kit, tmp_path: Path) -> None:
    assert kit.executed(kit.quantize(gated(kit), named=["depthwise"]), tmp_path)["QLinearConv"] == 3


def test_a_depthwise_convolution_that_is_given_integers_takes_them(kit: Kit) -> None:
    net = kit.Net()
    hidden = net.op("Relu", net.conv("x", (3, 8)))
    hidden = net.op("Relu", net.conv(hidden, (8, 8), group=8))
    assert left_of(kit, net.model({"x": [1, 3, 6, 6]}, net.conv(hidden, (8, 4)))) == {}


def test_and_gives_floats_where_only_those_are_read(kit: Kit) -> None:
    net = kit.Net()
    hidden = net.op("Relu", net.conv("x", (3, 8)))
    hidden = net.op("Tanh", net.conv(hidden, (8, 8), group=8, name="depthwise"))
    left = left_of(kit, net.model({"x": [1, 3, 6, 6]}, net.conv(hidden, (8, 4))))
    assert "behind it" in left["depthwise", "Conv"]


def test_groups_of_few_channels_stay_in_float_even_among_integers(kit: Kit, tmp_path: Path) -> None:
    net = kit.Net()
    hidden = net.op("Relu", net.conv("x", (3, 8)))
    hidden = net.op("Relu", net.conv(hidden, (8, 8), group=4, name="grouped"))
    model = net.model({"x": [1, 3, 6, 6]}, net.conv(hidden, (8, 4)))
    assert "few channels" in left_of(kit, model)["grouped", "Conv"]
    quantized = kit.quantize(model)
    kit.check_close(model, quantized)
    assert kit.executed(quantized, tmp_path)["QLinearConv"] == 2


@pytest.mark.parametrize(
    ("before", "fed"), [(lambda net, x: net.op("Tanh", x), False), (lambda net, x: x, True)], ids=["floats", "integers"]
)
def test_channels_averaged_over_an_image_are_weighed_in_what_they_come_in(
    kit: Kit, before: Callable[[Any, str], str], fed: bool
) -> None:
    net = kit.Net()
    image = before(net, net.conv("x", (3, 8)))
    gate = net.op("Relu", net.conv(net.op("GlobalAveragePool", image), (8, 4), 1, name="squeeze"))
    gate = net.op("HardSigmoid", net.conv(gate, (4, 8), 1, name="excite"))
    model = net.model({"x": [1, 3, 6, 6]}, net.conv(net.op("Mul", image, gate), (8, 4)))
    left = {name for name, _ in left_of(kit, model)}
    assert left & {"squeeze", "excite"} == (set() if fed else {"squeeze", "excite"})


def test_other_providers_have_kernels_of_their_own(kit: Kit) -> None:
    quantized = kit.quantize(gated(kit), target="TensorrtExecutionProvider")
    convs = [node for node in quantized.graph if node.op_type == "Conv"]
    assert [node.inputs[0].producer().op_type for node in convs] == ["DequantizeLinear"] * 3
