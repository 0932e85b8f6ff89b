"""Layers that models call in other ways than one tensor of many rows, by place."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import neural_compressor.torch.quantization as q
from neural_compressor.torch.modules import QuantModule

CONFIGS = {
    "static": q.StaticQuantConfig,
    "kl": lambda: q.StaticQuantConfig(act_algo="kl"),
    "range_search": lambda: q.StaticQuantConfig(range_search=True),
    "learned_rounding": lambda: q.StaticQuantConfig(learned_rounding="block"),
    "smooth_quant": q.SmoothQuantConfig,
    "smooth_quant_auto": lambda: q.SmoothQuantConfig(alpha="auto"),
    "fp8": q.FP8Config,
    "gptq": lambda: q.GPTQConfig(group_size=8),
    "gptq_upstream": lambda: q.GPTQConfig(group_size=8, correct_upstream=True),
    "awq": lambda: q.AWQConfig(group_size=8),
    "teq": lambda: q.TEQConfig(group_size=8),
    "autoround": lambda: q.AutoRoundConfig(group_size=8, iters=3),
}


class Experts(nn.Module):
    """Calls every expert, with the rows that are its own: none for the one that is ``idle``."""

    def __init__(self):
        super().__init__()
        self.idle = 1
        self.gate = nn.Linear(16, 16)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        hidden = self.gate(x)
        out = torch.zeros_like(hidden)
        for place, expert in enumerate(self.experts):
            mine = torch.full((len(x),), place != self.idle)
            out[mine] += expert(hidden[mine])
        return out


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(input=torch.relu(self.up(input=x)))


class ByName(nn.Module):
    """Hands layers their input by name, in repeated blocks and outside of them."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(16, 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(input=x)


