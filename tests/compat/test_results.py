"""What programs do with the result of ``fit``, and with models to be written as ONNX models."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from neural_compressor import Model, PostTrainingQuantConfig, QuantizationAwareTrainingConfig, quantization
from neural_compressor.config import Torch2ONNXConfig, options
from neural_compressor.errors import ConfigError
from neural_compressor.torch.export import export
from neural_compressor.torch.quantization import StaticQuantConfig, convert, prepare
from neural_compressor.training import prepare_compression
from neural_compressor.utils.load_huggingface import OptimizedModel, save_for_huggingface_upstream


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()


X = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def fitted(tmp_path, **conf):
    conf = PostTrainingQuantConfig(**conf)
    return quantization.fit(net(), conf, [(X, torch.zeros(16))], workspace=tmp_path / "work", quiet=True)


def run(file, x, name):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(None, {name: x.numpy()})[0]


@pytest.mark.parametrize("approach", ["static", "dynamic"])
def test_a_quantized_model_as_an_onnx_file(tmp_path, approach):
    q_model = fitted(tmp_path, approach=approach)
    q_model.export(str(tmp_path / "default.onnx"), Torch2ONNXConfig(dtype="int8", example_inputs=X[:1]))
    conf = Torch2ONNXConfig(
        dtype="int8",
        opset_version=14,
        quant_format="QDQ",
        example_inputs=X[:1],
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch_size"}, "logits": {0: "batch_size"}},
    )
    q_model.export(str(tmp_path / "int8.onnx"), conf)
    proto = onnx.load(tmp_path / "int8.onnx")
    assert [each.version for each in proto.opset_import if not each.domain] == [14]
    assert [value.name for value in (*proto.graph.input, *proto.graph.output)] == ["image", "logits"]
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch_size"
    kinds = {node.op_type for node in proto.graph.node}
    assert kinds & {"QuantizeLinear", "DynamicQuantizeLinear"}
    expected = q_model.model(X).detach().numpy()
    for file, name in (("int8.onnx", "image"), ("default.onnx", "input")):
        found = run(tmp_path / file, X, name)
        assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_a_float_model_as_an_onnx_file(tmp_path):
    model = net()
    Model(model).export(tmp_path / "fp32.onnx", Torch2ONNXConfig(dtype="fp32", example_inputs=(X[:1],)))
    np.testing.assert_allclose(run(tmp_path / "fp32.onnx", X, "input"), model(X).detach(), rtol=1e-3, atol=1e-4)


def test_the_inputs_of_fit_show_how_the_model_is_called(tmp_path):
    fitted(tmp_path, example_inputs=X[:2]).export(tmp_path / "int8.onnx", Torch2ONNXConfig())
    assert run(tmp_path / "int8.onnx", X, "input").shape == (16, 10)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "fp32", "example_inputs": X}, "is quantized"),
        ({"example_inputs": X, "input_names": ["a", "b"]}, "input_names"),
        ({"example_inputs": X, "dynamic_axes": {"inptu": {0: "n"}}}, "did you mean 'input'"),
    ],
)
def test_what_does_not_fit_the_model(tmp_path, fields, message):
    with pytest.raises(ConfigError, match=message):
        fitted(tmp_path).export(tmp_path / "m.onnx", Torch2ONNXConfig(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quant_format": "QLinear"}, "QOperator"),
        ({"dtype": "bf16"}, "dtype"),
        ({"opset_version": 11}, "opset_version"),
        ({"recipe": "QDQ_OP_INT32_BIAS"}, "recipe"),
        ({"dynamic_axes": 3}, "dynamic_axes"),
    ],
)
def test_settings_that_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Torch2ONNXConfig(**fields)


def test_other_refusals(tmp_path):
    with pytest.raises(ConfigError, match="quantize it first"):
        Model(net()).export(tmp_path / "m.onnx", Torch2ONNXConfig(example_inputs=X))
    with pytest.raises(ConfigError, match=r"ends in \.onnx"):
        Model(net()).export(tmp_path / "m", Torch2ONNXConfig(dtype="fp32", example_inputs=X))
    with pytest.raises(ConfigError, match="expected a Torch2ONNXConfig"):
        Model(net()).export(tmp_path / "m.onnx", {"dtype": "fp32"})
    with pytest.raises(ConfigError, match="save"):
        Model("some.onnx").export(tmp_path / "m.onnx", Torch2ONNXConfig())
    with pytest.raises(ImportError, match="tf2onnx"):
        from neural_compressor.config import TF2ONNXConfig  # noqa: F401


def test_attributes_of_results(tmp_path):
    q_model = fitted(tmp_path)
    assert q_model._model is q_model.model
    assert q_model.export_compressed_model() is q_model.model
    with pytest.raises(ConfigError, match="layout='gptq'"):
        q_model.export_compressed_model(use_optimum_format=False)
    with pytest.raises(ConfigError, match="got unknown"):
        q_model.export_compressed_model(unknown="")
    assert q_model.export_compressed_model(compression_dtype=torch.int32, use_optimum_format=True) is q_model.model
    ops = q_model.q_config["op"]
    assert ops[("0", "Conv2d")]["weight"]["dtype"] == "int8"
    assert [node.op_type for node in q_model.nodes()] == ["QuantConv2d", "Identity", "Flatten", "QuantLinear"]
    assert [node.name for node in Model(net()).nodes()] == ["0", "1", "2", "3"]
    q_model.export(tmp_path / "m.onnx", Torch2ONNXConfig(example_inputs=X))
    loaded = Model(onnx.load(tmp_path / "m.onnx"))
    assert "QuantizeLinear" in {node.op_type for node in loaded.nodes()}
    assert [node.op_type for node in Model(tmp_path / "m.onnx").nodes()] == [node.op_type for node in loaded.nodes()]


def test_a_model_is_saved_in_the_workspace_where_no_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(options, "workspace", tmp_path)
    q_model = fitted(tmp_path)
    q_model.save()
    assert torch.equal(quantization.load(tmp_path / "saved_model", net())(X), q_model(X))


def test_nodes_of_a_graph():
    prepared = prepare(export(net(), (X,)), StaticQuantConfig())
    prepared(X)
    graph = convert(prepared, quiet=True)
    kinds = [node.op_type for node in Model(graph).nodes()]
    assert "quantized_decomposed.quantize_per_tensor.default" in kinds


def test_a_trained_model_as_an_onnx_file(tmp_path):
    manager = prepare_compression(net(), QuantizationAwareTrainingConfig(), X, quiet=True)
    with pytest.raises(ConfigError, match="on_train_end"):
        manager.export(tmp_path / "m.onnx", Torch2ONNXConfig())
    manager.callbacks.on_train_begin()
    manager.model(X).sum().backward()
    manager.callbacks.on_train_end()
    manager.export(tmp_path / "m.onnx", Torch2ONNXConfig(example_inputs=X[:1]))
    found, expected = run(tmp_path / "m.onnx", X, "input"), manager.model.eval()(X).detach().numpy()
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("named", [False, True])
def test_a_folder_for_hugging_face_is_read_back(tmp_path, named):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(**sizes, vocab_size=50, architectures=["BertForSequenceClassification"])
    model = transformers.BertForSequenceClassification(config).eval()
    batch = {"input_ids": torch.randint(0, 50, (2, 6)), "attention_mask": torch.ones(2, 6, dtype=torch.long)}
    made = quantization.fit(model, PostTrainingQuantConfig(), [batch], workspace=tmp_path / "work", quiet=True)

    class Tokenizer:
        def save_pretrained(self, folder):
            (folder / "tokenizer.json").write_text("{}")

    save_for_huggingface_upstream(made, Tokenizer(), tmp_path / "out")
    given = {"config": config, "from_tf": False, "revision": "main", "cache_dir": None} if named else {}
    found = OptimizedModel.from_pretrained(tmp_path / "out", **given)
    assert type(found) is transformers.BertForSequenceClassification
    with torch.no_grad():
        assert torch.equal(found(**batch).logits, made.model(**batch).logits)
    with pytest.raises(ConfigError, match="got revision='v2'; it reads the folder"):
        OptimizedModel.from_pretrained(tmp_path / "out", revision="v2")
    config.architectures = None
    with pytest.raises(ConfigError, match=r"config\.architectures names None"):
        OptimizedModel.from_pretrained(tmp_path / "out", config)
