"""What the runtime tells of its kernels."""

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from neural_compressor.errors import FormatError
from neural_compressor.onnx.runtime import kernels
from neural_compressor.onnx.runtime.kernels import computes, has_kernel
from neural_compressor.onnx.runtime.session import make_session

CPU = "CPUExecutionProvider"


@pytest.mark.parametrize("op_type", ["Relu", "Transpose", "Tanh", "Identity", "Softmax", "Sign"])
@pytest.mark.parametrize("kind", [ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.INT64])
def test_the_list_of_kernels_is_what_sessions_take(op_type, kind):
    x, y = (helper.make_tensor_value_info(name, kind.value, [2, 3]) for name in ("x", "y"))
    y.type.tensor_type.ClearField("shape")
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"])], "g", [x], [y])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    try:
        make_session(model)
        runs = True
    except FormatError:
        runs = False
    assert has_kernel(model.graph[0], model.opset_imports, CPU, ["T"], kind) == runs
    assert computes(model.graph[0], model.opset_imports, CPU, ["T"], kind) == runs


def test_a_provider_that_lists_no_kernels_is_taken_to_have_them():
    assert TensorProto.BFLOAT16 == ir.DataType.BFLOAT16
    node = ir.node("MatMul", [])
    assert has_kernel(node, {"": 17}, "TensorrtExecutionProvider", ["T"], ir.DataType.BFLOAT16)
    assert not has_kernel(node, {"": 17}, CPU, ["T"], ir.DataType.BFLOAT16)


def test_an_operator_nobody_knows_has_none():
    node = ir.node("Nonsense", [], domain="no.such.domain")
    assert not has_kernel(node, {"no.such.domain": 1}, CPU, [], ir.DataType.FLOAT)


@pytest.mark.parametrize("op_type", ["Conv", "MatMul", "Clip", "Add", "Reshape"])
@pytest.mark.parametrize("kind", [ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
def test_trying_tells_what_the_list_does(op_type, kind):
    values = [ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 3, 4])) for name in "ab"]
    if op_type == "Reshape":
        values[1].type, values[1].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([1])
    node = ir.node(op_type, values)
    for value in node.outputs:
        value.name = "y"
    assert computes(node, {"": 17}, CPU, ["T"], kind) == has_kernel(node, {"": 17}, CPU, ["T"], kind)


def test_where_libraries_may_be_missing_the_runtime_is_not_asked_for_its_list(monkeypatch):
    def crash():
        raise AssertionError("the runtime would crash here")

    monkeypatch.setattr(kernels.ort, "get_available_providers", lambda: ["TensorrtExecutionProvider", CPU])
    monkeypatch.setattr(kernels.runtime, "get_all_opkernel_def", crash)
    kernels._can_list.cache_clear()
    kernels._every_kernel.cache_clear()
    values = [ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT)) for name in "ab"]
    node = ir.node("MatMul", values)
    node.outputs[0].name = "y"
    try:
        assert has_kernel(node, {"": 17}, CPU, ["T"], ir.DataType.FLOAT)
        assert not has_kernel(node, {"": 17}, CPU, ["T"], ir.DataType.BFLOAT16)
        assert has_kernel(node, {"": 17}, "CUDAExecutionProvider", ["T"], ir.DataType.BFLOAT16)  # which does not run
    finally:
        kernels._can_list.cache_clear()
