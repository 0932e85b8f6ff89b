"""Weights of data types that no kernel multiplies with: what the runtime makes of their codes, and what they take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from neural_compressor.algorithms import ALGORITHMS
from neural_compressor.dtypes import CodebookType, DType, dtype, register_dtype
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.methods.weight_only.decoded import onnx_float, why_simulated
from neural_compressor.onnx.methods.weight_only.method import WeightOnlyOptions, check_weight_only
from neural_compressor.onnx.methods.weight_only.quantizer import quantize_weight_only
from neural_compressor.onnx.passes.store_weights import stored_floats
from neural_compressor.onnx.runtime.fusion_check import as_run
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, OpScheme, PerGroup, TensorScheme

CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class Powers(DType):
    """Zero and powers of two, which a third party might have; seven codes of eight are numbers."""

    name: str
    bits: int

    @cached_property
    def code_values(self):
        sizes = [2.0**-i for i in range((1 << (self.bits - 1)) - 1)]
        return (0.0, *sizes, float("nan"), *(-size for size in sizes))


OWN = register_dtype(Powers("onnx_own_powers", 4), replace=True)
TERNARY = register_dtype(CodebookType("onnx_own_ternary", (-1.0, 0.0, 1.0)), replace=True)
DECODED = [
    "nf4",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp4_e2m1",
    "fp6_e3m2",
    "mxfp4",
    "mxfp6",
    "mxfp8",
    "nvfp4",
    OWN.name,
    TERNARY.name,
]
KERNELS = ["int1", "int3", "int6", "uint5", "mxint8"]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(weight: np.ndarray, kind: str = "MatMul", **attributes) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A node mm with ``weight`` (inputs, outputs), and what to feed it."""
    x = normal(3, weight.shape[0], seed=9).astype(weight.dtype)
    float_type = helper.np_dtype_to_tensor_dtype(weight.dtype)
    stored = np.ascontiguousarray(weight.T) if attributes.get("transB") else weight
    weights = {"w": stored} | ({"b": normal(weight.shape[1], seed=3)} if kind == "Gemm" else {})
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", *weights], ["y"], name="mm", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", float_type, x.shape)],
        [helper.make_tensor_value_info("y", float_type, [None, None])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), {"x": x}


def scheme(kind: str, size: int = 32) -> TensorScheme:
    return TensorScheme(dtype(kind), granularity=PerGroup(size))


def quantized(proto: onnx.ModelProto, weight: TensorScheme, quant_format: str = "QOperator", **options) -> ir.Model:
    model = normalise(read_model(proto))
    names = [node.name for node in model.graph.all_nodes() if node.op_type in ("MatMul", "Gemm", "Gather")]
    schemes = dict.fromkeys(names, OpScheme(weight, mode="weight_only"))
    return quantize_weight_only(model, schemes, options=WeightOnlyOptions(quant_format, accuracy_level=1, **options))


def expected(weight: np.ndarray, how: TensorScheme) -> np.ndarray:
    """What the data type itself makes of a weight (outputs, inputs)."""
    return np.asarray(ALGORITHMS["rtn"](weight, how, None).dequantize())


def run(model: ir.Model, feeds: dict[str, np.ndarray], level: str = "all") -> np.ndarray:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return make_session(model, level=level).run(None, feeds)[0]


