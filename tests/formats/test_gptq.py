"""The GPTQ layout against checkpoints assembled value by value from its description."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from neural_compressor.errors import FormatError
from neural_compressor.formats import (
    FORMATS,
    GPTQ,
    GPTQv2,
    LinearSpec,
    LinearWeight,
    QuantizedCheckpoint,
    format_of,
)

INPUTS, OUTPUTS, GROUP = 64, 32, 16


def signed_word(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def packed_column(codes: list[int], bits: int) -> list[int]:
    """The words of one column of ``qweight``, as the layout is described, one value after another."""
    words: list[int] = []
    if bits == 3:
        # 32 values in three words: ten whole ones, one cut after 2 bits, ten, one cut after 1 bit, ten.
        for start in range(0, len(codes), 32):
            v = codes[start : start + 32]
            first = sum(v[k] << (3 * k) for k in range(10)) | (v[10] & 3) << 30
            second = v[10] >> 2 | sum(v[11 + k] << (3 * k + 1) for k in range(10)) | (v[21] & 1) << 31
            third = v[21] >> 1 | sum(v[22 + k] << (3 * k + 2) for k in range(10))
            words += [first, second, third]
    else:
        in_a_word = 32 // bits
        for start in range(0, len(codes), in_a_word):
            words.append(sum(codes[start + k] << (bits * k) for k in range(in_a_word)))
    return [signed_word(word) for word in words]


def by_hand(bits: int, version: int, seed: int, act_order: bool, symmetric: bool) -> tuple[dict, np.ndarray]:
    """The tensors of a layer, and the weight they stand for, computed one value at a time."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, (INPUTS, OUTPUTS))
    groups = INPUTS // GROUP
    zeros = np.full((groups, OUTPUTS), 1 << (bits - 1))
    if not symmetric:
        zeros = rng.integers(1, 1 << bits, (groups, OUTPUTS))
    scales = rng.random((groups, OUTPUTS)).astype(np.float16)
    g_idx = np.arange(INPUTS) // GROUP
    if act_order:
        g_idx = rng.permutation(g_idx)
    qweight = np.asarray([packed_column(codes[:, o].tolist(), bits) for o in range(OUTPUTS)], np.int32).T
    stored = zeros - 1 if version == 1 else zeros
    qzeros = np.asarray([packed_column(stored[g].tolist(), bits) for g in range(groups)], np.int32)
    weight = np.empty((OUTPUTS, INPUTS), np.float32)
    for o in range(OUTPUTS):
        for i in range(INPUTS):
            g = g_idx[i]
            weight[o, i] = np.float32(codes[i, o] - zeros[g, o]) * np.float32(scales[g, o])
    tensors = {
        "qweight": np.ascontiguousarray(qweight),
        "qzeros": qzeros,
        "scales": scales,
        "g_idx": g_idx.astype(np.int32),
    }
    return tensors, weight


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_layer_assembled_by_hand_is_read(bits: int, version: int, act_order: bool, symmetric: bool) -> None:
    tensors, expected = by_hand(bits, version, 7, act_order, symmetric)
    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": act_order, "sym": symmetric}
    form = GPTQ() if version == 1 else GPTQv2()
    weight = form.decompress(tensors, config, "fc")
    assert np.array_equal(weight.dequantize(), expected)
    assert weight.spec == LinearSpec(bits, GROUP, symmetric, act_order)
    # And what is written of it is the same, bit for bit.
    for part, array in form.compress(weight).items():
        assert array.dtype == tensors[part].dtype
        assert np.array_equal(array, tensors[part]), part


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_shapes_and_types_are_the_published_ones(bits: int) -> None:
    rng = np.random.default_rng(0)
    weight = LinearWeight(
        rng.integers(0, 1 << bits, (96, 128)).astype(np.uint8), np.ones((96, 4), np.float32), None, bits, 32
    )
    stored = {part: (array.shape, array.dtype.name) for part, array in GPTQ().compress(weight).items()}
    assert stored == {
        "qweight": ((128 * bits // 32, 96), "int32"),
        "qzeros": ((4, 96 * bits // 32), "int32"),
        "scales": ((4, 96), "float16"),
        "g_idx": ((128,), "int32"),
    }


def test_symmetric_zero_points_are_the_well_known_words() -> None:
    weight = LinearWeight(np.zeros((32, 32), np.uint8), np.ones((32, 1), np.float32), None, 4, -1)
    assert set(GPTQ().compress(weight)["qzeros"].reshape(-1).tolist()) == {0x77777777}
    assert set(GPTQv2().compress(weight)["qzeros"].reshape(-1).tolist()) == {signed_word(0x88888888)}


def test_a_layer_without_g_idx_has_groups_in_runs() -> None:
    tensors, expected = by_hand(4, 1, 3, False, False)
    del tensors["g_idx"]
    weight = GPTQ().decompress(tensors, {"bits": 4, "group_size": GROUP}, "fc")
    assert np.array_equal(weight.dequantize(), expected)


def test_zero_points_of_zero_need_the_second_version() -> None:
    weight = LinearWeight(
        np.zeros((32, 32), np.uint8), np.ones((32, 1), np.float32), np.zeros((32, 1), np.int32), 4, -1
    )
    with pytest.raises(FormatError, match=r"layer 'a.fc': it has zero points of 0.*gptq_v2"):
        GPTQ().compress(weight, "a.fc")
    back = GPTQv2().decompress(GPTQv2().compress(weight), GPTQv2().config({"a.fc": weight.spec}), "a.fc")
    assert np.array_equal(back.zero_points, weight.zero_points)


@pytest.mark.parametrize(
    ("shape", "bits", "scale", "reason"),
    [
        ((32, 40), 4, 1.0, "32 values at a time"),
        ((40, 32), 4, 1.0, "32 values at a time"),
        ((32, 32), 5, 1.0, "2, 3, 4 or 8 bits"),
        ((32, 32), 4, 1e6, "65504"),
        ((32, 32), 4, 1e-9, "rounds to zero"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    shape: tuple[int, int], bits: int, scale: float, reason: str
) -> None:
    weight = LinearWeight(np.zeros(shape, np.uint8), np.full((shape[0], 1), scale, np.float32), None, bits, -1)
    assert not GPTQ().can_compress(weight)
    with pytest.raises(FormatError, match=reason):
        GPTQ().compress(weight, "fc")


# -- the configuration ----------------------------------------------------------------------------------------------


def test_the_block_says_what_readers_ask_for() -> None:
    specs = {f"model.layers.{i}.{fc}": LinearSpec(4, 128, True) for i in range(2) for fc in ("q_proj", "up_proj")}
    block = GPTQ().config(specs)
    assert {key: block[key] for key in ("quant_method", "bits", "group_size", "desc_act", "sym")} == {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "desc_act": False,
        "sym": True,
    }
    assert block["checkpoint_format"] == "gptq"
    assert GPTQv2().config(specs)["checkpoint_format"] == "gptq_v2"
    assert "dynamic" not in block
    assert GPTQ().files(block) == {"quantize_config.json": block}


def test_layers_left_in_float_and_layers_of_other_bits_are_exceptions() -> None:
    specs = {f"model.layers.{i}.q_proj": LinearSpec(4, 128, True) for i in range(12)}
    specs["model.layers.1.q_proj"] = LinearSpec(8, 32, False, act_order=True)
    block = GPTQ().config(specs, ignore=["model.layers.0.up_proj"])
    assert block["desc_act"] is True
    assert block["dynamic"] == {
        r"-:^model\.layers\.0\.up_proj$": {},
        r"+:^model\.layers\.1\.q_proj$": {"bits": 8, "group_size": 32, "sym": False},
    }
    assert block["modules_in_block_to_quantize"] == [["q_proj"]]


def test_exceptions_are_named_as_engines_name_layers_that_they_multiply_as_one() -> None:
    names = [f"self_attn.{part}_proj" for part in "qkvo"] + ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    specs = {f"model.layers.{i}.{name}": LinearSpec(4, 128, True) for i in range(3) for name in names}
    left = {f"model.layers.0.self_attn.{part}_proj" for part in "qkv"} | {"model.layers.1.mlp.up_proj"}
    for part in ("gate", "up"):
        specs[f"model.layers.2.mlp.{part}_proj"] = LinearSpec(8, 128, True)
    block = GPTQ().config({name: spec for name, spec in specs.items() if name not in left}, ignore=left)

    def told(layer: str) -> Any:
        """As vLLM and SGLang look it up, by the names of their own layers."""
        return next((own for pattern, own in block["dynamic"].items() if re.match(pattern[2:], layer)), None)

    assert told("model.layers.0.self_attn.qkv_proj") == {}
    assert told("model.layers.1.self_attn.qkv_proj") is None
    assert told("model.layers.2.mlp.gate_up_proj") == {"bits": 8, "group_size": 128, "sym": True}
    assert told("model.layers.1.mlp.gate_up_proj") is None  # of which one half is quantized
    assert told("model.layers.1.mlp.up_proj") == {}


def test_a_layer_of_other_bits_is_read_by_its_own_options() -> None:
    rng = np.random.default_rng(2)
    small = LinearWeight(rng.integers(0, 4, (32, 64)).astype(np.uint8), np.ones((32, 1), np.float16), None, 2, -1)
    common = LinearSpec(4, 16, True)
    block = GPTQ().config({"model.layers.1.fc": small.spec, "model.layers.11.fc": common, "model.layers.2.fc": common})
    stored = GPTQ().compress(small)
    assert np.array_equal(GPTQ().decompress(stored, block, "model.layers.1.fc").codes, small.codes)
    # An exact name is no prefix: layer 11 has the common options, which these tensors contradict.
    with pytest.raises(FormatError, match=r"model.layers.11.fc"):
        GPTQ().decompress(stored, block, "model.layers.11.fc")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "has no 'bits'"),
        ({"bits": "4", "group_size": 16}, "whole number, found '4'"),
        ({"bits": True, "group_size": 16}, "whole number, found True"),
        ({"bits": 5, "group_size": 16}, "2, 3, 4 or 8 bits, found 5"),
        ({"bits": 4, "group_size": 0}, "positive, or -1"),
        ({"bits": 4, "group_size": 16, "dynamic": {"+:(": {}}}, "malformed"),
        ({"bits": 4, "group_size": 16, "dynamic": [1]}, "maps patterns"),
        ({"bits": 8, "group_size": 16}, "has the shape"),
        ({"bits": 4, "group_size": 8}, "has the shape"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(config: dict, message: str) -> None:
    tensors, _ = by_hand(4, 1, 3, False, False)
    with pytest.raises(FormatError, match=f"layer 'fc'.*{message}"):
        GPTQ().decompress(tensors, config, "fc")


def tampered(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    what = rng.integers(4)
    if what == 0:
        return rng.integers(0, 256, array.nbytes).astype(np.uint8).view(array.dtype).reshape(array.shape)
    if what == 1:
        return array[: rng.integers(array.shape[0])]
    return array.reshape(-1) if what == 2 else array.astype(rng.choice(["float32", "int64", "uint8"]))


@settings(max_examples=60)
@given(st.sampled_from(["qweight", "qzeros", "scales", "g_idx"]), st.integers(0, 2**31))
def test_tampered_tensors_are_refused_or_read_as_a_layer(part: str, seed: int) -> None:
    """Whatever is done to a tensor, the outcome is a finite layer of the right shape or an error that names it."""
    tensors, _ = by_hand(4, 1, 3, True, False)
    tensors[part] = tampered(tensors[part], np.random.default_rng(seed))
    outcome = ""
    try:
        weight = GPTQ().decompress(tensors, {"bits": 4, "group_size": GROUP}, "fc")
    except FormatError as error:
        outcome = str(error)
    if not outcome:
        assert weight.dequantize().shape == (OUTPUTS, INPUTS)
        assert np.all(np.isfinite(weight.dequantize()))
    assert not outcome or "layer 'fc'" in outcome


def test_g_idx_beyond_the_groups_is_refused() -> None:
    tensors, _ = by_hand(4, 1, 3, True, False)
    for bad in (-1, INPUTS // GROUP):
        tensors["g_idx"][5] = bad
        with pytest.raises(FormatError, match="'g_idx' does not name groups from 0 to 3"):
            GPTQ().decompress(tensors, {"bits": 4, "group_size": GROUP}, "fc")


# -- whole checkpoints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["config.json", "quantize_config.json"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_assembled_by_hand_is_read(tmp_path: Path, where: str, version: int) -> None:
    layers = {f"model.layers.{i}.mlp.up_proj": by_hand(4, version, i, True, False) for i in range(3)}
    tensors = {f"{name}.{part}": a for name, (parts, _) in layers.items() for part, a in parts.items()}
    tensors["model.norm.weight"] = np.ones(8, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    block = {"bits": 4, "group_size": GROUP, "desc_act": True, "sym": False, "damp_percent": 0.1}
    if version == 2:
        block["checkpoint_format"] = "gptq_v2"
    if where == "config.json":
        settings = {"model_type": "llama", "quantization_config": {"quant_method": "gptq", **block}}
        (tmp_path / where).write_text(json.dumps(settings))
    else:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
        (tmp_path / where).write_text(json.dumps(block))
    with QuantizedCheckpoint(tmp_path, "np") as checkpoint:
        assert checkpoint.format is FORMATS["gptq" if version == 1 else "gptq_v2"]
        assert checkpoint.layers == list(layers)
        assert checkpoint.others == ["model.norm.weight"]
        for name, (_, expected) in layers.items():
            assert np.array_equal(checkpoint.layer(name).dequantize(), expected)


def test_a_version_nobody_has_described_is_refused() -> None:
    with pytest.raises(FormatError, match="'checkpoint_format': 'marlin'"):
        format_of({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})
