"""Whole models in fp16 and bf16, through the function users call."""

import logging

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from neural_compressor.errors import ConfigError, MissingDependencyError
from neural_compressor.onnx.quantization import RTNConfig, convert_precision, quantize
from onnx_neural_compressor import quantization as package

UNIT = {"fp16": 2.0**-11, "bf16": 2.0**-8}
KIND = {"fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}
CUDA = {"execution_provider": "CUDAExecutionProvider", "graph_only": True}


def kinds(model):
    return {i.name.removesuffix("_half"): i.data_type for i in model.graph.initializer}


def test_the_package_has_it_too():
    assert package.convert_precision is convert_precision


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_on_a_cpu_weights_take_half_the_bytes_and_the_model_runs(dtype, mlp, vectors, run, tmp_path, caplog):
    onnx.save(mlp, tmp_path / "float.onnx")
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        done = convert_precision(
            tmp_path / "float.onnx", tmp_path / "half.onnx", dtype, execution_provider="CPUExecutionProvider"
        )
    assert done is None
    assert f"CPUExecutionProvider does not compute in {dtype}" in caplog.text
    half = onnx.load(tmp_path / "half.onnx")
    onnx.checker.check_model(half, full_check=True)
    assert {kinds(half)["w1"], kinds(half)["w2"]} == {KIND[dtype]}
    assert (tmp_path / "half.onnx").stat().st_size < 0.55 * (tmp_path / "float.onnx").stat().st_size
    exact = run(mlp, vectors[0])
    for level in (ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        error = np.abs(run(half, vectors[0], level) - exact).max() / np.abs(exact).max()
        assert 0 < error < 4 * UNIT[dtype]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_all_that_has_kernels_runs_beside_what_has_none(dtype, convnet, images, run):
    half = convert_precision(convnet, None, dtype, weights_only=False, execution_provider="CPUExecutionProvider")
    onnx.checker.check_model(half, full_check=True)
    exact, found = run(convnet, images[0]), run(half, images[0])
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() < 8 * UNIT[dtype] * np.abs(exact).max()


def test_a_graph_for_a_provider_that_is_not_here_is_whole(mlp, types):
    half = convert_precision(mlp, None, "bf16", **CUDA)
    assert types(half) == ["Cast", "MatMul", "Add", "Relu", "MatMul", "Cast"]
    assert set(kinds(half).values()) == {onnx.TensorProto.BFLOAT16}
    with pytest.raises(MissingDependencyError, match="CUDAExecutionProvider does not run here"):
        convert_precision(mlp, None, "bf16", execution_provider="CUDAExecutionProvider")


@pytest.mark.parametrize("named", ["/h.4/mlp/fc_out/MatMul", [".*fc_out.*"], "MatMul"])
def test_nodes_can_be_left_in_float(named, mlp):
    half = convert_precision(mlp, None, "fp16", nodes_to_exclude=named, **CUDA)
    assert kinds(half)["w2"] == onnx.TensorProto.FLOAT
    assert kinds(half)["b1"] == onnx.TensorProto.FLOAT16


def test_bad_input_is_refused_first(mlp, tmp_path):
    with pytest.raises(ConfigError, match="fp16 or bf16, not to int8"):
        convert_precision(tmp_path / "missing.onnx", None, "int8")
    with pytest.raises(ConfigError, match=r"matches no node.*fc_out"):
        convert_precision(mlp, None, nodes_to_exclude="/h.4/mlp/fc_outt/MatMul")
    with pytest.raises(ConfigError, match="name or the type"):
        convert_precision(mlp, None, nodes_to_exclude=[3])
    with pytest.raises(ConfigError, match="quantized already"):
        convert_precision(quantize(mlp, None, RTNConfig()), None)


def test_the_terminal_says_what_was_converted(mlp, capsys):
    def told(**how):
        convert_precision(mlp, dtype="fp16", **how)
        return " ".join(capsys.readouterr().err.split())

    kept = "/h.4/mlp/fc_out/MatMul"
    whole = told(nodes_to_exclude=kept, **CUDA)
    assert "1 MatMul (computes in fp16)" in whole
    assert "1 MatMul (nodes_to_exclude names it)" in whole
    assert "2 MatMul (weight stored in fp16, computes in fp32)" in told(execution_provider="CPUExecutionProvider")
    assert told(quiet=True, **CUDA) == ""
