"""Quantized models leave the process: torch.export, torch.compile, ONNX."""

import io
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from neural_compressor.algorithms import LayerResult, rtn
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PerGroup, TensorScheme
from neural_compressor.strategy.build import build_space
from neural_compressor.torch import functional
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.files.onnx_export import to_onnx
from neural_compressor.torch.modules import WeightOnlyLinear, input_change
from neural_compressor.torch.modules.kernels import stored_weight
from neural_compressor.torch.modules.kernels.stored_weight import kept
from neural_compressor.torch.quantization import FP8Config, MXQuantConfig, RTNConfig, StaticQuantConfig, quantize

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TF32 acceleration on top of oneDNN")


class Chain(nn.Module):
    """Convolutions, pooling, an addition, linear layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.norm, self.relu = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.pool, self.conv2, self.add = nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1, stride=2), functional.Add()
        self.side, self.fc1, self.fc2 = nn.Conv2d(8, 8, 1, stride=2), nn.Linear(32, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = self.pool(self.relu(self.norm(self.conv1(x))))
        x = self.add(self.conv2(x), self.side(x))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.lstm = nn.Embedding(50, 16), nn.LSTM(16, 24, batch_first=True)
        self.gru, self.out = nn.GRU(24, 8, bidirectional=True, batch_first=True), nn.Linear(16, 5)

    def forward(self, ids):
        return self.out(self.gru(self.lstm(self.embed(ids))[0])[0])


def made(model, data, approach, **rules):
    adaptor = PyTorchAdaptor({"dataloader": data})
    conf = PostTrainingQuantConfig(approach=approach, **rules)
    plan = build_space(adaptor.query_fw_capability(model), conf).default_plan()
    return adaptor, adaptor.quantize(plan.to_tune_cfg(), model, data)


CASES = {
    "static": lambda: (Chain().eval(), torch.rand(4, 3, 8, 8), "static", {}),
    "dynamic": lambda: (Chain().eval(), torch.rand(4, 3, 8, 8), "dynamic", {}),
    "simulated": lambda: (
        Chain().eval(),
        torch.rand(4, 3, 8, 8),
        "static",
        {"op_type_dict": {"Conv2d": {"weight": {"dtype": "int4"}}}},
    ),
    "tokens": lambda: (Tokens().eval(), torch.randint(0, 50, (2, 7)), "dynamic", {}),
}


@pytest.fixture(params=CASES)
def case(request):
    model, x, approach, rules = CASES[request.param]()
    adaptor, new = made(model, [x], approach, **rules)
    return model, x, adaptor, new


def near(found, expected, original):
    """What was exported is as near to the float model as what it was made from."""
    lost = (expected - original).norm()
    assert 0 < lost < 0.5 * original.norm()
    assert (found - original).norm() < 1.5 * lost + 1e-4 * original.norm()


def test_the_adaptor_exports_what_computes_the_same_and_keeps_codes(case):
    model, x, adaptor, new = case
    with torch.no_grad():
        program = adaptor.convert(new, "eager", "exported")
        near(program.module()(x), new(x), model(x))
    assert {tensor.dtype for tensor in program.state_dict.values()} & {torch.int8, torch.uint8}
    assert any("dequantize_per_channel" in str(node.target) for node in program.graph.nodes)


def test_a_model_is_compiled_where_gradients_are_on():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.rand(2, 8)
    _, new = made(
        model, [x], "static", op_name_dict={"0": {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}}
    )
    assert type(new[0]) is nn.Linear
    torch.testing.assert_close(torch.compile(new, fullgraph=True, backend="aot_eager")(x), new(x))


def test_an_exported_model_is_stored():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 4)).eval(), torch.rand(2, 8)
    adaptor, new = made(model, [x], "static")
    program, file = adaptor.convert(new), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    with torch.no_grad():
        assert torch.equal(torch.export.load(file).module()(x), program.module()(x))


def test_a_model_is_compiled_as_one_graph(case):
    model, x, _, new = case
    with torch.no_grad():
        found = torch.compile(new, fullgraph=True, backend="aot_eager")(x)
        near(found, new(x), model(x))


def test_weight_only_layers_are_not_written_to_onnx():
    model = quantize(nn.Sequential(nn.Linear(32, 8)).eval(), RTNConfig(group_size=32), quiet=True)
    with pytest.raises(ConfigError, match=r"layer '0'.*not written to ONNX"):
        to_onnx(model, (torch.randn(1, 32),), {})


def test_weight_only_layers_are_exported():
    torch.manual_seed(0)
    array = rtn(torch.randn(32, 64), TensorScheme(dtype("int4"), granularity=PerGroup(32)))
    layer, x = WeightOnlyLinear.from_layer(nn.Linear(64, 32), LayerResult(array)).eval(), torch.randn(3, 64)
    with torch.no_grad():
        layer(x)
        found = torch.export.export(nn.Sequential(layer), (x,)).module()(x)
        torch.testing.assert_close(found, x @ layer.dequantized_weight().T + layer.bias, rtol=1e-3, atol=1e-3)


def session_of(proto, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimised.onnx"), 3
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_onnx_runtime_makes_integer_kernels_of_a_static_model(tmp_path):
    onnx = pytest.importorskip("onnx")
    model, x, approach, rules = CASES["static"]()
    adaptor, new = made(model, [x], approach, **rules)
    proto = adaptor.convert(new, "eager", "onnx")
    assert len(proto.SerializeToString()) < sum(p.numel() * 4 for p in model.parameters()) + 8000
    session = session_of(proto, tmp_path)
    ran = Counter(node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node)
    assert (ran["QLinearConv"], ran["QLinearAdd"], ran["QGemm"]) == (3, 1, 2)
    assert not {"Conv", "FusedConv", "Gemm", "MatMul"} & ran.keys()
    for rows in (x, x[:1], torch.rand(7, 3, 8, 8)):
        found = torch.from_numpy(session.run(None, {"x": rows.numpy()})[0])
        with torch.no_grad():
            near(found, new(rows), model(rows))


def test_the_exporter_of_torch_takes_the_model_as_it_is():
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    model, x, file = nn.Sequential(nn.Linear(8, 4)).eval(), torch.rand(2, 8), io.BytesIO()
    _, new = made(model, [x], "static")
    torch.onnx.export(new, (x,), file, dynamo=False)
    nodes = [node.op_type for node in onnx.load_model_from_string(file.getvalue()).graph.node]
    kinds = [kind for kind in nodes if kind != "Constant"]
    assert kinds == ["QuantizeLinear", *["DequantizeLinear"] * 3, "Gemm"]


def test_inputs_by_keyword_keep_their_names(tmp_path):
    pytest.importorskip("onnx")

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(8, 4), nn.Linear(6, 4)

        def forward(self, a, b):
            return self.first(a), self.second(b)

    model, batch = Two().eval(), {"b": torch.rand(3, 6), "a": torch.rand(3, 8)}
    adaptor, new = made(model, [batch], "static")
    session = session_of(adaptor.convert(new, "eager", "onnx"), tmp_path)
    found = session.run(None, {name: tensor.numpy() for name, tensor in batch.items()})
    with torch.no_grad():
        for mine, theirs, original in zip(new(**batch), found, model(**batch), strict=True):
            near(torch.from_numpy(theirs), mine, original)


@pytest.mark.parametrize("name", ["dynamic", "simulated", "tokens"])
def test_other_models_become_onnx_models_that_compute_the_same(name, tmp_path):
    pytest.importorskip("onnx")
    model, x, approach, rules = CASES[name]()
    adaptor, new = made(model, [x], approach, **rules)
    session = session_of(adaptor.convert(new, "eager", "onnx"), tmp_path)
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    with torch.no_grad():
        near(torch.from_numpy(np.asarray(found)), new(x), model(x))


def test_linear_layers_over_sequences_become_integer_products(tmp_path):
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval(), torch.rand(2, 5, 16)
    adaptor, new = made(model, [x], "static")
    session = session_of(adaptor.convert(new, "eager", "onnx"), tmp_path)
    ran = {node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node}
    assert ran & {"QGemm", "MatMulIntegerToFloat", "QLinearMatMul"}
    assert not {"Gemm", "MatMul"} & ran
    found = torch.from_numpy(session.run(None, {"input": x.numpy()})[0])
    with torch.no_grad():
        near(found, new(x), model(x))


@pytest.mark.parametrize(
    "weight",
    [
        {"granularity": "per_tensor", "scheme": "sym"},
        {"granularity": "per_channel", "scheme": "sym"},
    ],
    ids=["tensor", "channel"],
)
@pytest.mark.parametrize("shape", [(4, 64), (2, 5, 64)], ids=str)
def test_dynamic_layers_become_integer_products_to_a_step(weight, shape, tmp_path):
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8)).eval(), torch.randn(shape)
    adaptor, new = made(model, [x], "dynamic", op_type_dict={"Linear": {"weight": {"dtype": "int8", **weight}}})
    session = session_of(adaptor.convert(new, "eager", "onnx"), tmp_path)
    ran = Counter(node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node)
    assert ran["DynamicQuantizeMatMul"] + ran["MatMulIntegerToFloat"] == 2
    assert not {"Gemm", "MatMul"} & ran.keys()
    for rows in (x, x[:1]):
        with torch.no_grad():
            expected = new(rows)
            hidden = new[1](new[0](rows))
        found = torch.from_numpy(session.run(None, {"input": rows.numpy()})[0])
        # One value of the hidden layer may be rounded the other way.
        step = float(hidden.max() / 255 * new[2].dequantized_weight().abs().max())
        assert (found - expected).abs().max() <= 1.01 * step
        assert (found - expected).abs().mean() < 0.1 * step


def test_what_cannot_be_converted_is_said(case):
    _, _, adaptor, new = case
    with pytest.raises(ConfigError, match="eager to onnx"):
        adaptor.convert(new, "eager", "tflite")
    with pytest.raises(ConfigError, match="example_inputs or a dataloader"):
        PyTorchAdaptor().convert(new)


class Early(nn.Module):
    """A sum that is computed before the convolution that rounds one of its terms."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Conv2d(n, 8, 3, padding=1) for n in (3, 3, 8))

    def forward(self, x):
        v = torch.relu(self.b(x))
        z = self.a(x) + v
        return self.c(v) + z


