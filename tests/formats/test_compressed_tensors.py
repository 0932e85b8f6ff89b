"""The compressed-tensors layouts against layers assembled value by value, and their configuration."""

from __future__ import annotations

import numpy as np
import pytest

from neural_compressor.errors import FormatError
from neural_compressor.formats import FORMATS, IntQuantized, LinearSpec, LinearWeight, PackQuantized, format_of
from neural_compressor.formats.compressed_tensors_config import group_of

INPUTS, OUTPUTS, GROUP = 42, 10, 14


def stream_of_words(signed: list[int], bits: int) -> list[int]:
    """Signed numbers moved up by half their range, as one stream of bits in whole words."""
    number = sum((value + (1 << (bits - 1))) << (bits * k) for k, value in enumerate(signed))
    words = [number >> (32 * k) & 0xFFFFFFFF for k in range(-(-len(signed) * bits // 32))]
    return [word - (1 << 32) if word >> 31 else word for word in words]


def by_hand(bits: int, symmetric: bool, group_size: int) -> tuple[dict[str, np.ndarray], np.ndarray, dict]:
    """The packed tensors of a layer, the weight they stand for, and the configuration."""
    rng = np.random.default_rng(bits)
    half = 1 << (bits - 1)
    groups = 1 if group_size == -1 else INPUTS // group_size
    codes = rng.integers(-half, half, (OUTPUTS, INPUTS))
    zeros = np.zeros((OUTPUTS, groups), int) if symmetric else rng.integers(-half, half, (OUTPUTS, groups))
    scale = rng.random((OUTPUTS, groups)).astype(np.float32)
    weight = np.empty((OUTPUTS, INPUTS), np.float32)
    for o in range(OUTPUTS):
        for i in range(INPUTS):
            g = 0 if group_size == -1 else i // group_size
            weight[o, i] = np.float32(codes[o, i] - zeros[o, g]) * scale[o, g]
    tensors = {
        "weight_packed": np.asarray([stream_of_words(row, bits) for row in codes.tolist()], np.int32),
        "weight_scale": scale,
        "weight_shape": np.asarray([OUTPUTS, INPUTS]),
    }
    if not symmetric:
        packed = [stream_of_words(column, bits) for column in zeros.T.tolist()]
        tensors["weight_zero_point"] = np.ascontiguousarray(np.asarray(packed, np.int32).T)
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "channel" if group_size == -1 else "group",
        "group_size": None if group_size == -1 else group_size,
    }
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    return tensors, weight, config


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [GROUP, -1])
def test_a_layer_assembled_by_hand_is_read(bits: int, symmetric: bool, group_size: int) -> None:
    tensors, expected, config = by_hand(bits, symmetric, group_size)
    form = format_of(config)
    assert form is FORMATS["pack-quantized"]
    weight = form.decompress(tensors, config, "a.fc")
    assert np.array_equal(weight.dequantize(), expected)
    again = form.compress(weight)
    assert again.keys() == tensors.keys()
    for part, array in again.items():
        assert array.dtype == tensors[part].dtype
        assert np.array_equal(array, tensors[part]), part


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", ["int-quantized", "naive-quantized"])
def test_plain_bytes_are_read(symmetric: bool, name: str) -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(-128, 128, (6, 8)).astype(np.int8)
    scale = rng.random((6, 1)).astype(np.float32)
    zeros = np.zeros((6, 1), np.int8) if symmetric else rng.integers(-128, 128, (6, 1)).astype(np.int8)
    weights = {"num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": "channel"}
    config = {
        "quant_method": "compressed-tensors",
        "format": name,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    tensors = {"weight": codes, "weight_scale": scale}
    if not symmetric:
        tensors["weight_zero_point"] = zeros
    form = format_of(config)
    assert isinstance(form, IntQuantized)
    found = form.decompress(tensors, config, "fc").dequantize()
    expected = (codes.astype(np.float32) - zeros.astype(np.float32)) * scale
    assert np.array_equal(found, expected)
    # A whole row's scale may come without its second axis.
    flat = {part: array[:, 0] if part != "weight" else array for part, array in tensors.items()}
    assert np.array_equal(form.decompress(flat, config, "fc").dequantize(), expected)


def test_the_activation_order_of_older_checkpoints_is_read() -> None:
    tensors, _, config = by_hand(4, False, GROUP)
    runs = np.arange(INPUTS) // GROUP
    shuffled = np.random.default_rng(5).permutation(runs).astype(np.int32)
    plain = PackQuantized().decompress(tensors, config, "fc")
    for g_idx in (runs.astype(np.int32), np.full(INPUTS, -1, np.int32)):
        same = PackQuantized().decompress({**tensors, "weight_g_idx": g_idx}, config, "fc")
        assert same.g_idx is None
        assert np.array_equal(same.dequantize(), plain.dequantize())
    weight = PackQuantized().decompress({**tensors, "weight_g_idx": shuffled}, config, "fc")
    by_column = (plain.codes[:, i] - plain.zero_points[:, g] for i, g in enumerate(shuffled))
    expected = np.stack([c.astype(np.float32) * plain.scale[:, g] for c, g in zip(by_column, shuffled, strict=True)], 1)
    assert np.array_equal(weight.dequantize(), expected)
    with pytest.raises(FormatError, match="no longer take activation-ordered groups"):
        PackQuantized().compress(weight)


def test_a_group_that_does_not_divide_is_refused() -> None:
    weight = LinearWeight(np.zeros((2, 40), np.uint8), np.ones((2, 2), np.float32), None, 4, 32)
    with pytest.raises(FormatError, match="32 does not divide 40"):
        PackQuantized().compress(weight)


# -- the configuration ----------------------------------------------------------------------------------------------


def test_layers_quantized_alike_are_targeted_by_class() -> None:
    block = PackQuantized().config({"a.fc": LinearSpec(4, 32, True), "b.fc": LinearSpec(4, 32, True)}, ["lm_head"])
    assert block["quant_method"] == "compressed-tensors"
    assert block["format"] == "pack-quantized"
    assert block["ignore"] == ["lm_head"]
    assert list(block["config_groups"]) == ["group_0"]
    assert block["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert block["config_groups"]["group_0"]["weights"]["group_size"] == 32


def test_an_output_head_is_targeted_by_name_too() -> None:
    """Engines have a class of their own for it, which is no Linear."""
    specs = dict.fromkeys(("a.fc", "lm_head"), LinearSpec(4, 32, True))
    groups = PackQuantized().config(specs)["config_groups"]
    assert [group["targets"] for group in groups.values()] == [["Linear", "lm_head"]]


def test_a_group_of_attentions_says_nothing_of_their_layers() -> None:
    attentions = {"targets": ["LlamaAttention"], "weights": None, "input_activations": {"num_bits": 8, "type": "float"}}
    layers = {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "channel"}}
    config = {"config_groups": {"group_0": attentions, "group_1": layers}}
    assert group_of(config, "model.layers.0.self_attn.q_proj") == layers


def test_layers_of_a_model_nobody_knows_are_targeted_by_name() -> None:
    specs = {"a.fc": LinearSpec(4, 32, True), "b.fc": LinearSpec(4, 32, True)}
    assert PackQuantized().config(specs, complete=False)["config_groups"]["group_0"]["targets"] == ["a.fc", "b.fc"]


def test_layers_quantized_otherwise_have_a_group_of_their_own() -> None:
    specs = {"a.fc1": LinearSpec(4, 32, True), "a.fc10": LinearSpec(8, -1, False), "b.fc1": LinearSpec(4, 32, True)}
    block = PackQuantized().config(specs, ["lm_head"])
    groups = block["config_groups"]
    assert [group["targets"] for group in groups.values()] == [["a.fc1", "b.fc1"], ["a.fc10"]]
    assert groups["group_1"]["weights"]["strategy"] == "channel"
    rng = np.random.default_rng(0)
    for name, spec in specs.items():
        zeros = None if spec.symmetric else np.full((4, 1), 7, np.int32)
        codes = rng.integers(0, 1 << spec.bits, (4, 32)).astype(np.uint8)
        weight = LinearWeight(codes, np.ones((4, 1), np.float32), zeros, spec.bits, spec.group_size)
        assert PackQuantized().decompress(PackQuantized().compress(weight), block, name).spec == spec


def test_experts_of_a_mixture_are_targeted_by_one_pattern() -> None:
    def specs(**bits: int) -> dict[str, LinearSpec]:
        of_experts = {f"a.experts.{i}.{part}": LinearSpec(n, 32, True) for part, n in bits.items() for i in range(12)}
        return {"a.q": LinearSpec(8, 32, True), **of_experts}

    block = PackQuantized().config(specs(up=4, down=4))
    assert [group["targets"] for group in block["config_groups"].values()] == [
        ["a.q"],
        [r"re:a\.experts\.\d+\.up$", r"re:a\.experts\.\d+\.down$"],
    ]
    assert all(group_of(block, name)["weights"]["num_bits"] == spec.bits for name, spec in specs(up=4, down=4).items())
    # One that differs from the others is named, and so are they.
    mixed = {**specs(up=4), "a.experts.7.up": LinearSpec(8, 32, True)}
    groups = PackQuantized().config(mixed)["config_groups"].values()
    assert [len(group["targets"]) for group in groups] == [2, 11]


def test_the_closest_target_wins() -> None:
    def group(bits: int, *targets: str) -> dict:
        return {"targets": list(targets), "weights": {"num_bits": bits, "strategy": "channel"}}

    config = {"config_groups": {"g0": group(8, "Linear"), "g1": group(4, "re:.*up_proj$"), "g2": group(3, "a.up_proj")}}
    for name, bits in (("a.up_proj", 3), ("b.up_proj", 4), ("b.down_proj", 8)):
        codes = np.zeros((4, 32), np.uint8)
        weight = LinearWeight(codes, np.ones((4, 1), np.float32), None, bits, -1)
        assert PackQuantized().decompress(PackQuantized().compress(weight), config, name).bits == bits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config_groups": None}, "has 'config_groups'"),
        ({"config_groups": {"g": {"targets": ["b.fc"], "weights": {"num_bits": 4}}}}, "no group"),
        ({"config_groups": {"g": {"targets": ["Linear"], "weights": None}}}, "no integer weights"),
        ({"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}}, "no integer"),
        ({"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 9}}}}, "1 to 8 bits, found 9"),
        ({"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "tensor"}}}}, "tensor"),
        ({"config_groups": {"g": {"targets": ["re:("], "weights": {"num_bits": 4}}}}, "malformed"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(change: dict, message: str) -> None:
    tensors, _, config = by_hand(4, True, GROUP)
    with pytest.raises(FormatError, match=f"layer 'a.fc'.*{message}"):
        PackQuantized().decompress(tensors, {**config, **change}, "a.fc")


def test_a_shape_that_contradicts_the_words_is_refused() -> None:
    tensors, _, config = by_hand(4, True, GROUP)
    for shape in ([OUTPUTS, INPUTS + GROUP], [OUTPUTS + 1, INPUTS], [0, 0], [-1, 5], [OUTPUTS]):
        with pytest.raises(FormatError, match=r"layer 'fc'.*(weight_packed|weight_shape)"):
            PackQuantized().decompress({**tensors, "weight_shape": np.asarray(shape)}, config, "fc")
