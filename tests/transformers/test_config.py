"""Settings in the manner of Hugging Face, and what they become."""

from __future__ import annotations

import pytest
import torch

from neural_compressor.errors import ConfigError
from neural_compressor.torch import quantization as ours
from neural_compressor.transformers import AutoRoundConfig, AwqConfig, GPTQConfig, RtnConfig, TeqConfig

PAIRS = [
    (RtnConfig, ours.RTNConfig()),
    (GPTQConfig, ours.GPTQConfig(block_size=128)),
    (AwqConfig, ours.AWQConfig(use_sym=False)),
    (TeqConfig, ours.TEQConfig()),
    (AutoRoundConfig, ours.AutoRoundConfig()),
]


@pytest.mark.parametrize(("cls", "expected"), PAIRS, ids=[cls.quant_method for cls, _ in PAIRS])
def test_defaults_become_the_defaults_of_the_algorithm(cls: type, expected: ours.ComposableConfig) -> None:
    assert cls().to_torch_config() == expected
    assert cls.quant_method == expected.name


@pytest.mark.parametrize(("cls", "expected"), PAIRS, ids=[cls.quant_method for cls, _ in PAIRS])
def test_bits_groups_and_symmetry_arrive(cls: type, expected: ours.ComposableConfig) -> None:
    for name in ("sym", "use_sym"):
        for sym in (True, False):
            config = cls(**{"bits": 8, "group_size": -1, name: sym, "quant_lm_head": True}).to_torch_config()
            assert (config.bits, config.group_size, config.use_sym, config.quant_lm_head) == (8, -1, sym, True)
    nf4 = cls(weight_dtype="nf4", sym=True).to_torch_config()
    assert (nf4.dtype, nf4.bits, nf4.use_sym) == ("nf4", 4, True)


def test_the_parameters_of_each_arrive_under_their_names_there() -> None:
    gptq = GPTQConfig(desc_act=True, damp_percent=0.1, blocksize=64, true_sequential=True, static_groups=True)
    there = gptq.to_torch_config()
    assert (there.act_order, there.percdamp, there.block_size) == (True, 0.1, 64)
    assert (there.true_sequential, there.static_groups) == (True, True)
    assert GPTQConfig(act_order=True, percdamp=0.1, block_size=64).to_torch_config().act_order
    awq = AwqConfig(auto_scale=False, auto_clip=False, absorb_layer_dict={"norm": ["fc"]}).to_torch_config()
    assert (awq.use_auto_scale, awq.use_auto_clip, awq.absorb_layer_dict) == (False, False, {"norm": ["fc"]})
    assert TeqConfig(absorb_layer_dict={"norm": "fc"}).to_torch_config().absorb_to_layer == {"norm": ["fc"]}
    tuned = AutoRoundConfig(n_samples=7, seq_len=64, iters=5, lr=0.1, disable_quanted_input=True).to_torch_config()
    assert (tuned.nsamples, tuned.seqlen, tuned.iters, tuned.lr) == (7, 64, 5, 0.1)
    assert not tuned.enable_quanted_input
    assert RtnConfig(mse_range=True, use_layer_wise=False).to_torch_config().range_search == "mse"
    assert not RtnConfig(use_layer_wise=False).to_torch_config().use_layer_wise


def test_zero_points_are_the_opposite_of_symmetry() -> None:
    assert AwqConfig().to_torch_config().use_sym is False
    assert AwqConfig(zero_point=False).sym is True
    assert AwqConfig(sym=True).zero_point is False
    with pytest.raises(ConfigError, match="contradict"):
        AwqConfig(sym=True, zero_point=True)


def test_modules_are_left_out_by_the_end_of_their_name() -> None:
    ops = {"model.head": "Linear", "model.heads": "Linear", "head.inner": "Linear", "ahead": "Linear"}
    resolved = RtnConfig(modules_to_not_convert=["head"]).to_torch_config().resolve(ops)
    assert [name for name, each in resolved.items() if not each.quantizes] == ["model.head", "head.inner"]


def test_precisions_may_be_torch_dtypes() -> None:
    config = GPTQConfig(compute_dtype=torch.bfloat16, scale_dtype="fp16")
    assert (config.compute_dtype, config.scale_dtype) == ("bf16", "fp16")


@pytest.mark.parametrize(
    ("cls", "fields", "said"),
    [
        (RtnConfig, {"bits": 99}, ["RtnConfig.bits", "99"]),
        (RtnConfig, {"weight_dtype": "banana"}, ["weight_dtype", "banana"]),
        (RtnConfig, {"group_size": 0}, ["group_size"]),
        (RtnConfig, {"sym": True, "use_sym": True}, ["sym twice"]),
        (RtnConfig, {"desc_act": True}, ["no field 'desc_act'"]),
        (GPTQConfig, {"damp_percent": 2}, ["damp_percent"]),
        (GPTQConfig, {"compute_dtype": "int7"}, ["compute_dtype", "int7"]),
        (AutoRoundConfig, {"iters": 0}, ["iters"]),
        (AutoRoundConfig, {"enable_quanted_input": True, "disable_quanted_input": True}, ["opposites"]),
        (AwqConfig, {"modules_to_not_convert": [3]}, ["modules_to_not_convert"]),
    ],
)
def test_nonsense_is_refused(cls: type, fields: dict, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        cls(**fields)
    for words in said:
        assert words in str(caught.value)


def test_the_whole_range_is_used_unless_a_configuration_says_otherwise_or_has_none():
    assert RtnConfig().to_torch_config().use_full_range
    assert not RtnConfig(use_full_range=False).to_torch_config().use_full_range
    assert not RtnConfig(sym=False).to_torch_config().use_full_range
    assert not RtnConfig(weight_dtype="nf4").to_torch_config().use_full_range


def test_names_that_autoround_has_in_both_apis():
    config = AutoRoundConfig(
        enable_quanted_input=False, nblocks=2, gradient_accumulate_steps=3, enable_minmax_tuning=False
    )
    there = config.to_torch_config()
    assert config.to_diff_dict() == {
        "disable_quanted_input": True,
        "nblocks": 2,
        "gradient_accumulate_steps": 3,
        "enable_minmax_tuning": False,
    }
    assert (there.nblocks, there.gradient_accumulate_steps) == (2, 3)
    assert not there.enable_quanted_input
    assert not there.enable_minmax_tuning