def test_nodes_of_an_onnx_model_are_in_order():
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    x = torch.randn(2, 3, 8, 8)
    adaptor, new = made(Early().eval(), [x], "static")
    proto = adaptor.convert(new, "eager", "onnx")
    onnx.checker.check_model(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    found = session.run(None, {proto.graph.input[0].name: x.numpy()})[0]
    with torch.no_grad():
        near(torch.from_numpy(found), new(x), Early().eval()(x))


def test_weight_only_layers_are_compiled_where_gradients_are_on():
    torch.manual_seed(0)
    array = rtn(torch.randn(32, 64), TensorScheme(dtype("int4"), granularity=PerGroup(32)))
    layer, x = WeightOnlyLinear.from_layer(nn.Linear(64, 32), LayerResult(array)).eval(), torch.randn(3, 64)
    model = nn.Sequential(nn.Linear(64, 64), layer)
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    # The low-bit kernel, which has no gradients of its own, may round activations.
    expected = model(x)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))
    found.square().sum().backward()
    compiled = model[0].weight.grad.clone()
    model[0].weight.grad = None
    model(x).square().sum().backward()
    torch.testing.assert_close(compiled, model[0].weight.grad, rtol=2e-2, atol=2e-2 * float(compiled.abs().max()))


@pytest.mark.parametrize(
    ("config", "kind"),
    [(FP8Config(), "fp8_e4m3"), (MXQuantConfig(w_dtype="int8", act_dtype="int8"), "mxint8")],
    ids=["fp8", "mx"],
)
def test_what_is_no_integer_is_refused_for_onnx(config, kind):
    x = torch.randn(2, 32)
    model = quantize(nn.Sequential(nn.Linear(32, 32)).eval(), config, lambda m: m(x), quiet=True)
    with pytest.raises(ConfigError, match=f"layer '0' is quantized to {kind}, and integers alone"):
        to_onnx(model, (x,), {})


