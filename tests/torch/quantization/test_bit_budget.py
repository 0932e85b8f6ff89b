"""Schemes that are chosen layer by layer, within a budget of bits."""

import copy
import itertools
import json

import pytest
import torch
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.torch.quantization import AutoRoundConfig, GPTQConfig, convert, prepare
from neural_compressor.torch.quantization.bit_budget import Choice, allot


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.up = (nn.Linear(64, 64, bias=False) for _ in range(3))

    def forward(self, x):
        return x + self.up((self.q(x) * self.k(x)).tanh())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(64, 4)

    def forward(self, x):
        return self.head(self.blocks(x))


def net():
    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():
        model.blocks[0].q.weight.pow_(5)  # far from evenly spread: few bits do not do for it
    return model


def budget(**fields):
    usual = {"iters": 0, "group_size": 64, "target_bits": 5, "options": ["W2A16", "W8A16"], "ignore_layers": "head"}
    return AutoRoundConfig(**{**usual, **fields})


def schemes(config, model=None):
    model = prepare(net() if model is None else model, config)
    model(torch.randn(8, 64, generator=torch.Generator().manual_seed(1)))
    found = convert(model, quiet=True)
    return {name: each.scheme.weight.dtype.bits for name, each in found.named_modules() if hasattr(each, "scheme")}


def stored_bits(found):
    return sum(bits * 64 * 64 + 64 * 32 for bits in found.values()) / (len(found) * 64 * 64)  # a float32 scale a row


@pytest.mark.parametrize("seed", range(20))
def test_what_is_chosen_fits_and_is_near_the_best_there_is(seed):
    draw = torch.Generator().manual_seed(seed)
    units = [
        [Choice(bits, float(torch.rand(1, generator=draw)) * 4.0**-bits, str(bits)) for bits in (2, 3, 4, 8)]
        for _ in range(5)
    ]
    found = allot(units, 21)
    assert sum(choice.bits for choice in found) <= 21
    every = (each for each in itertools.product(*units) if sum(choice.bits for choice in each) <= 21)
    best = min(sum(choice.error for choice in each) for each in every)
    # What is bought is best but for the last that no longer fits.
    largest = max(max(each.error for each in choices) for choices in units)
    assert best <= sum(choice.error for choice in found) <= best + largest


def test_layers_that_lose_most_get_the_bits(caplog):
    with caplog.at_level("INFO", logger="neural_compressor"):
        found = schemes(budget(target_bits=4))
    assert "head" not in found
    assert sorted(found.values()) == [2, 2, 2, 2, 2, 8]
    assert found["blocks.0.q"] == 8
    assert stored_bits(found) <= 4
    assert f"{stored_bits(found):.3f} bits a weight on average" in caplog.text
    assert schemes(budget(target_bits=4)) == found
    assert set(schemes(budget(target_bits=9)).values()) == {8}


def test_shared_layers_get_the_same():
    for target in (3, 4, 5, 6, 7):
        found = schemes(budget(target_bits=target, shared_layers=[["q", "*.k"]]))
        assert stored_bits(found) <= target
        assert all(found[f"blocks.{n}.q"] == found[f"blocks.{n}.k"] for n in (0, 1))
    everywhere = [["blocks.0.q", "blocks.1.q"]]
    found = schemes(budget(target_bits=6, shared_layers=everywhere))
    assert found["blocks.0.q"] == found["blocks.1.q"]
    for wrong, said in (([["nowhere"]], "nowhere"), ([["q"], ["blocks.0.q"]], "twice")):
        with pytest.raises(ConfigError, match=said):
            schemes(budget(shared_layers=wrong))


def test_layers_that_engines_multiply_as_one_matrix_get_the_same(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, **sizes)).eval()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.pow_(5)
    data = [torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(0))]
    for shared in (None, []):
        fields = {
            "options": ["W3A16", "W8A16"],
            "target_bits": 6,
            "group_size": 64,
            "iters": 0,
            "shared_layers": shared,
        }
        prepared = prepare(copy.deepcopy(model), AutoRoundConfig(**fields))
        prepared(data[0])
        found = convert(prepared, quiet=True)
        parts = [(layer.self_attn, ("q_proj", "k_proj", "v_proj")) for layer in found.model.layers]
        parts += [(layer.mlp, ("gate_proj", "up_proj")) for layer in found.model.layers]
        alike = [len({getattr(of, name).scheme.weight.dtype.name for name in names}) == 1 for of, names in parts]
        assert all(alike) == (shared is None)
        if shared is None:
            found.save(tmp_path / "m", format="huggingface")
            assert {each.scheme.weight.dtype.name for each in found.modules() if hasattr(each, "scheme")} == {
                "int3",
                "int8",
            }


