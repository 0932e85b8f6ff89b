"""Weights of data types beyond 2, 4 and 8 bit integers, through the interfaces of users: what runs, and what is said."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.errors import CapabilityError, ConfigError
from neural_compressor.onnx.files.quantization_record import read_record
from neural_compressor.onnx.quantization import quantize
from neural_compressor.onnx.quantization.config import AWQConfig, GPTQConfig, HQQConfig, RTNConfig

SIMULATED = ["nf4", "fp8_e4m3", "mxfp4", "nvfp4", "fp6_e3m2"]
KEY = "/h.4/mlp/fc_in/MatMul", "MatMul"


@pytest.fixture
def wide():
    """A product of a size at which codes pay."""
    w = np.random.default_rng(0).standard_normal((256, 192)).astype(np.float32)
    x, y = (onnx.helper.make_tensor_value_info(n, 1, ["n", s]) for n, s in (("x", 256), ("y", 192)))
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name=KEY[0])
    graph = onnx.helper.make_graph([node], "g", [x], [y], [onnx.numpy_helper.from_array(w, "w")])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


class Data:
    """Inputs of very different sizes, which is what there is to see."""

    def __init__(self):
        rng = np.random.default_rng(1)
        sizes = np.exp(rng.standard_normal(256))
        self.samples = (rng.standard_normal((32, 16, 256)) * sizes).astype(np.float32)
        self.rewind()

    def get_next(self):
        return next(self._rest, None)

    def rewind(self):
        self._rest = iter([{"x": x} for x in self.samples])


def error(model, quantized):
    x = Data().samples.reshape(-1, 256)
    a, b = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for m in (model, quantized)
    )
    return float(np.square(a - b).mean() / np.square(a).mean())


@pytest.mark.parametrize("kind", SIMULATED)
def test_the_record_and_the_terminal_say_simulated(kind, wide, capfd):
    quantized = quantize(wide, None, RTNConfig(weight_dtype=kind))
    record = read_record(ir.from_proto(quantized))
    assert record.ops[KEY].weight.dtype.name == kind
    assert record.reasons[KEY] == f"no kernel multiplies with {kind}: its codes become floats when the model is loaded"
    assert f"simulated: 1 MatMul (no kernel multiplies with {kind}" in " ".join(capfd.readouterr().err.split())
    assert error(wide, quantized) < 0.02


@pytest.mark.parametrize("kind", ["int3", "int6", "int1"])
def test_integers_run_in_the_kernel_of_the_next_width(kind, wide, capfd):
    quantized = quantize(wide, None, RTNConfig(weight_dtype=kind))
    assert [node.op_type for node in quantized.graph.node] == ["MatMulNBits"]
    assert read_record(ir.from_proto(quantized)).reasons == {}
    assert "simulated" not in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["nf4", "mxfp4", "fp8_e4m3", "int3"])
@pytest.mark.parametrize("quant_format", ["QOperator", "QDQ"])
def test_methods_that_see_data_do_better_on_any_grid(kind, quant_format, wide):
    data, given = Data(), {"weight_dtype": kind, "quant_format": quant_format}
    plain = error(wide, quantize(wide, None, RTNConfig(**given)))
    assert error(wide, quantize(wide, None, GPTQConfig(calibration_data_reader=data, **given))) < plain
    assert error(wide, quantize(wide, None, AWQConfig(calibration_data_reader=data, **given))) < plain


def test_fit_takes_them_from_a_rule_and_reports_them(wide, tmp_path):
    rule = {"MatMul": {"weight": {"dtype": "nf4", "group_size": 48, "algorithm": "RTN"}}}
    conf = PostTrainingQuantConfig(approach="weight_only", op_type_dict=rule)
    fitted = quantization.fit(wide, conf, workspace=tmp_path, quiet=True)
    (op,) = fitted.result.ops
    assert (op.precision, op.mode, op.simulated) == ("nf4", "weight_only", True)
    assert op.reason == "no kernel multiplies with nf4: its codes become floats when the model is loaded"
    assert 15 < op.weight_sqnr < 25
    # half a byte a weight, a scale for 48 of them, and the values of each byte
    assert 256 * 192 / 2 < op.size_bytes < 256 * 192 * (1 / 2 + 4 / 48) + 6000


@pytest.mark.parametrize(
    ("weight", "precision"),
    [({"dtype": "int", "bits": 4}, "int4"), ({"bits": 8}, "int8"), ({"dtype": "int3"}, "int3")],
    ids=["int 4", "8 bits", "int3"],
)
def test_what_rules_say_of_integers_runs_in_kernels(weight, precision, wide, tmp_path):
    conf = PostTrainingQuantConfig(approach="weight_only", op_type_dict={"MatMul": {"weight": weight}})
    (op,) = quantization.fit(wide, conf, workspace=tmp_path, quiet=True).result.ops
    assert (op.precision, op.kernel, op.simulated) == (precision, "MatMulNBits", False)


@pytest.mark.parametrize(
    ("name", "words"), [("bf16", "bf16"), ("int16", "1 to 8 bits"), ("fp32", "nothing in the model can be quantized")]
)
def test_rules_that_ask_for_what_is_not_stored_are_refused(name, words, wide, tmp_path):
    conf = PostTrainingQuantConfig(approach="weight_only", op_type_dict={"MatMul": {"weight": {"dtype": name}}})
    with pytest.raises((CapabilityError, ConfigError), match=words):
        quantization.fit(wide, conf, workspace=tmp_path, quiet=True)


def test_a_provider_whose_kernels_are_all_there_is_refuses_them(wide):
    with pytest.raises(ConfigError, match=r"RTNConfig asks op .* for weight dtype 'nf4'"):
        quantize(wide, None, RTNConfig(weight_dtype="nf4", providers=["CUDAExecutionProvider"]), graph_only=True)
    with pytest.raises(ConfigError, match="HQQ fits zero points"):
        HQQConfig(weight_dtype="nf4")


def test_blocks_are_calibrated_behind_those_that_hold_codes():
    rng, nodes, weights, value = np.random.default_rng(0), [], [], "x"
    for block in range(3):
        weights.append(
            onnx.numpy_helper.from_array((rng.standard_normal((256, 256)) / 16).astype(np.float32), f"w{block}")
        )
        nodes.append(
            onnx.helper.make_node("MatMul", [value, f"w{block}"], [f"h{block}"], name=f"/layers.{block}/fc/MatMul")
        )
        nodes.append(onnx.helper.make_node("Tanh", [f"h{block}"], [f"t{block}"], name=f"/layers.{block}/act/Tanh"))
        value = f"t{block}"
    x, y = (onnx.helper.make_tensor_value_info(name, 1, ["n", 256]) for name in ("x", value))
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    plain = error(model, quantize(model, None, RTNConfig(weight_dtype="nf4")))
    gptq = GPTQConfig(weight_dtype="nf4", calibration_data_reader=Data())
    assert error(model, quantize(model, None, gptq)) < 0.6 * plain
