"""Quantized graphs on disk: bit-equal when read back, nothing unpickled, damage noticed."""

import json
from types import SimpleNamespace

import pytest
import torch

from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.torch.export import export
from neural_compressor.torch.files.checkpoint import checksum
from neural_compressor.torch.quantization import DynamicQuantConfig, StaticQuantConfig, load, quantize, save


@pytest.fixture
def saved(mlp, tmp_path):
    x = torch.randn(4, 16)
    model = quantize(export(mlp, x), StaticQuantConfig(), run_fn=lambda m: m(x), quiet=True)
    model.save(tmp_path / "saved")
    return model, x, tmp_path / "saved"


def test_a_cnn_is_bit_equal(cnn, tmp_path):
    x = torch.randn(4, 3, 8, 8)
    model = quantize(export(cnn, x), StaticQuantConfig(), run_fn=lambda m: m(x), quiet=True)
    save(model, tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert torch.equal(loaded(x), model(x))
    assert torch.equal(loaded(x[:1]), model(x[:1]))
    assert loaded.quantization.plan == model.quantization.plan
    assert loaded.fixed_dimensions == model.fixed_dimensions
    loaded.save(tmp_path / "again")
    assert torch.equal(load(tmp_path / "again")(x), model(x))


@pytest.mark.parametrize("config", [StaticQuantConfig(), DynamicQuantConfig()])
def test_a_decoder_is_bit_equal(llama, config, tmp_path):
    ids, other = torch.randint(0, 64, (1, 6)), torch.randint(0, 64, (2, 9))
    model = quantize(export(llama, {"input_ids": ids}), config, run_fn=lambda m: m(ids), quiet=True)
    model.save(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert torch.equal(loaded(other).logits, model(other).logits)
    assert type(loaded(other)) is type(model(other))


def test_operators_of_transformers_are_read_back(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
    config = transformers.MixtralConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, max_position_embeddings=64
    )
    ids = torch.randint(0, 64, (2, 6))
    moe = export(transformers.MixtralForCausalLM(config).eval(), {"input_ids": ids})
    assert any("transformers." in str(node.target) for node in moe.graph.nodes)
    model = quantize(moe, DynamicQuantConfig(), quiet=True)
    model.save(tmp_path / "saved")
    assert torch.equal(load(tmp_path / "saved")(ids).logits, model(ids).logits)


def test_weights_of_a_reused_module_are_stored_once(tmp_path):
    fc = torch.nn.Linear(64, 64)
    x = torch.randn(2, 64)
    model = quantize(export(torch.nn.Sequential(fc, torch.nn.ReLU(), fc), x), DynamicQuantConfig(), quiet=True)
    model.save(tmp_path / "saved")
    assert (tmp_path / "saved/model.safetensors").stat().st_size < 1.5 * 64 * 64
    assert torch.equal(load(tmp_path / "saved")(x), model(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["graph"]["nodes"][-2].update(target="os.system"), "calls 'os.system'"),
        (lambda c: c["graph"]["nodes"][-2].update(target="aten.__class__.mro"), "cannot|no operator|can be read"),
        (lambda c: c["graph"]["nodes"][-2].update(op="call_method"), "node of the kind 'call_method'"),
        (lambda c: c["graph"]["nodes"][-2].update(args={"torch": "load"}), "names torch.load"),
        (lambda c: c["graph"].update({"in": '[1, {"__enum__": 1}]'}), "enumeration"),
        (lambda c: c["graph"]["nodes"].pop(0), "can be read"),
        (lambda c: c["tensors"].clear(), "can be read"),
        (lambda c: c.pop("exported"), "can be read"),
        (lambda c: c["plan"].update(op=[["a", "b"]]), "can be read"),
        (lambda c: c.update(version=7), "has version 7"),
    ],
)
def test_hostile_graphs_with_a_right_checksum(saved, change, message):
    file = saved[2] / "qconfig.json"
    config = json.loads(file.read_text())
    change(config)
    config["checksum"] = checksum(config)
    file.write_text(json.dumps(config))
    with pytest.raises(FormatError, match=message):
        load(saved[2])


def test_damage_is_noticed(saved):
    _, _, path = saved
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(FormatError, match="damaged"):
        load(path)
    file = path / "qconfig.json"
    file.write_text(file.read_text().replace('"positional": 1', '"positional": 0'))
    with pytest.raises(FormatError, match="changed after it was written"):
        load(path)


def test_formats_of_eager_models_are_refused(saved, tmp_path):
    model, _, path = saved
    with pytest.raises(ConfigError, match="'huggingface' is for eager models"):
        save(model, tmp_path / "hf", format="huggingface")
    with pytest.raises(ConfigError, match="as it was saved"):
        load(path, torch_dtype=torch.float16)
    with pytest.raises(FormatError, match="for exported models"):
        save(torch.nn.Linear(2, 2), tmp_path / "x", format="aoti")
    with pytest.raises(FormatError, match="does not exist"):
        load(tmp_path / "nothing", format="aoti")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, r"model.pt2 has nothing under 'neural_compressor.exported' .* an earlier release, or not by save"),
        ({"neural_compressor.exported": "{"}, r"model.pt2: .*JSONDecodeError.*save the quantized model again"),
        ({"neural_compressor.exported": '{"parameters": []}'}, r"model.pt2: .* \(KeyError: 'positional'\)"),
        ({"neural_compressor.exported": "[1]"}, r"model.pt2: .* \(TypeError: "),
    ],
)
def test_a_package_that_does_not_say_what_its_inputs_are(metadata, message, tmp_path, monkeypatch):
    package = SimpleNamespace(get_metadata=lambda: metadata)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda file: package)
    (tmp_path / "model.pt2").touch()
    with pytest.raises(FormatError, match=message):
        load(tmp_path, format="aoti")


def test_a_float_graph_has_nothing_to_save(mlp, tmp_path):
    with pytest.raises(FormatError, match="not quantized here"):
        save(export(mlp, torch.randn(2, 16)), tmp_path / "saved")


def test_graphs_of_earlier_releases_keep_their_inputs_from_being_written_into(tmp_path, monkeypatch):
    class Residual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(16, 16)

        def forward(self, x):
            return x + self.fc(x)

    x = torch.randn(4, 16)
    with monkeypatch.context() as patch:
        patch.setattr("neural_compressor.torch.pt2e.execution.keep_given_terms", lambda model: None)
        earlier = quantize(export(Residual().eval(), x), DynamicQuantConfig(), quiet=True)
    earlier.save(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    between = torch.ops.aten.maximum.default
    assert [between in [node.target for node in each.graph.nodes] for each in (earlier, loaded)] == [False, True]
    assert torch.equal(loaded(x), earlier(x))