def quantized(model, name):
    torch.manual_seed(0)
    batches = [torch.randn(8, 16) for _ in range(3)]
    return q.quantize(model.eval(), CONFIGS[name](), run_fn=lambda m: [m(x) for x in batches], quiet=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_expert_that_only_ever_sees_no_rows_is_left_in_float_and_listed(name):
    model = quantized(Experts(), name)
    assert isinstance(model.experts[0], QuantModule)
    assert type(model.experts[1]) is nn.Linear
    assert model.quantization.reasons["experts.1", "Linear"] == "calibration never reached it"


def test_ranks_on_which_an_expert_had_no_rows_are_merged_with_others(tmp_path):
    model, files = Experts().eval(), {"dump_stats_path": str(tmp_path / "m"), "world_size": 2}
    for rank in (0, 1):
        prepared = q.prepare(model, q.FP8Config(mode="MEASURE", local_rank=rank, **files))
        model.idle = rank
        prepared(torch.randn(8, 16))
        q.finalize_calibration(prepared)
    new = q.convert(model, q.FP8Config(mode="QUANTIZE", local_rank=0, **files), quiet=True)
    assert all(isinstance(expert, QuantModule) for expert in new.experts)


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_that_are_given_their_input_by_name(name):
    model = quantized(ByName(), name)
    assert sum(isinstance(module, QuantModule) for module in model.modules()) == 5
    assert model(torch.ones(2, 16)).isfinite().all()


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_quantized_in_inference_mode_is_used_outside_of_it(name):
    model = ByName()
    with torch.inference_mode():
        model = quantized(model, name)
    assert model(torch.ones(2, 16, requires_grad=True)).shape == (2, 8)
    assert not any(tensor.is_inference() for tensor in model.state_dict().values())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return self.layer(self.layer(x))


def test_tensors_of_a_layer_that_is_called_twice_are_all_kept(tmp_path):
    model, x = Twice().eval(), torch.randn(2, 16)
    prepared = q.prepare(model, q.FP8Config(mode="MEASURE", observer="save", dump_stats_path=str(tmp_path / "m")))
    prepared(x)
    q.finalize_calibration(prepared)
    first, second = (load_file(tmp_path / f"m_hooks_save_layer_0{end}.safetensors") for end in ("", "_2"))
    assert torch.equal(first["layer:input0"], x)
    assert torch.equal(second["layer:input0"], model.layer(x))


class NormedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        return x + self.layer(self.norm(x))


@pytest.mark.parametrize("config", [q.AWQConfig, q.TEQConfig], ids=["awq", "teq"])
def test_a_scale_goes_into_one_of_two_normalisations_that_share_their_gain(config, tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(NormedBlock(), NormedBlock()).eval(), torch.randn(64, 16)
    gain = nn.Parameter(torch.logspace(-1, 1, 16))
    for block in model:
        block.norm.weight = gain
    original = copy.deepcopy(model)
    # With 8 bits TEQ finds a better scale than none in some two of three draws that differ by a millionth; with 6 in all.
    made = q.quantize(model, config(bits=6, group_size=8, folding=True), run_fn=lambda m: m(x), quiet=True)
    made.save(tmp_path / "m")
    with torch.no_grad():
        found, wanted = made(x), original(x)
        assert not torch.equal(made[0].norm.weight, original[0].norm.weight), "a scale went into it"
        assert float((found - wanted).norm() / wanted.norm()) < 0.04
        assert torch.equal(q.load(tmp_path / "m", original)(x), found)


class Encoder(nn.Module):
    """Has padded rows, of which ``nn.TransformerEncoder`` makes nested tensors in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        self.last = nn.Linear(16, 8)

    def forward(self, x, padding):
        return self.last(self.encoder(x, src_key_padding_mask=padding)) * ~padding[..., None]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", CONFIGS)
def test_layers_of_an_encoder_with_a_fused_path_are_seen(name):
    torch.manual_seed(0)
    model, padding = Encoder().eval(), torch.zeros(4, 6, dtype=torch.bool)
    padding[0, 4:] = True
    batches = [torch.randn(4, 6, 16) for _ in range(3)]
    with torch.no_grad():
        expected = torch.stack([model(x, padding) for x in batches])
        fused = [each.activation_relu_or_gelu for each in model.encoder.layers]
        new = q.quantize(copy.deepcopy(model), CONFIGS[name](), run_fn=lambda m: [m(x, padding) for x in batches])
        given = torch.stack([new(x, padding) for x in batches])
    names = {f"encoder.layers.{block}.linear{n}" for block in range(2) for n in (1, 2)} | {"last"}
    assert {n for n, m in new.named_modules() if isinstance(m, QuantModule)} == names
    assert float((given - expected).norm() / expected.norm()) < 0.1
    assert fused == [1, 1], "torch takes the fused path of the float model"


def _with_part(wrap):
    torch.manual_seed(0)
    return nn.Sequential(wrap(nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval()), nn.Linear(16, 16)).eval()


def _compiled_in_place(part):
    part.compile(backend="eager")
    return part


PARTS = {
    "compiled": (lambda part: torch.compile(part, backend="eager"), {"0._orig_mod.0", "1"}),
    "compiled in place": (_compiled_in_place, {"0.0", "1"}),
    "scripted": (torch.jit.script, {"1"}),
    "traced": (lambda part: torch.jit.trace(part, torch.ones(1, 16)), {"1"}),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", ["static", "range_search", "smooth_quant", "fp8", "gptq"])
def test_a_model_of_which_a_part_is_compiled(name, part):
    wrap, names = PARTS[part]
    model, x = _with_part(wrap), torch.randn(8, 16)
    with torch.no_grad():
        expected = model(x)  # compiled before it is prepared, without hooks
    new = q.quantize(model, CONFIGS[name](), run_fn=lambda m: [m(x + 0.1 * place) for place in range(3)])
    assert {n for n, m in new.named_modules() if isinstance(m, QuantModule)} == names
    assert float((new(x) - expected).norm() / expected.norm()) < 0.25
