"""Ops that a plan has in float are float when the runtime has loaded the model, and their weights are not rounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Kit
from typing import Any

import pytest

from neural_compressor.schemes import Plan

MIDDLES: dict[str, Callable[[Any, str], str]] = {
    "conv": lambda net, x: net.conv(x, (6, 6), name="middle"),
    "conv_relu": lambda net, x: net.op("Relu", net.conv(x, (6, 6), name="middle")),
    "conv_transpose": lambda net, x: net.op("ConvTranspose", x, net.weight(6, 6, 2, 2), name="middle"),
}


@pytest.mark.parametrize("quant_format", ["QDQ", "QOperator"])
@pytest.mark.parametrize("middle", MIDDLES)
def test_a_float_op_among_integers(kit: Kit, tmp_path: Path, middle: str, quant_format: str) -> None:
    net = kit.Net()
    last = net.conv(MIDDLES[middle](net, net.conv("x", (6, 6))), (6, 6))
    model = net.model({"x": [1, 6, 8, 8]}, last)
    whole = kit.plan_for(model, op_types=["Conv"])
    plan = Plan({key: scheme for key, scheme in whole.items() if key[0] != "middle"})
    quantized = kit.quantize(model, plan, quant_format=quant_format)
    kit.check_close(model, quantized)
    run = kit.executed(quantized, tmp_path)
    assert (run["QLinearConv"], run["DequantizeLinear"]) == (2, 2)  # none of them for a weight


def test_ops_in_integers_get_nothing_between_them(kit: Kit) -> None:
    net = kit.Net()
    model = net.model({"x": [1, 6, 8, 8]}, net.conv(net.op("Relu", net.conv("x", (6, 6))), (6, 6)))
    assert all(node.op_type != "Sum" for node in kit.quantize(model).graph)
