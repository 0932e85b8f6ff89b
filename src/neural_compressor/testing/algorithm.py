"""The contract of a weight-only algorithm as a test suite: subclass it, name the algorithm, inherit the tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from neural_compressor.algorithms import ALGORITHMS, InputStatistics, LayerResult, quadratic_loss, rtn
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError, QuantizationError
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PerGroup, QuantizedArray, TensorScheme

Floats = npt.NDArray[np.float32]


class AlgorithmContract:
    """What every weight-only algorithm must do.

    Subclass it as ``class TestMyAlgorithm(AlgorithmContract)`` and set ``algorithm`` to the name it is registered under.
    """

    algorithm: str
    #: What to call it with.
    options: ClassVar[Mapping[str, Any]] = {}
    #: The schemes it can do.
    schemes: tuple[TensorScheme, ...] = (
        TensorScheme(dtype("int4"), True, PerGroup(16)),
        TensorScheme(dtype("uint3"), False, PerGroup(16)),
        TensorScheme(dtype("int4"), True, PER_CHANNEL),
        TensorScheme(dtype("int8"), False, PER_TENSOR),
        TensorScheme(dtype("nf4"), True, PerGroup(16)),
        TensorScheme(dtype("fp8_e4m3"), True, PER_CHANNEL),
        TensorScheme(dtype("mxfp4")),
        TensorScheme(dtype("nvfp4")),
    )
    #: The largest quadratic loss it may have, relative to rounding to nearest.
    slack = 1.001
    #: How many codes may differ between array libraries: 0 where nothing but rounding is done.
    differing = 0.02

    # -- what the tests share ---------------------------------------------------------------------------------------

    def weight(self, rows: int = 24, inputs: int = 80) -> Floats:
        """A weight with a few large values."""
        rng = np.random.default_rng(5)
        values: Floats = (rng.standard_t(4, (rows, inputs)) / np.sqrt(inputs)).astype(np.float32)
        return values

    def vectors(self, count: int = 400, inputs: int = 80) -> Floats:
        """Inputs that have much in common, some far larger than others."""
        rng = np.random.default_rng(6)
        mix = rng.standard_normal((inputs, inputs)) * np.exp(-np.arange(inputs) / 8)[:, None] + 0.05 * np.eye(inputs)
        spread = np.exp(rng.standard_normal(inputs))
        return (rng.standard_normal((count, inputs)) @ mix * spread).astype(np.float32)

    def statistics(self, vectors: Any = None) -> InputStatistics:
        """Statistics of ``vectors``."""
        statistics = InputStatistics()
        statistics.update(self.vectors() if vectors is None else vectors)
        return statistics

    def run(self, weight: Any, scheme: TensorScheme, statistics: InputStatistics | None) -> LayerResult:
        """What the algorithm makes of a weight."""
        return ALGORITHMS[self.algorithm](weight, scheme, statistics, **self.options)

    def assert_no_worse_than_rounding(self, weight: Floats, scheme: TensorScheme, statistics: InputStatistics) -> None:
        """The outputs move no further than with round to nearest."""
        values = self.run(weight, scheme, statistics).dequantize()
        assert values.shape == weight.shape
        assert np.isfinite(values).all()
        limit = quadratic_loss(weight, rtn(weight, scheme).dequantize(), statistics.hessian)
        # Rounding may meet a weight to the bit; a last bit of the values more is no loss.
        last_bits = quadratic_loss(weight, weight * (1 + np.finfo(np.float32).eps), statistics.hessian)
        assert quadratic_loss(weight, values, statistics.hessian) <= limit * self.slack + last_bits, scheme

    # -- what comes out ---------------------------------------------------------------------------------------------

    def test_it_is_registered_under_its_name(self) -> None:
        assert ALGORITHMS[self.algorithm].name == self.algorithm

    def test_outputs_move_no_further_than_with_rounding(self) -> None:
        for scheme in self.schemes:
            self.assert_no_worse_than_rounding(self.weight(), scheme, self.statistics())

    def test_the_result_can_be_stored(self) -> None:
        for scheme in self.schemes:
            array = self.run(self.weight(), scheme, self.statistics()).array
            assert array.scheme == scheme
            assert array.shape == tuple(array.codes.shape) == self.weight().shape
            assert array.dequantize().dtype == np.float32
            if isinstance(array, QuantizedArray):
                assert np.array_equal(array.pack().unpack().dequantize(), array.dequantize()), scheme

    def test_the_same_call_gives_the_same_bits(self) -> None:
        for scheme in self.schemes:
            first, second = (self.run(self.weight(), scheme, self.statistics()) for _ in range(2))
            assert np.array_equal(first.array.codes, second.array.codes)
            assert np.array_equal(first.dequantize(), second.dequantize())

    def test_what_it_was_given_is_left_alone(self) -> None:
        weight, statistics = self.weight(), self.statistics()
        hessian = statistics.hessian.copy()
        for scheme in self.schemes:
            self.run(weight, scheme, statistics)
            assert np.array_equal(weight, self.weight())
            assert np.array_equal(statistics.hessian, hessian)

    def test_the_size_of_weights_and_inputs_does_not_matter(self) -> None:
        weight, vectors = self.weight(), self.vectors()
        for scheme in self.schemes:
            loss = []
            for factor in (1.0, 2.0**-9):
                statistics = self.statistics(vectors * np.float32(factor))
                values = self.run(weight * np.float32(factor), scheme, statistics).dequantize() / factor
                loss.append(quadratic_loss(weight, values, self.statistics().hessian))
            assert loss[1] == pytest.approx(loss[0], rel=0.05), scheme

    # -- hard cases -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("inputs", [72, 17, 16, 3, 1])
    def test_a_last_short_group(self, inputs: int) -> None:
        statistics = self.statistics(self.vectors(inputs=inputs))
        for scheme in self.schemes:
            self.assert_no_worse_than_rounding(self.weight(inputs=inputs), scheme, statistics)

    def test_a_single_output(self) -> None:
        for scheme in self.schemes:
            self.assert_no_worse_than_rounding(self.weight(rows=1), scheme, self.statistics())

    def test_inputs_that_are_always_zero(self) -> None:
        vectors = self.vectors()
        vectors[:, [0, 7, 16, 17, 79]] = 0.0
        for scheme in self.schemes:
            self.assert_no_worse_than_rounding(self.weight(), scheme, self.statistics(vectors))
            nothing = self.statistics(np.zeros_like(vectors))
            assert np.isfinite(self.run(self.weight(), scheme, nothing).dequantize()).all()

    def test_fewer_samples_than_inputs(self) -> None:
        for scheme in self.schemes:
            self.assert_no_worse_than_rounding(self.weight(), scheme, self.statistics(self.vectors(count=3)))

    def test_a_weight_of_zeros_stays_one(self) -> None:
        for scheme in self.schemes:
            values = self.run(np.zeros((4, 80), np.float32), scheme, self.statistics()).dequantize()
            assert not values.any(), scheme

    # -- array libraries --------------------------------------------------------------------------------------------

    def test_torch_gives_the_same(self) -> None:
        torch = pytest.importorskip("torch")
        weight, statistics = self.weight(), self.statistics()
        for scheme in self.schemes:
            ours = self.run(weight, scheme, statistics)
            theirs = self.run(torch.from_numpy(weight), scheme, self.statistics(torch.from_numpy(self.vectors())))
            assert isinstance(theirs.array.codes, torch.Tensor)
            # Sums are added up in another order, which turns a rounding here and there; each bears on those after it.
            assert np.mean(theirs.array.codes.numpy() != ours.array.codes) <= self.differing, scheme
            loss = [
                quadratic_loss(weight, np.asarray(result.dequantize()), statistics.hessian) for result in (ours, theirs)
            ]
            assert loss[1] == pytest.approx(loss[0], rel=0.05), scheme

    # -- bad input --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_weights_that_are_no_numbers_are_refused(self, bad: float) -> None:
        weight = self.weight()
        weight[3, 5] = bad
        for scheme in self.schemes:
            with pytest.raises(QuantizationError, match="NaN or Inf"):
                self.run(weight, scheme, self.statistics())

    def test_a_weight_with_other_axes_is_refused(self) -> None:
        with pytest.raises(QuantizationError, match="two axes"):
            self.run(self.weight().reshape(2, 12, 80), self.schemes[0], self.statistics())

    def test_missing_statistics_are_noticed(self) -> None:
        if not ALGORITHMS[self.algorithm].needs_statistics:
            assert np.isfinite(self.run(self.weight(), self.schemes[0], None).dequantize()).all()
            return
        for nothing in (None, InputStatistics()):
            with pytest.raises(CalibrationError, match="statistics"):
                self.run(self.weight(), self.schemes[0], nothing)

    def test_statistics_of_another_layer_are_refused(self) -> None:
        if not ALGORITHMS[self.algorithm].needs_statistics:
            pytest.skip("the inputs do not matter")
        with pytest.raises(QuantizationError, match="80"):
            self.run(self.weight(), self.schemes[0], self.statistics(self.vectors(inputs=48)))
