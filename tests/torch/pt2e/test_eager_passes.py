"""Smoothing, rotation, equalization, searched ranges and learned rounding of exported graphs."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.torch.export import export
from neural_compressor.torch.pt2e import graph_race
from neural_compressor.torch.quantization import (
    DynamicQuantConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    TuningConfig,
    autotune,
    convert,
    load,
    prepare,
    quantize,
)


@pytest.fixture(autouse=True)
def no_race(monkeypatch):
    """Every layer is quantized, however fast it is here in float."""
    monkeypatch.setattr(graph_race, "slower_in_graph", lambda model, ops: {})
    monkeypatch.setattr("neural_compressor.torch.quantization.plans.slower_in_graph", lambda model, ops: {})


class Block(nn.Module):
    """One channel of what two layers read is far larger than the others."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.gate, self.down = (
            nn.LayerNorm(32),
            nn.Linear(32, 48),
            nn.Linear(32, 48),
            nn.Linear(48, 32),
        )
        with torch.no_grad():
            self.norm.weight[3] = 60.0
            self.up.weight[:, 3] /= 60
            self.gate.weight[:, 3] /= 60

    def forward(self, x):
        inside = self.norm(x)
        return x + self.down(torch.sigmoid(self.gate(inside)) * self.up(inside))


@pytest.fixture
def blocks():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).eval(), torch.randn(32, 32)


