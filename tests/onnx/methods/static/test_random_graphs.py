"""Graphs put together at random: whatever the neighbours, results are valid, close and the same at every level."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_TENSOR, Plan, TensorScheme, float_op

Kit = SimpleNamespace
_CHANNELS = 4


def random_graph(kit: Kit, seed: int) -> ir.Model:
    """Ops on images of one size, each reading tensors made before it; some tensors have no reader, some are outputs."""
    net = kit.Net(seed=seed)
    rng = np.random.default_rng(seed)
    made = ["x", net.conv("x", (_CHANNELS, _CHANNELS))]

    def any_made() -> str:
        return str(made[max(0, len(made) - 1 - int(rng.integers(0, 4)))])

    def twice(x: str) -> str:
        return str(net.op("Concat", x, any_made(), axis=1))

    def halves(x: str) -> str:
        first, second = net.op("Split", twice(x), axis=1, outputs=2)
        return str(net.op("Add", first, second))

    def there_and_back(x: str) -> str:
        turned = net.op("Transpose", x, perm=[0, 2, 3, 1])
        return str(net.op("Transpose", net.op("Relu", turned) if rng.random() < 0.5 else turned, perm=[0, 3, 1, 2]))

    def gated(x: str) -> str:
        gate = net.op(rng.choice(["Sigmoid", "HardSigmoid"]), net.conv(net.op("GlobalAveragePool", x), (4, 4), 1))
        return str(net.op("Mul", x, gate))

    def product(x: str) -> str:
        rows = net.op("Reshape", x, net.constant(np.asarray([1, _CHANNELS, 36])))
        y = net.op("MatMul", rows, net.weight(36, 36, size=0.1))
        if rng.random() < 0.5:
            y = net.op("Relu", net.op("Add", y, net.weight(36)))
        return str(net.op("Reshape", y, net.constant(np.asarray([1, _CHANNELS, 6, 6]))))

    def hard_swish(x: str) -> str:
        a = net.conv(x, (_CHANNELS, _CHANNELS))
        gate = net.op("Clip", net.op("Add", a, net.constant(3.0)), net.constant(0.0), net.constant(6.0))
        y = net.op("Div", net.op("Mul", a, gate), net.constant(6.0))
        shifted = net.op("Add", net.op("Mul", net.constant([1.5]), y), net.constant([-0.2]))
        return net.conv(shifted, (_CHANNELS, _CHANNELS)) if rng.random() < 0.5 else str(shifted)

    makers: list[Any] = [
        hard_swish,
        lambda x: net.conv(x, (_CHANNELS, _CHANNELS), group=int(rng.choice([1, 2, 4]))),
        lambda x: net.op("Relu", net.conv(x, (_CHANNELS, _CHANNELS))),
        lambda x: net.op("Clip", net.conv(x, (_CHANNELS, _CHANNELS)), net.constant(-1.0), net.constant(1.0)),
        lambda x: net.op("Add", x, any_made()),
        lambda x: net.op("Relu", net.op("Add", net.conv(x, (4, 4)), any_made())),
        lambda x: net.op("Mul", x, net.constant(0.7)),
        lambda x: net.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4),
        lambda x: net.op("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4),
        lambda x: net.conv(twice(x), (2 * _CHANNELS, _CHANNELS)),
        halves,
        there_and_back,
        gated,
        product,
        lambda x: net.op("Tanh", x),
        lambda x: net.op("LeakyRelu", x),
        lambda x: net.op("Slice", net.op("Resize", x, "", net.constant([1.0, 1, 2, 2]), mode="nearest"),
                         net.constant([0, 0]), net.constant([6, 6]), net.constant([2, 3])),
        lambda x: net.op("Softmax", x, axis=1),
    ]  # fmt: skip
    for _ in range(12):
        made.append(makers[int(rng.integers(len(makers)))](any_made()))
    outputs = dict.fromkeys([made[-1], made[int(rng.integers(2, len(made)))]])
    return net.model({"x": [1, _CHANNELS, 6, 6]}, *outputs)


def random_plan(kit: Kit, model: ir.Model, rng: np.random.Generator, eight_bits: bool) -> Plan:
    """Most ops quantized, some in float, and now and then one with types of its own."""
    kinds = ["uint8", "int8"] if eight_bits else ["uint8", "int8", "uint16"]
    ops = {}
    for key, scheme in kit.plan_for(model).items():
        draw = rng.random()
        if draw < 0.15:
            ops[key] = float_op()
        elif draw < 0.25:
            activation = TensorScheme(dtype(str(rng.choice(kinds))), symmetric=bool(rng.random() < 0.5))
            weight = None if scheme.weight is None else replace(scheme.weight, granularity=PER_TENSOR)
            ops[key] = replace(scheme, activation=activation, weight=weight)
        else:
            ops[key] = scheme
    return Plan(ops)


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs(kit: Kit, seed: int) -> None:
    rng = np.random.default_rng(seed + 1000)
    model = random_graph(kit, seed)
    quant_format = ("QDQ", "QOperator")[seed % 2]
    every = [str(node.name) for node in model.graph]
    options: dict[str, Any] = {"quant_format": quant_format, "named": every if rng.random() < 0.3 else ()}
    if quant_format == "QDQ":
        options |= {name: bool(rng.random() < 0.2) for name in ("dedicated_qdq_pair", "add_qdq_pair_to_weight")}
    quantized = kit.quantize(model, random_plan(kit, model, rng, quant_format == "QOperator"), **options)
    kit.check_close(model, quantized, tolerance=0.25, full_check=quant_format == "QDQ")
