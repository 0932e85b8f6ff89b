"""The constants of ops as floats, however they are stored, against what the runtime computes with them."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from neural_compressor.dtypes import dtype
from neural_compressor.onnx.adaptor.inspection import constants_of, nodes_of, weights_of
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.methods.dynamic import quantize_dynamic
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.methods.weight_only.method import WeightOnlyOptions
from neural_compressor.onnx.methods.weight_only.quantizer import quantize_weight_only
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, OpScheme, PerGroup, Plan, TensorScheme

KEY = ("product", "MatMul")


@pytest.fixture
def model(build):
    weight = np.random.default_rng(0).normal(size=(64, 48)) * np.linspace(0.1, 3, 48)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    return normalise(ir.from_proto(build([node], {"x": ["n", 64]}, {"y": ["n", 48]}, {"w": weight})))


def stored(model):
    node = next(n for n in model.graph if n.name == "product")
    return next(array for array in weights_of(list(nodes_of(node, ["product"]))) if array.shape == (64, 48))


def effective(model):
    """The matrix that the runtime multiplies with: what comes out for the unit vectors."""
    return make_session(model, level="none").run(None, {"x": np.eye(64, dtype=np.float32)})[0]


class Ones:
    """Calibration data whose range has 1 on the grid."""

    def get_next(self):
        self.left = getattr(self, "left", 2) - 1
        return {"x": np.eye(64, dtype=np.float32)} if self.left > 0 else None


@pytest.mark.parametrize("granularity", [PER_TENSOR, PER_CHANNEL])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    "options",
    [StaticOptions(), StaticOptions(add_qdq_pair_to_weight=True), StaticOptions(quant_format="QOperator")],
    ids=["QDQ", "quantizer on the weight", "QOperator"],
)
def test_static_weights(model, granularity, symmetric, options):
    weight = TensorScheme(dtype("int8"), symmetric, granularity)
    scheme = OpScheme(weight, TensorScheme(dtype("uint8"), symmetric=False), "static")
    new = quantize_static(model, Plan({KEY: scheme}), Samples(Ones()), options)
    np.testing.assert_allclose(stored(new), effective(new), atol=1e-4)
    assert 0 < np.abs(stored(new) - constants_of(next(iter(model.graph)))["weight"]).max() < 0.2


@pytest.mark.parametrize("granularity", [PER_TENSOR, PER_CHANNEL])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_dynamic_weights(model, granularity, kind):
    weight = TensorScheme(dtype(kind), kind == "int8", granularity)
    new = quantize_dynamic(model, Plan({KEY: OpScheme(weight, None, "dynamic")}))
    np.testing.assert_allclose(stored(new), effective(new), atol=1e-4)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("quant_format", ["QOperator", "QDQ"])
def test_weights_in_groups(model, bits, symmetric, quant_format):
    job = OpScheme(TensorScheme(dtype(f"int{bits}"), symmetric, PerGroup(32)), mode="weight_only")
    options = WeightOnlyOptions(quant_format=quant_format, accuracy_level=1)
    new = quantize_weight_only(model, {"product": job}, None, options)
    np.testing.assert_allclose(stored(new), effective(new), atol=1e-4)


def test_nodes_that_stand_for_an_op_end_at_other_ops(build):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="before"),
        helper.make_node("Cast", ["a"], ["b"], name="new", to=1),
    ]
    last = helper.make_node("Neg", ["b"], ["y"], name="op")
    graph = ir.from_proto(build([*nodes, last], {"x": [2]}, {"y": [2]}, {})).graph
    assert [n.name for n in nodes_of(graph[-1], {"before", "op"})] == ["op", "new"]