@pytest.fixture
def unequal():
    """A channel that is large in one convolution and small in the next."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(8 * 36, 10)).eval()
    with torch.no_grad():
        model[0].weight[2] *= 64
        model[3].weight[:, 2] /= 64
    return model, torch.randn(16, 3, 8, 8)


def graph_of(model, config, x, inplace=True):
    prepared = prepare(export(model, x), config, inplace=inplace)
    prepared(x)
    return convert(prepared, quiet=True)


@torch.no_grad()
def error(found, model, x):
    expected = model(x)
    return float((found(x) - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    "more",
    [{}, {"alpha": "auto"}, {"folding": True}, {"scale_sharing": True}, {"alpha": "auto", "do_blockwise": True}],
    ids=["fixed", "auto", "folded", "shared", "blockwise"],
)
def test_smoothing_helps_a_graph_as_it_helps_the_eager_model(blocks, more):
    model, x = blocks
    before = copy.deepcopy(model.state_dict())
    plain = error(graph_of(model, StaticQuantConfig(), x), model, x)
    smooth = graph_of(model, SmoothQuantConfig(**more), x)
    eager = quantize(model, SmoothQuantConfig(**more), run_fn=lambda m: m(x), inplace=False)
    assert error(smooth, model, x) < 0.4 * plain
    assert error(smooth, model, x) == pytest.approx(error(eager, model, x), rel=0.5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [step.name for step in smooth.quantization.plan.passes] == ["smooth", "correct_biases"]
    assert set(smooth.quantization.plan) == {(f"{i}.{n}", "Linear") for i in (0, 1) for n in ("up", "gate", "down")}


def test_a_smoothed_graph_multiplies_inputs_only_where_nothing_is_folded(blocks):
    model, x = blocks
    plain, folded = graph_of(model, SmoothQuantConfig(), x), graph_of(model, SmoothQuantConfig(folding=True), x)
    named = [{name for name, _ in each.named_buffers() if "input_multiplier" in name} for each in (plain, folded)]
    assert named[0] == {f"{i}.{n}.input_multiplier" for i in (0, 1) for n in ("up", "gate", "down")}
    assert named[1] == {f"{i}.down.input_multiplier" for i in (0, 1)}


def test_a_smoothed_graph_is_saved_and_holds_no_float_weights(blocks, tmp_path):
    model, x = blocks
    smooth = graph_of(model, SmoothQuantConfig(), x)
    smooth.save(tmp_path / "out")
    assert torch.equal(load(tmp_path / "out")(x), smooth(x))
    floats = [name for name, value in smooth.state_dict().items() if value.is_floating_point() and value.dim() > 1]
    assert floats == []
    assert not any(model is value for value in smooth.meta.values())
    assert not any(getattr(value, "model", None) is model for value in smooth.meta.values())


@pytest.mark.parametrize("config", [StaticQuantConfig, DynamicQuantConfig])
def test_a_rotation_is_folded_before_the_graph_is_quantized(llama, config):
    ids = torch.randint(0, 64, (4, 16))
    graph = export(llama, {"input_ids": ids})
    prepared = prepare(graph, config(hadamard="folded"))
    expected = llama(input_ids=ids).logits
    assert torch.equal(prepared(input_ids=ids).logits, expected)
    found = convert(prepared, quiet=True)
    assert found.quantization.plan.passes[0].name == "rotate"
    assert error(lambda given: found(input_ids=given).logits, lambda given: expected, ids) < 0.1
    assert torch.equal(llama(input_ids=ids).logits, expected)
    assert llama.config.use_cache


def test_layers_are_equalized_behind_folded_normalisation(unequal):
    model, x = unequal
    plain = graph_of(model, StaticQuantConfig(w_granularity="per_tensor"), x)
    equal = graph_of(model, StaticQuantConfig(w_granularity="per_tensor", equalize=True), x)
    assert error(equal, model, x) < 0.5 * error(plain, model, x)


def test_a_graph_takes_codes_and_ranges_that_the_eager_model_learned(unequal):
    model, x = unequal
    config = StaticQuantConfig(w_granularity="per_tensor", act_algo="minmax", range_search=True, learned_rounding=True)
    graph = graph_of(model, config, x)
    eager = quantize(model, config, run_fn=lambda m: m(x), inplace=False)
    plain = graph_of(model, StaticQuantConfig(w_granularity="per_tensor", act_algo="minmax"), x)
    assert error(graph, model, x) < error(plain, model, x)
    codes = {name.rpartition(".")[0]: value for name, value in graph.named_buffers() if name.endswith("weight_codes")}
    assert set(codes) == {"0", "3", "6"}
    for name, value in codes.items():
        array = eager.get_submodule(name).weight_array()
        assert torch.equal(value.flatten(1), torch.as_tensor(array.codes))
    quantizes = torch.ops.quantized_decomposed.quantize_per_tensor.default
    ranges = [node.args[1:3] for node in graph.graph.nodes if node.target is quantizes]
    for name in codes:
        qparams = eager.get_submodule(name).qparams("input")
        assert (float(qparams.scale), int(qparams.zero_point)) in ranges


def test_rules_of_smoothing_hold_in_graphs(blocks):
    model, x = blocks
    config = SmoothQuantConfig().set_local("0.*", StaticQuantConfig())
    names = {name for name, _ in graph_of(model, config, x).named_buffers() if "input_multiplier" in name}
    assert names == {f"1.{n}.input_multiplier" for n in ("up", "gate", "down")}


def test_autotune_tries_smoothed_graphs(blocks, tmp_path):
    model, x = blocks
    tuning = TuningConfig(config_set=[SmoothQuantConfig(alpha=[0.1, 0.5])], tolerable_loss=0.02, workspace=tmp_path)
    found = autotune(
        export(model, x), tuning, eval_fn=lambda m: 1 - error(m, model, x), run_fn=lambda m: m(x), quiet=True
    )
    assert found.tuning.met
    assert found.quantization.plan.passes[0].name == "smooth"


def test_copies_are_smoothed_too(blocks):
    model, x = blocks
    assert error(graph_of(model, SmoothQuantConfig(), x, inplace=False), model, x) < 0.05


@pytest.mark.parametrize(
    "config", [SmoothQuantConfig(folding=True), StaticQuantConfig(range_search=True)], ids=["smooth", "ranges"]
)
def test_a_prepared_graph_is_converted_twice_alike(blocks, config):
    model, x = blocks
    prepared = prepare(export(model, x), config)
    prepared(x)
    first, second = (convert(prepared, inplace=False, quiet=True)(x) for _ in range(2))
    assert torch.equal(first, second)


def test_converting_without_data_says_what_is_missing(blocks):
    model, x = blocks
    prepared = prepare(export(model, x), SmoothQuantConfig())
    with pytest.raises(CalibrationError, match="the passes of the plan need calibration: run the model"):
        convert(prepared, quiet=True)
    prepared(x)
    assert error(convert(prepared, quiet=True), model, x) < 0.05


def test_a_model_that_was_quantized_since_its_export_is_refused(blocks):
    model, x = blocks
    graph = export(model, x)
    quantize(model, DynamicQuantConfig())
    with pytest.raises(ConfigError, match=r"\(smooth\(\)\) run on the model .* has other weights now: export it again"):
        prepare(graph, SmoothQuantConfig())


def test_options_that_the_pass_refuses_are_refused_by_prepare(blocks):
    model, x = blocks
    with pytest.raises(ConfigError, match=r"alpha_min is 0\.9 and alpha_max 0\.1"):
        prepare(export(model, x), SmoothQuantConfig(alpha="auto", alpha_min=0.9, alpha_max=0.1))


@pytest.mark.parametrize(
    "config",
    [SmoothQuantConfig(alpha="auto"), StaticQuantConfig(range_search=True), StaticQuantConfig(learned_rounding=True)],
)
def test_layers_that_hold_their_weight_transposed(config):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 16, "vocab_size": 64}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    ids = torch.randint(0, 64, (4, 8))
    prepared = prepare(export(model, {"input_ids": ids}), config)
    prepared(ids)
    found = convert(prepared, quiet=True)
    assert ("transformer.h.0.attn.c_attn", "Linear") in found.quantization.plan
    expected = model(ids).logits
    assert (found(ids).logits - expected).norm() < 0.03 * expected.norm()
    assert type(model.transformer.h[0].attn.c_attn).__name__ == "Conv1D"


class Functional(nn.Module):
    """A linear layer, and one that is a function of a parameter."""

    def __init__(self):
        super().__init__()
        self.fc, self.weight = nn.Linear(16, 16), nn.Parameter(torch.randn(8, 16))

    def forward(self, x):
        return nn.functional.linear(torch.relu(self.fc(x)), self.weight)


@pytest.mark.parametrize("own", [0.5, 0.8])
def test_functions_are_quantized_and_not_smoothed_which_is_said(own, caplog):
    x = torch.randn(8, 16)
    config = SmoothQuantConfig().set_local("fc", SmoothQuantConfig(alpha=own))
    found = graph_of(Functional().eval(), config, x)
    assert list(found.quantization.plan) == [("fc", "Linear"), ("linear", "Linear")]
    assert "leaves out linear: these are functions" in caplog.text


def test_functions_alone_cannot_be_smoothed():
    config = StaticQuantConfig().set_local("linear", SmoothQuantConfig())
    with pytest.raises(ConfigError, match="the pass smooth has nothing to change: linear are functions"):
        prepare(export(Functional().eval(), torch.randn(8, 16)), config)


def test_smoothing_is_left_out_where_all_its_layers_are_faster_in_float(monkeypatch, caplog):
    linear_lost = lambda model, ops: {key: "float is faster here" for key in ops if key[1] == "Linear"}  # noqa: E731
    monkeypatch.setattr("neural_compressor.torch.quantization.plans.slower_in_graph", linear_lost)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()
    found = graph_of(model, SmoothQuantConfig(), torch.randn(4, 3, 8, 8))
    assert list(found.quantization.plan) == [("0", "Conv2d")]
    assert "the pass smooth() is left out: all layers that it is for stay in float" in caplog.text
