"""No setting is taken and then ignored: each changes the model, is refused, or is known to leave the result as it is."""

import copy

import pytest
import torch

from neural_compressor.errors import ConfigError
from neural_compressor.torch.modules.kernels.dequantized_product import is_fast_at_bf16
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    AWQConfig,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    TEQConfig,
    prepare,
    quantize,
)
from neural_compressor.torch.quantization.config.autoround_names import RUN_FIELDS

REFUSED, SAME, IDLE_HERE, OUTPUTS = "refused", "same", "idle here", "outputs"
AMP = [{"amp": True}, {"amp": False}, *([] if is_fast_at_bf16("cpu") else [IDLE_HERE])]
SCALES = {"use_double_quant": True}
EIGHT = {"act_bits": 8}
CHANNELS = {"bits": 8, "act_bits": 8, "group_size": -1}
WILD = {"not_use_best_mse": True, "lr": 1.0, "minmax_lr": 1.0}
NORM = {"blocks.0.norm": ["blocks.0.up", "blocks.0.gate"]}

WEIGHT = {
    "dtype": [{"dtype": "nf4"}],
    "bits": [{"bits": 3}],
    "use_sym": [{"use_sym": False}],
    "group_size": [{"group_size": 8}],
    "use_mse_search": [{"use_mse_search": True}],
    "use_layer_wise": [{"use_layer_wise": True}, {"use_layer_wise": False}, SAME],
    "model_path": [{"model_path": "somewhere"}, {}, SAME],
    "use_double_quant": [SCALES],
    "double_quant_dtype": [{**SCALES, "double_quant_dtype": "fp8_e4m3"}, SCALES],
    "double_quant_bits": [{**SCALES, "double_quant_bits": 3}, SCALES],
    "double_quant_use_sym": [{**SCALES, "double_quant_use_sym": True}, {**SCALES, "double_quant_use_sym": False}],
    "double_quant_group_size": [{**SCALES, "double_quant_group_size": 8}, SCALES],
    "quant_lm_head": [{"quant_lm_head": True}],
}
SCALED = {
    **WEIGHT,
    "group_dim": [{"group_dim": 0}, {}, REFUSED],
    "use_full_range": [{"use_full_range": False}],
    "use_mse_search": [{"use_mse_search": True, "use_auto_clip": False}, {"use_auto_clip": False}],
    "folding": [{"folding": True, "bits": 3}, {"folding": False, "bits": 3}],
}
SETTINGS = {
    RTNConfig: {
        **WEIGHT,
        "group_dim": [{"group_dim": 0}, {}, REFUSED],
        "use_full_range": [{"use_full_range": False}],
        "scale_search": [{"scale_search": "importance"}, {"scale_search": "mse"}],
        "hadamard": [{"hadamard": True}],
    },
    GPTQConfig: {
        **WEIGHT,
        "use_block_wise": [{"use_block_wise": True}, {"use_block_wise": False}, SAME],
        "act_order": [{"act_order": True}],
        "hybrid_order": [{"hybrid_order": True}],
        "percdamp": [{"percdamp": 0.9}],
        "block_size": [{"block_size": 8}, {"block_size": 2048}, SAME],
        "static_groups": [{"static_groups": True}],
        "true_sequential": [{"true_sequential": True}],
        "correct_upstream": [{"correct_upstream": True}],
        "scale_search": [{"scale_search": "mse"}],
        "hadamard": [{"hadamard": True}],
        "use_full_range": [{"use_full_range": False}],
        "amp": AMP,
    },
    AWQConfig: {
        **SCALED,
        "amp": AMP,
        "use_auto_scale": [{"use_auto_scale": False}],
        "use_auto_clip": [{"use_auto_clip": False}],
        "absorb_layer_dict": [{"absorb_layer_dict": NORM}],
        "hadamard": [{"hadamard": "folded"}],
    },
    TEQConfig: {
        **SCALED,
        "amp": [{"amp": False, "folding": False, "bits": 3}, {"folding": False, "bits": 3}, *AMP[2:]],
        "use_mse_search": [{"use_mse_search": True}],
        "absorb_to_layer": [
            {"absorb_to_layer": NORM, "folding": False, "bits": 3},
            {"folding": False, "bits": 3},
        ],
        "hadamard": [{"hadamard": "folded"}],
    },
    HQQConfig: {
        "dtype": [{"dtype": "int8"}],
        "bits": [{"bits": 3}],
        "group_size": [{"group_size": 8}],
        "quant_zero": [{"quant_zero": False}],
        "quant_scale": [{"quant_scale": True}],
        "scale_quant_group_size": [{"scale_quant_group_size": 8}],
        "quant_lm_head": [{"quant_lm_head": True}],
        "hadamard": [{"hadamard": "folded"}],
    },
    AutoRoundConfig: {
        **{name: WEIGHT[name] for name in ("dtype", "bits", "use_sym", "group_size", "quant_lm_head")},
        "act_bits": [{"act_bits": 8}, {}, OUTPUTS],
        "act_group_size": [{**EIGHT, "act_group_size": -1}, EIGHT, OUTPUTS],
        "act_sym": [{**EIGHT, "act_sym": False}, EIGHT, OUTPUTS],
        "act_dtype": [{**EIGHT, "act_dtype": "fp8_e4m3"}, EIGHT, OUTPUTS],
        "act_dynamic": [{"act_dynamic": False, **CHANNELS}, CHANNELS, OUTPUTS],
        "iters": [{"iters": 9}],
        "nsamples": [{"nsamples": 5}],
        "seqlen": [{"seqlen": 7}],
        "batch_size": [{"batch_size": 1}],
        "lr": [{"lr": 0.4}],
        "minmax_lr": [{"minmax_lr": 0.2}],
        "enable_minmax_tuning": [{"enable_minmax_tuning": False}],
        "enable_quanted_input": [{"enable_quanted_input": False}],
        "seed": [{"seed": 1}],
        "scheme": [{"scheme": "W3A16"}],
        "hadamard": [{"hadamard": "folded"}],
        "use_full_range": [{"use_full_range": False}],
        "amp": AMP,
        "gradient_accumulate_steps": [{"gradient_accumulate_steps": 2}],
        "lr_scheduler": [{"lr_scheduler": "constant"}],
        "super_bits": [{"super_bits": 4, "super_group_size": 8}, {"super_bits": 6, "super_group_size": 8}],
        "super_group_size": [{"super_bits": 4, "super_group_size": 4}, {"super_bits": 4, "super_group_size": 8}],
        "nblocks": [{"nblocks": 2}],
        "sampler": [{"sampler": "seq"}],
        "disable_opt_rtn": [{"iters": 0, "disable_opt_rtn": True}, {"iters": 0}],
        "dynamic_max_gap": [{"dynamic_max_gap": 1, **WILD, "iters": 20}, {**WILD, "iters": 20}],
        # Steps so large that the error grows.
        "not_use_best_mse": [WILD, {"lr": 1.0, "minmax_lr": 1.0}],
    },
}
USUAL = {cls: {"group_size": 16} for cls in SETTINGS} | {
    GPTQConfig: {"group_size": 16, "scale_search": "none", "correct_upstream": False},
    AutoRoundConfig: {"group_size": 16, "iters": 3, "batch_size": 2},
}