@pytest.mark.parametrize("quant_format", ["QOperator", "QDQ"])
@pytest.mark.parametrize("kind", [*DECODED, *KERNELS])
def test_the_runtime_multiplies_with_the_values_of_the_type(kind: str, quant_format: str) -> None:
    weight = normal(200, 25)  # 200 inputs are no multiple of a group, 25 outputs none of the codes in a byte
    proto, feeds = product(weight)
    found = quantized(proto, scheme(kind), quant_format)
    wanted = feeds["x"] @ expected(weight.T, scheme(kind)).T
    # Fused into MatMulNBits, a DequantizeLinear of integers would be multiplied with inputs in int8.
    level = "none" if quant_format == "QDQ" and kind in KERNELS else "all"
    assert np.allclose(run(found, feeds, level), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", DECODED)
def test_codes_are_the_weight_to_the_last_bit(kind: str) -> None:
    weight = normal(256, 32)
    model = quantized(product(weight)[0], scheme(kind))
    node = next(node for node in model.graph if node.name == "mm")
    np.testing.assert_allclose(stored_floats(node.inputs[1]), expected(weight.T, scheme(kind)).T, rtol=2e-7, atol=0)


@pytest.mark.parametrize("granularity", [PER_CHANNEL, PER_TENSOR, PerGroup(20), PerGroup(1024)], ids=str)
def test_groups_may_have_any_size(granularity) -> None:
    weight, how = normal(200, 64), TensorScheme(dtype("nf4"), granularity=granularity)
    proto, feeds = product(weight)
    assert np.allclose(run(quantized(proto, how), feeds), feeds["x"] @ expected(weight.T, how).T, atol=1e-4)
    with pytest.raises(ConfigError, match=r"mm.*group of 20 inputs"):
        quantized(proto, TensorScheme(dtype("int4"), granularity=PerGroup(20)))


@pytest.mark.parametrize("quant_format", ["QOperator", "QDQ"])
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_with_a_bias_and_a_factor(transposed: int, quant_format: str) -> None:
    weight = normal(128, 48)
    proto, feeds = product(weight, "Gemm", transB=transposed, alpha=2.0, beta=0.5)
    wanted = feeds["x"] @ expected(2 * weight.T, scheme("fp8_e4m3")).T + 0.5 * normal(48, seed=3)
    assert np.allclose(run(quantized(proto, scheme("fp8_e4m3"), quant_format), feeds), wanted, atol=1e-4)


@pytest.mark.parametrize("quant_format", ["QOperator", "QDQ"])
def test_models_in_fp16(quant_format: str) -> None:
    weight = normal(128, 64).astype(np.float16)
    proto, feeds = product(weight)
    for kind in ("nf4", "fp8_e4m3"):
        wanted = feeds["x"].astype(np.float32) @ expected(weight.T.astype(np.float32), scheme(kind)).T
        found = run(quantized(proto, scheme(kind), quant_format), feeds)
        assert found.dtype == np.float16
        assert np.allclose(found, wanted, rtol=5e-3, atol=5e-2)


def test_a_table_that_a_product_shares_is_stored_once() -> None:
    table = normal(64, 128)
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["x"], name="look_up"),
        helper.make_node("Transpose", ["w"], ["wt"], name="turn"),
        helper.make_node("MatMul", ["x", "wt"], ["y"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [4])],
        [helper.make_tensor_value_info("y", 1, [4, 64])],
        [numpy_helper.from_array(table, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ids, wanted = np.int64([3, 0, 60, 3]), expected(table, scheme("nf4"))
    for quant_format in ("QOperator", "QDQ"):
        found = run(quantized(proto, scheme("nf4"), quant_format), {"ids": ids})
        assert np.allclose(found, wanted[ids] @ wanted.T, atol=1e-4)


def test_two_products_share_the_weight_and_all_share_the_values_of_the_type() -> None:
    first, second = normal(128, 128), normal(128, 64, seed=1)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="a"),
        helper.make_node("MatMul", ["h", "w"], ["k"], name="b"),
        helper.make_node("MatMul", ["k", "v"], ["y"], name="c"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [3, 128])],
        [helper.make_tensor_value_info("y", 1, [3, 64])],
        [numpy_helper.from_array(first, "w"), numpy_helper.from_array(second, "v")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = quantized(proto, scheme("nf4"))
    codes = [v for v in model.graph.initializers.values() if v.const_value.dtype == ir.DataType.UINT8]
    assert sorted(v.const_value.size for v in codes) == [128 * 64 // 2, 128 * 128 // 2]
    assert [v.const_value.shape for v in model.graph.initializers.values() if "values" in v.name] == [(256, 2)]
    x, (w, v) = normal(3, 128, seed=9), (expected(each.T, scheme("nf4")).T for each in (first, second))
    assert np.allclose(run(model, {"x": x}), x @ w @ w @ v, rtol=1e-4, atol=1e-2)


def test_a_weight_that_bodies_share_is_made_outside_of_them() -> None:
    weight = normal(64, 64)
    bodies = [
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], [name], name=f"mm_{name}")],
            name,
            [],
            [helper.make_tensor_value_info(name, 1, [3, 64])],
        )
        for name in ("yes", "no")
    ]
    node = helper.make_node("If", ["which"], ["y"], name="if", then_branch=bodies[0], else_branch=bodies[1])
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", 1, [3, 64]),
        ],
        [helper.make_tensor_value_info("y", 1, [3, 64])],
        [numpy_helper.from_array(weight, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model, x = quantized(proto, scheme("nf4")), normal(3, 64, seed=9)
    for which in (True, False):
        found = run(model, {"which": np.asarray(which), "x": x})
        assert np.allclose(found, x @ expected(weight.T, scheme("nf4")).T, atol=1e-4)


# -- size and speed --------------------------------------------------------------------------------------------------

BITS = {
    "nf4": 4 + 32 / 32,
    "fp8_e4m3": 8 + 32 / 32,
    "mxfp4": 4 + 8 / 32,
    "nvfp4": 4 + 8 / 16,
    "mxfp6": 8 + 8 / 32,  # a byte has no room for a second code of 6 bits
    TERNARY.name: 8 / 5 + 32 / 32,  # five digits of base 3 to a byte
    "int3": 4 + 32 / 32,  # in the kernel of 4 bits
    "mxint8": 8 + 32 / 32,  # in a kernel, which takes scales as floats
}


@pytest.mark.parametrize("kind", BITS)
def test_the_file_takes_the_bits_of_the_codes_and_scales(kind: str) -> None:
    model = ir.to_proto(quantized(product(normal(1024, 512))[0], scheme(kind)))
    assert model.ByteSize() == pytest.approx(1024 * 512 * BITS[kind] / 8, rel=0.02, abs=6500)


def test_a_weight_that_codes_make_no_smaller_is_a_rounded_float() -> None:
    weight = normal(32, 8)
    proto, feeds = product(weight)
    model = quantized(proto, scheme("nf4"))
    assert [node.op_type for node in model.graph] == ["MatMul"]
    assert np.allclose(run(model, feeds), feeds["x"] @ expected(weight.T, scheme("nf4")).T, atol=1e-5)


@pytest.mark.parametrize("kind", ["nf4", "fp8_e4m3", "mxfp4", "nvfp4"])
def test_the_runtime_is_left_with_the_product_alone(kind: str) -> None:
    model = quantized(product(normal(200, 25))[0], scheme(kind))
    assert [node.op_type for node in as_run(model, [CPU]).values()] == ["MatMul"]


def test_a_qdq_model_has_floats_of_eight_bits_where_the_runtime_dequantizes_them() -> None:
    model = quantized(product(normal(256, 64))[0], scheme("mxfp8"), "QDQ")
    (node,) = (node for node in model.graph if node.op_type == "DequantizeLinear")
    assert node.inputs[0].dtype == ir.DataType.FLOAT8E4M3FN
    assert node.attributes.get_int("block_size") == 32


def test_types_of_the_opset_are_told_by_their_values_and_the_kernels_of_the_runtime() -> None:
    assert onnx_float(dtype("fp8_e5m2"), CPU) == ir.DataType.FLOAT8E5M2
    alike = CodebookType("onnx_own_e4m3", dtype("fp8_e4m3").grid)
    assert onnx_float(alike, CPU) is None  # the same numbers, but not for the same codes
    values = np.float32([[1.0]])
    probe = helper.make_model(
        helper.make_graph(
            [helper.make_node("DequantizeLinear", ["q", "s"], ["y"])],
            "g",
            [],
            [helper.make_tensor_value_info("y", 1, [1, 1])],
            [
                numpy_helper.from_array(values.astype(helper.tensor_dtype_to_np_dtype(23)), "q"),
                numpy_helper.from_array(np.float32(1), "s"),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 23)],
        ir_version=11,
    )
    try:
        make_session(read_model(probe))
        runs = True
    except Exception:  # noqa: BLE001 - the runtime's errors share no other base class
        runs = False
    assert (onnx_float(dtype("fp4_e2m1"), CPU) is not None) == runs


# -- what is said, and refused ---------------------------------------------------------------------------------------


def test_why_a_type_is_simulated() -> None:
    assert all(why_simulated(scheme(kind), form) == "" for kind in KERNELS for form in ("QOperator", "QDQ"))
    assert "when the model is loaded" in why_simulated(scheme("fp8_e4m3"), "QOperator")
    assert "at each run" in why_simulated(scheme("fp8_e4m3"), "QDQ")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (TensorScheme(dtype("int16")), "1 to 8 bits, and int16 has 16"),
        (TensorScheme(dtype("bf16")), "convert_precision"),
        (TensorScheme(dtype("nf4"), scales=TensorScheme(dtype("int8"))), "double quantization"),
    ],
    ids=["16 bits", "bf16", "scales"],
)
def test_what_is_not_stored_is_refused_before_any_work(how: TensorScheme, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_weight_only(OpScheme(how, mode="weight_only"))
