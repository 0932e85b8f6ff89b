"""The AWQ layout against a layer assembled value by value from its description."""

from __future__ import annotations

import numpy as np
import pytest

from neural_compressor.errors import FormatError
from neural_compressor.formats import AWQ, LinearSpec, LinearWeight, format_of

INPUTS, OUTPUTS, GROUP = 48, 24, 16
#: The bit at which each of eight neighbouring outputs stands: output 1 comes fifth, output 2 second.
PLACES = {0: 0, 2: 4, 4: 8, 6: 12, 1: 16, 3: 20, 5: 24, 7: 28}


def packed_rows(codes: np.ndarray) -> np.ndarray:
    """Rows of values as rows of words, one value after another."""
    rows = []
    for row in codes.tolist():
        words = []
        for start in range(0, len(row), 8):
            word = 0
            for k in range(8):
                word |= row[start + k] << PLACES[k]
            words.append(word - (1 << 32) if word >> 31 else word)
        rows.append(words)
    return np.asarray(rows, np.int32)


def by_hand() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 16, (INPUTS, OUTPUTS))
    zeros = rng.integers(0, 16, (INPUTS // GROUP, OUTPUTS))
    scales = rng.random((INPUTS // GROUP, OUTPUTS)).astype(np.float16)
    weight = np.empty((OUTPUTS, INPUTS), np.float32)
    for o in range(OUTPUTS):
        for i in range(INPUTS):
            g = i // GROUP
            weight[o, i] = np.float32(codes[i, o] - zeros[g, o]) * np.float32(scales[g, o])
    return {"qweight": packed_rows(codes), "qzeros": packed_rows(zeros), "scales": scales}, weight


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
        {"zero_point": True, "q_group_size": GROUP, "w_bit": 4, "version": "GEMM"},
    ],
)
def test_a_layer_assembled_by_hand_is_read(config: dict) -> None:
    tensors, expected = by_hand()
    weight = AWQ().decompress(tensors, config, "fc")
    assert np.array_equal(weight.dequantize(), expected)
    assert weight.spec == LinearSpec(4, GROUP, symmetric=False)
    for part, array in AWQ().compress(weight).items():
        assert np.array_equal(array, tensors[part]), part


def test_zero_points_in_the_middle_make_a_symmetric_weight() -> None:
    rng = np.random.default_rng(1)
    weight = LinearWeight(rng.integers(0, 16, (8, 32)).astype(np.uint8), np.ones((8, 2), np.float16), None, 4, 16)
    back = AWQ().decompress(AWQ().compress(weight), AWQ().config({"fc": weight.spec}), "fc")
    assert back.symmetric
    assert np.array_equal(back.codes, weight.codes)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (LinearWeight(np.zeros((8, 32), np.uint8), np.ones((8, 1), np.float32), None, 3, -1), "4 bits, not 3"),
        (LinearWeight(np.zeros((9, 32), np.uint8), np.ones((9, 1), np.float32), None, 4, -1), "8 outputs at a time"),
        (LinearWeight(np.zeros((8, 40), np.uint8), np.ones((8, 2), np.float32), None, 4, 32), "32 does not divide 40"),
        (
            LinearWeight(np.zeros((8, 2), np.uint8), np.ones((8, 2), np.float32), None, 4, 1, np.int32([1, 0])),
            "activation order",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(weight: LinearWeight, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        AWQ().compress(weight, "fc")


def test_layers_of_different_bits_have_no_common_block() -> None:
    with pytest.raises(FormatError, match=r"one \(bits, group size\)"):
        AWQ().config({"a": LinearSpec(4, 32, True), "b": LinearSpec(4, 64, True)})
    assert AWQ().config({"a": LinearSpec(4, 32, True)}, ["lm_head"])["modules_to_not_convert"] == ["lm_head"]


def test_another_version_of_the_layout_is_refused() -> None:
    with pytest.raises(FormatError, match="'version': 'gemv'"):
        format_of({"quant_method": "awq", "bits": 4, "version": "gemv"})
    tensors, _ = by_hand()
    with pytest.raises(FormatError, match="4 bits, found 8"):
        AWQ().decompress(tensors, {"bits": 8, "group_size": GROUP}, "fc")