@pytest.mark.parametrize("cls", SETTINGS)
def test_every_field_is_spoken_of(cls):
    # Data and files are no settings of a layer: tests of autoround_runs have them.
    assert set(SETTINGS[cls]) == set(cls.model_fields) - {"white_list", "local"} - set(RUN_FIELDS)


CASES = [
    pytest.param(cls, *([*case, {}] if len(case) == 1 else case), id=f"{cls.name}-{name}")
    for cls, fields in SETTINGS.items()
    for name, case in fields.items()
]


def _split(case):
    changed, usual, *verdict = case
    return changed, usual, verdict[0] if verdict else "changed"


@pytest.mark.parametrize(
    ("cls", "changed", "usual", "verdict"),
    [pytest.param(p.values[0], *_split(p.values[1:]), id=p.id) for p in CASES],
)
def test_each_field_does_what_it_says(stack, run, tokens, cls, changed, usual, verdict):
    if verdict == REFUSED:
        with pytest.raises(ConfigError, match=rf"{cls.__name__}\.{next(iter(changed))}"):
            prepare(stack, cls(**{**USUAL[cls], **changed}))
        return
    one, other = (cls(**{**USUAL[cls], **fields}) for fields in (changed, usual))
    models = [quantize(copy.deepcopy(stack), config, run_fn=run) for config in (one, other)]
    if verdict == OUTPUTS:
        assert not torch.equal(*(model(tokens[0]) for model in models))
        return
    first, second = (model.state_dict() for model in models)
    if verdict == "changed":
        assert first.keys() != second.keys() or any(not torch.equal(first[key], second[key]) for key in first)
    else:
        # Sums in another order may tip the rounding of a weight.
        close = {key: torch.isclose(first[key].float(), second[key].float(), rtol=1e-4) for key in first}
        assert min(float(same.float().mean()) for same in close.values()) > 0.98
        assert verdict == IDLE_HERE or one.identity == other.identity, "a search must not try both"


