"""The contract of a data type as a test suite: subclass it, say how to make the type, inherit the tests."""

from __future__ import annotations

import math
import pickle

import numpy as np
import numpy.typing as npt
import pytest

from neural_compressor.dtypes import DTYPES, DType
from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import (
    PER_CHANNEL,
    PER_TENSOR,
    PackedArray,
    PerGroup,
    QuantizedArray,
    TensorScheme,
    fake_quantize,
    quantize,
    quantize_with,
)
from neural_compressor.schemes.grid import decode, encode

Floats = npt.NDArray[np.float32]


class DTypeContract:
    """What every data type must do, whatever its kind.

    Subclass it as ``class TestMyType(DTypeContract)`` and override :meth:`make_dtype`. The type must be registered.
    """

    def make_dtype(self) -> DType:
        """The data type."""
        raise NotImplementedError

    # -- what the tests share ---------------------------------------------------------------------------------------

    def schemes(self) -> list[TensorScheme]:
        """Every way the toolkit maps tensors to the type."""
        kind = self.make_dtype()
        sides = (True, False) if kind.is_integer else (True,)
        parts = (PER_TENSOR, PER_CHANNEL, PerGroup(8))
        return [TensorScheme(kind, symmetric, part) for symmetric in sides for part in parts]

    def values(self, shape: tuple[int, ...] = (5, 37)) -> Floats:
        """Numbers of both signs, some of them far out, zero among them."""
        rng = np.random.default_rng(7)
        x = rng.standard_normal(shape) * np.exp2(rng.integers(-4, 5, shape))
        x[..., 0] = 0.0
        return x.astype(np.float32)

    def grid(self) -> Floats:
        """The numbers a single code can stand for, ascending, each once."""
        kind = self.make_dtype().element_type
        if kind.bits > 16:
            pytest.skip(f"{kind.name} has too many values to list")
        if kind.is_integer:
            return np.arange(int(kind.min), int(kind.max) + 1, dtype=np.float32)
        values: Floats = decode(np.arange(1 << kind.bits, dtype=np.int32), kind)
        return np.unique(values[np.isfinite(values)])

    @staticmethod
    def same(a: QuantizedArray, b: QuantizedArray) -> bool:
        """Whether two quantized arrays hold the same bits."""
        pairs = zip(a.pack().arrays().items(), b.pack().arrays().items(), strict=True)
        return all(m == n and np.array_equal(np.asarray(x), np.asarray(y)) for (m, x), (n, y) in pairs)

    # -- a data type is a value -------------------------------------------------------------------------------------

    def test_it_is_registered_under_its_name(self) -> None:
        kind = self.make_dtype()
        assert kind.name in DTYPES, f"register {kind.name!r} with neural_compressor.dtypes.register_dtype"
        assert DTYPES[kind.name] == kind

    def test_it_compares_hashes_and_travels(self) -> None:
        kind = self.make_dtype()
        assert kind == self.make_dtype()
        assert hash(kind) == hash(self.make_dtype())
        assert pickle.loads(pickle.dumps(kind)) == kind

    def test_schemes_of_it_survive_being_written_down(self) -> None:
        for scheme in self.schemes():
            back = TensorScheme.from_dict(scheme.to_dict())
            assert back.to_dict() == scheme.to_dict()
            assert back.dtype == scheme.dtype

    def test_its_bounds_are_the_ends_of_its_grid(self) -> None:
        kind, grid = self.make_dtype(), self.grid()
        assert 2 <= grid.size <= 1 << kind.bits
        assert (grid[0], grid[-1]) == (np.float32(kind.min), np.float32(kind.max))
        assert kind.signed == bool(grid[0] < 0)
        assert kind.peak > 0

    # -- what it answers about its codes ----------------------------------------------------------------------------

    def test_its_codes_stand_for_its_grid(self) -> None:
        kind, grid = self.make_dtype().element_type, self.grid()
        assert len(kind.code_values) <= 1 << kind.bits, "a code has more values than its bits can tell apart"
        values = np.asarray(kind.code_values, dtype=np.float32)
        assert np.array_equal(np.unique(values[np.isfinite(values)]), grid)
        assert np.array_equal(np.asarray(kind.grid, dtype=np.float32), grid)

    def test_integers_are_their_own_codes(self) -> None:
        kind = self.make_dtype()
        if not kind.is_integer:
            return
        assert kind.needs_scale
        assert kind.block_size is None, "a format with blocks of integers is no integer itself: its element is"
        low = -(1 << (kind.bits - 1)) if kind.signed else 0
        assert low <= kind.min <= 0 <= kind.max < low + (1 << kind.bits)
        patterns = np.asarray(kind.code_values, dtype=np.float32)
        codes = np.arange(patterns.size)
        codes = np.where(codes > kind.max, codes - (1 << kind.bits), codes) if kind.signed else codes
        assert np.all(np.isnan(patterns) | (patterns == codes))

    def test_a_sign_bit_turns_the_sign(self) -> None:
        kind, grid = self.make_dtype().element_type, self.grid()
        if not kind.sign_magnitude:
            assert kind.binades is None, "binades are those of the magnitudes of a type with a sign bit"
            return
        positive, negative = np.split(np.asarray(kind.code_values), 2)
        assert np.array_equal(positive, -negative, equal_nan=True)
        numbers = positive[np.isfinite(positive)]
        assert np.all(np.diff(numbers) > 0)
        assert np.all(np.isfinite(positive[: numbers.size])), "codes of no number come after those of the largest"
        if kind.binades is not None:
            lowest, mantissa = kind.binades
            spacing = np.exp2(np.maximum(np.floor(np.log2(np.maximum(numbers[:-1], 1e-300))), lowest) - mantissa)
            assert np.array_equal(np.diff(numbers), spacing)
        assert np.array_equal(grid, -grid[::-1])

    def test_its_unit_divides_every_value(self) -> None:
        kind = self.make_dtype().element_type
        if kind.unit is not None and kind.bits <= 16:
            multiples = np.asarray(kind.grid) / kind.unit
            assert np.array_equal(multiples, np.round(multiples))

    def test_blocks_have_scales_that_can_be_stored(self) -> None:
        kind = self.make_dtype()
        if kind.block_size is None:
            assert kind.scale_type is None
            assert kind.element_type == kind
            return
        assert kind.block_size >= 1
        assert kind.element_type.block_size is None
        assert kind.bits == kind.element_type.bits
        if kind.scale_type is None:
            assert not kind.has_tensor_scale
            return
        assert kind.scale_type.bits <= 8
        assert kind.scale_type.max > 0
        assert not (kind.scale_type.is_integer and kind.scale_type.signed)

    # -- rounding ---------------------------------------------------------------------------------------------------

    def test_every_value_of_the_grid_is_kept(self) -> None:
        kind, grid = self.make_dtype().element_type, self.grid()
        assert np.array_equal(decode(encode(grid, kind), kind), grid)

    def test_rounding_goes_to_the_nearest(self) -> None:
        kind, grid = self.make_dtype().element_type, self.grid()
        # Points between neighbours of the grid, more where it is dense, and beyond both of its ends.
        position = np.random.default_rng(3).uniform(0, grid.size - 1, 2000)
        between = np.interp(position, np.arange(grid.size), grid.astype(np.float64))
        reach = float(grid[-1]) - float(grid[0])
        spots = np.concatenate([between, [float(grid[0]) - reach, float(grid[-1]) + reach]])
        x = spots.clip(np.finfo(np.float32).min, np.finfo(np.float32).max).astype(np.float32)
        found = decode(encode(x, kind), kind).astype(np.float64)
        right = np.clip(np.searchsorted(grid, x), 1, grid.size - 1)
        sides = np.stack([grid[right - 1], grid[right]]).astype(np.float64)
        assert np.array_equal(np.abs(found - x), np.abs(sides - x).min(axis=0))

    def test_order_is_kept(self) -> None:
        kind = self.make_dtype().element_type
        if kind.bits > 16:
            pytest.skip("nothing is rounded")
        x = np.sort(self.values().reshape(-1))
        assert np.all(np.diff(decode(encode(x, kind), kind)) >= 0)

    def test_quantizing_again_changes_nothing(self) -> None:
        for scheme in self.schemes():
            once = quantize(self.values(), scheme)
            again = quantize_with(once.dequantize(), scheme, once.qparams)
            assert np.array_equal(again.dequantize(), once.dequantize()), scheme

    def test_simulation_equals_the_real_thing(self) -> None:
        for scheme in self.schemes():
            q = quantize(self.values(), scheme)
            assert np.array_equal(fake_quantize(self.values(), scheme, q.qparams), q.dequantize()), scheme

    def test_zero_stays_zero(self) -> None:
        if 0.0 not in self.grid():
            pytest.skip("the type has no zero")
        for scheme in self.schemes():
            assert np.all(quantize(self.values(), scheme).dequantize()[:, 0] == 0.0), scheme
            assert np.all(quantize(np.zeros((3, 20), np.float32), scheme).dequantize() == 0.0), scheme

    # -- storage ----------------------------------------------------------------------------------------------------

    def test_packing_keeps_every_bit(self) -> None:
        for scheme in self.schemes():
            q = quantize(self.values(), scheme)
            packed = q.pack()
            back = PackedArray.from_arrays(packed.arrays(), scheme, q.shape).unpack()
            assert self.same(back, q)
            assert np.array_equal(back.codes, q.codes)
            assert back.codes.dtype == q.codes.dtype
            assert np.array_equal(back.dequantize(), q.dequantize()), scheme

    def test_storage_is_what_the_bits_say(self) -> None:
        kind = self.make_dtype()
        x = self.values((16, 256))
        packed = quantize(x, TensorScheme(kind)).pack()
        assert packed.data.nbytes == math.ceil(x.size * kind.bits / 8)
        q = quantize(x, TensorScheme(kind))
        assert q.nbytes_packed == sum(array.nbytes for array in packed.arrays().values())
        if kind.block_size and kind.scale_type:
            scales = 16 * math.ceil(256 / kind.block_size)
            assert q.nbytes_packed == packed.data.nbytes + scales + (4 if kind.has_tensor_scale else 0)

    # -- array libraries --------------------------------------------------------------------------------------------

    def test_torch_gives_the_same_bits(self) -> None:
        torch = pytest.importorskip("torch")
        for scheme in self.schemes():
            x = self.values()
            ours, theirs = quantize(x, scheme), quantize(torch.from_numpy(x), scheme)
            assert self.same(ours, theirs), scheme
            assert np.array_equal(ours.dequantize(), theirs.dequantize().numpy()), scheme
            assert np.array_equal(ours.dequantize(), theirs.pack().unpack().dequantize().numpy()), scheme

    # -- bad input --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_values_that_are_no_numbers_are_refused(self, bad: float) -> None:
        x = self.values()
        x[2, 3] = bad
        for scheme in self.schemes():
            with pytest.raises(QuantizationError, match="NaN or Inf"):
                quantize(x, scheme)