def test_options_may_have_groups_of_their_own():
    model = prepare(net(), budget(options="MXFP4, W8A16", target_bits=6))
    model(torch.randn(8, 64, generator=torch.Generator().manual_seed(1)))
    weights = [each.scheme.weight for each in convert(model, quiet=True).modules() if hasattr(each, "scheme")]
    assert {(each.dtype.name, each.granularity.size) for each in weights} == {("mxfp4", 32), ("int8", 64)}


def test_options_with_and_without_activations_in_few_bits():
    fields = {"options": ["W4A16", "W8A8"], "target_bits": 6, "iters": 1}
    assert set(schemes(budget(**fields, use_full_range=False)).values()) == {4, 8}
    with pytest.raises(ConfigError, match="use_full_range=False"):
        schemes(budget(**fields))


def test_quantized_scales_take_fewer_bits():
    fields = {"target_bits": 5, "options": ["W4A16"], "group_size": 16}
    with pytest.raises(ConfigError, match="times the bits"):
        schemes(budget(**fields))  # a scale of 32 bits for 16 weights
    assert set(schemes(budget(**fields, super_bits=6, super_group_size=64)).values()) == {4}


def test_data_in_the_configuration_has_a_say():
    # The inputs of one layer alone are not small: what its weights lose is what the model loses.
    model = net()
    with torch.no_grad():
        model.blocks[0].up.weight.zero_()
        model.blocks[0].q.weight.mul_(1e-3)
    data = [torch.randn(8, 64, generator=torch.Generator().manual_seed(2))]
    found = schemes(budget(target_bits=4, dataset=data), copy.deepcopy(model))
    assert found["blocks.0.q"] == found["blocks.0.k"] == 2  # nothing of them comes through
    assert 8 in (found["blocks.1.q"], found["blocks.1.k"], found["blocks.1.up"])


def test_rules_are_kept_and_not_counted():
    config = budget(target_bits=4, layer_config={"blocks.0.q": {"scheme": "W4A16"}})
    found = schemes(config)
    assert found.pop("blocks.0.q") == 4
    assert stored_bits(found) <= 4
    mixed = schemes(
        budget(ignore_layers=None, white_list=["blocks.0.*"]) + GPTQConfig(group_size=64, white_list="head")
    )
    assert mixed["head"] == 4
    assert not any(name.startswith("blocks.1") for name in mixed)
    assert AutoRoundConfig.from_dict(json.loads(config.to_json_string())).identity == config.identity
    assert config.identity != budget(target_bits=5, layer_config={"blocks.0.q": {"scheme": "W4A16"}}).identity


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"options": None}, "target_bits: schemes are chosen with"),
        ({"target_bits": None}, "options: schemes are chosen with"),
        ({"target_bits": None, "options": None, "shared_layers": [["q", "k"]]}, "shared_layers"),
        ({"target_bits": 2}, "times the bits"),
        ({"options": "W8A16", "target_bits": 6}, "times the bits"),
        ({"options": ["W2A16G32", "MXFP8"]}, "AutoRoundConfig.group_size"),
        ({"bits": 3}, "AutoRoundConfig.bits"),
        ({"scheme": "W3A16"}, "AutoRoundConfig.scheme"),
    ],
)
def test_what_makes_no_budget_is_refused(fields, said):
    with pytest.raises(ConfigError, match=said):
        prepare(net(), budget(**fields))


def test_a_rule_has_no_budget():
    config = AutoRoundConfig().set_local("head", AutoRoundConfig(target_bits=4, options="W2A16,W8A16"))
    with pytest.raises(ConfigError, match="target_bits"):
        prepare(net(), config)


class Experts(nn.Module):
    """Two stacks of matrices, each in one parameter, beside a layer."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(64, 64, bias=False)
        self.up, self.down = (nn.Parameter(torch.randn(4, 64, 64) / 8) for _ in range(2))

    def forward(self, x):
        x = self.gate(x)
        return x + sum(torch.relu(x @ up.T) @ down.T for up, down in zip(self.up, self.down, strict=True))


@pytest.mark.parametrize("data", [None, [torch.ones(8, 64)]], ids=["none", "some"])
def test_experts_in_one_parameter_have_a_share_of_the_budget(data):
    torch.manual_seed(0)
    model = nn.Sequential(Experts()).eval()
    with torch.no_grad():
        model[0].up.pow_(5)  # most of it is in few values, for which few bits do
    # Of nine matrices five can have 8 bits, (5 * 8.5 + 4 * 2.5) / 9: the one of the layer, and those that lose most.
    found = schemes(budget(disable_opt_rtn=True, ignore_layers=[], target_bits=5.9, dataset=data), model)
    assert found == {"0.gate": 8, "0.up": 2, "0.down": 8}