def test_products_by_functions_are_in_the_exported_graph():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return (self.query(x) @ self.key(x).transpose(1, 2)).softmax(-1) @ x

    x = torch.randn(2, 5, 8)
    config = StaticQuantConfig().set_local("MatMul", StaticQuantConfig())
    model = quantize(Attention().eval(), config, lambda m: m(x), example_inputs=x, quiet=True)
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)
    ort = pytest.importorskip("onnxruntime")
    file = to_onnx(model, (x,), {})
    kinds = Counter(node.op_type for node in file.graph.node)
    assert kinds["QuantizeLinear"] == 4  # of x, of both operands of the first product, of one of the second
    session = ort.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("fields", [{"dtype": "nf4", "group_size": 8}, {"bits": 2, "group_size": 16, "hadamard": True}])
def test_an_exported_model_still_runs(fields, monkeypatch):
    """Tables that are kept for later calls are none of those that an export makes, which have no values."""
    model = nn.Sequential(nn.Linear(48, 16), nn.Linear(16, 8)).eval()
    quantized, x = quantize(model, RTNConfig(**fields)), torch.randn(4, 48)
    for name, module in {"_byte_table": stored_weight, "_matrix": input_change, "_signs": input_change}.items():
        cached = getattr(module, name)
        monkeypatch.setattr(module, name, kept(cached.__wrapped__))  # nothing is kept yet
    exported = torch.export.export(quantized, (x,)).module()
    torch.testing.assert_close(exported(x), quantized(x), rtol=2e-2, atol=2e-2)