def test_a_limit_of_samples_is_kept_and_said(stack, tokens, caplog):
    limited = AutoRoundConfig(group_size=16, iters=3, nsamples=5, seqlen=7)

    def run_all(model):
        for ids in tokens:
            model(ids)

    def run_limited(model):
        for ids in (tokens[0], tokens[1], tokens[2][:1]):
            model(ids[:, :7])

    found = quantize(copy.deepcopy(stack), limited, run_fn=run_all).state_dict()
    assert "first 5 samples" in caplog.text
    unlimited = AutoRoundConfig(group_size=16, iters=3)
    expected = quantize(copy.deepcopy(stack), unlimited, run_fn=run_limited).state_dict()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_who_needs_more_data_gets_it(stack, run):
    both = AutoRoundConfig(group_size=16, iters=3, nsamples=1, white_list=[r"blocks\.0\..*"])
    both = both + GPTQConfig(group_size=16, white_list=[r"blocks\.[12]\..*"])
    prepared = prepare(stack, both)
    run(prepared)
    assert len(prepared._prepared.execution.calls) == 6


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (AWQConfig(absorb_layer_dict={"blocks.0.nrm": ["blocks.0.up"]}), r"'blocks\.0\.nrm'.*blocks\.0\.norm"),
        (AWQConfig(absorb_layer_dict={"blocks.0.norm": ["blocks.0.pu"]}), r"'blocks\.0\.pu'.*blocks\.0\.up"),
        (AutoRoundConfig(act_dtype="mxfp4"), "act_dtype='mxfp4'.*weights in blocks"),
        (
            AutoRoundConfig(scheme="MXFP4", act_dynamic=False),
            "act_dynamic=False: blocks of mxfp4 inputs have scales of their own",
        ),
        (AutoRoundConfig(scheme="NVFP4", act_sym=False), "act_sym: nvfp4 has blocks of its own"),
        (AutoRoundConfig().set_local("blocks.1.down", AutoRoundConfig(iters=7)), r"trained together.*same iters"),
    ],
)
def test_what_cannot_be_done_is_said_before_any_work(stack, config, said):
    with pytest.raises(ConfigError, match=said):
        prepare(stack, config)


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ({"blocks.0.norm": ["blocks.0.up"]}, "list all of these"),
        ({"blocks.0.up": ["blocks.0.down"]}, r"'blocks\.0\.up' .* cannot take up"),
    ],
)
def test_scales_go_only_where_they_leave_the_model_the_same(stack, run, listed, said):
    with pytest.raises(ConfigError, match=said):
        quantize(stack, AWQConfig(group_size=16, folding=True, absorb_layer_dict=listed), run_fn=run)


def test_scales_go_into_the_norm_that_is_named(stack, tokens, run):
    reference = copy.deepcopy(stack)
    model = quantize(stack, AWQConfig(group_size=16, absorb_layer_dict=NORM), run_fn=run)
    assert model.blocks[0].up.input_scale is None
    assert not torch.equal(model.blocks[0].norm.weight, reference.blocks[0].norm.weight)
    assert model.blocks[1].up.input_scale is not None
    assert torch.equal(model.blocks[1].norm.weight, reference.blocks[1].norm.weight)
    with torch.no_grad():
        error = (model(tokens[0]) - reference(tokens[0])).norm() / reference(tokens[0]).norm()
    assert float(error) < 0.1


def test_what_activations_are_like_says_nothing_of_those_in_float(caplog):
    AutoRoundConfig(act_sym=True, act_group_size=16)
    assert "with act_bits=16 activations stay in float; not read: act_group_size, act_sym" in caplog.text
