"""The contract of a checkpoint format as a test suite: subclass it, say how to make the format, inherit the tests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.errors import FormatError
from neural_compressor.formats import FORMATS, CheckpointFormat, Layer, LinearWeight, QuantizedLinear, format_of
from neural_compressor.formats.linear_weight import run_groups
from neural_compressor.schemes import (
    PER_CHANNEL,
    PER_TENSOR,
    PER_TOKEN,
    Granularity,
    PerBlock,
    PerChannel,
    PerGroup,
    PerTensor,
    QuantizedArray,
    TensorScheme,
    quantize,
)

OUTPUTS, INPUTS = 64, 192
LAYER = "model.layers.0.mlp.up_proj"
_WHOLE = (PerTensor, PerChannel, PerBlock)
"""Where a smaller weight has scales that fit it: one in all, one a row of any length, one of blocks at the edge."""


class FormatContract:
    """What every checkpoint format must do.

    Subclass it as ``class TestMyFormat(FormatContract)`` and override :meth:`make_format`. The format must be registered.
    """

    def make_format(self) -> CheckpointFormat[Any]:
        """The format."""
        raise NotImplementedError

    # -- what the tests share ---------------------------------------------------------------------------------------

    def candidates(self) -> list[Layer]:
        """Layers of all kinds, some of which a format can store."""
        return [*self.integer_weights(), *self.quantized_layers()]

    def quantized_layers(self) -> list[QuantizedLinear]:
        """Layers in other data types, or with quantized inputs too."""
        x = np.random.default_rng(6).standard_normal((OUTPUTS, INPUTS)).astype(np.float32)

        def scheme(name: str, part: Granularity, symmetric: bool = True) -> TensorScheme:
            return TensorScheme(dtype(name), symmetric, part)

        def layer(weight: TensorScheme, *inputs: Any) -> QuantizedLinear:
            return QuantizedLinear(quantize(x, weight), *inputs)

        one, blocks, by_channel = np.float32(0.02), PerBlock(32, 64), PER_CHANNEL
        found = []
        for name in ("fp8_e4m3", "int8"):
            for part in (PER_TENSOR, by_channel):
                weight = scheme(name, part)
                found += [layer(weight, scheme(name, PER_TOKEN)), layer(weight, scheme(name, PER_TENSOR), one)]
        found.append(layer(scheme("int8", by_channel), scheme("uint8", PER_TENSOR, False), one, np.int32(140)))
        found += [layer(scheme("fp8_e4m3", part)) for part in (PER_TENSOR, by_channel, blocks, PerGroup(32))]
        found.append(layer(scheme("fp8_e4m3", blocks), scheme("fp8_e4m3", PerGroup(64))))
        for name in ("mxfp4", "mxfp8_e4m3"):
            found += [layer(scheme(name, PerGroup(32))), layer(scheme(name, PerGroup(32)), scheme(name, PerGroup(32)))]
        nvfp4 = scheme("nvfp4", PerGroup(16))
        found += [layer(nvfp4), layer(nvfp4, nvfp4), layer(nvfp4, nvfp4, one)]
        return [*found, layer(scheme("fp8_e5m2", by_channel)), layer(scheme("nf4", PerGroup(32)))]

    def integer_weights(self) -> list[LinearWeight]:
        """Integer weights of all kinds, beside inputs in float."""
        rng = np.random.default_rng(5)
        found = []
        for bits in (2, 3, 4, 5, 8):
            for group_size in (32, 64, 192, 50, -1):
                for symmetric in (True, False):
                    found.append(self.weight(rng, bits, group_size, symmetric))
        asymmetric = self.weight(rng, 4, 64, False)
        g_idx = rng.permutation(run_groups(asymmetric.codes, 64)).astype(np.int32)
        zeros = np.where(rng.random((OUTPUTS, 3)) < 0.5, 0, 15).astype(np.int32)
        return [
            *found,
            replace(asymmetric, g_idx=g_idx),
            replace(asymmetric, zero_point=zeros),
            replace(asymmetric, bias=rng.standard_normal(OUTPUTS).astype(np.float32)),
        ]

    @staticmethod
    def weight(rng: np.random.Generator, bits: int, group_size: int, symmetric: bool) -> LinearWeight:
        """A random weight, its smallest and largest code among the codes."""
        groups = 1 if group_size == -1 else -(-INPUTS // group_size)
        codes = rng.integers(0, 1 << bits, (OUTPUTS, INPUTS)).astype(np.uint8)
        codes[0, :2] = 0, (1 << bits) - 1
        scale = np.exp(rng.standard_normal((OUTPUTS, groups)) - 4).astype(np.float32)
        zero_point = None if symmetric else rng.integers(1, 1 << bits, (OUTPUTS, groups)).astype(np.int32)
        return LinearWeight(codes, scale, zero_point, bits, group_size)

    def storable(self) -> list[Layer]:
        """The weights that the format says it can store."""
        form = self.make_format()
        weights = [weight for weight in self.candidates() if form.can_compress(weight)]
        assert weights, f"{form.name} stores none of the weights it was offered"
        return weights

    def settings(self, weight: Layer) -> dict[str, Any]:
        """The configuration of a checkpoint with this one layer."""
        return self.make_format().config({LAYER: weight.spec})

    def trip(self, weight: Layer) -> Layer:
        """The layer after it was stored and read."""
        form = self.make_format()
        back: Layer = form.decompress(form.compress(weight, LAYER), self.settings(weight), LAYER)
        return back

    @staticmethod
    def octets(array: Any) -> npt.NDArray[np.uint8]:
        """The bytes of an array."""
        return np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)

    @staticmethod
    def in_torch(torch: Any, layer: Layer) -> Layer:
        """The layer with arrays of torch."""

        def of(array: Any) -> Any:
            return None if array is None else torch.asarray(np.asarray(array))

        if isinstance(layer, LinearWeight):
            arrays = of(layer.codes), of(layer.scale), of(layer.zero_point)
            return LinearWeight(*arrays, layer.bits, layer.group_size, of(layer.g_idx), of(layer.bias))
        weight = layer.weight
        array = QuantizedArray(
            of(weight.codes), of(weight.scale), None, weight.scheme, weight.shape, of(weight.tensor_scale)
        )
        return QuantizedLinear(
            array, layer.activation, of(layer.input_scale), of(layer.input_zero_point), of(layer.bias)
        )

    # -- a format is known by its name and its configuration ---------------------------------------------------------

    def test_it_is_registered_under_its_name(self) -> None:
        form = self.make_format()
        assert form.name in FORMATS, f"register {form.name!r} with neural_compressor.formats.FORMATS.add"
        assert type(FORMATS[form.name]) is type(form)

    def test_its_configuration_is_json_and_tells_the_format(self) -> None:
        form = self.make_format()
        for weight in self.storable():
            for complete in (True, False):
                block = form.config({LAYER: weight.spec, "other.fc": weight.spec}, ["lm_head"], complete)
                assert json.loads(json.dumps(block)) == block
                read = format_of(block).decompress(form.compress(weight, LAYER), block, LAYER)
                assert np.array_equal(read.dequantize(), self.trip(weight).dequantize())
                json.dumps(form.files(block))

    def test_its_layers_are_found_among_other_tensors(self) -> None:
        form = self.make_format()
        weight = replace(self.storable()[0], bias=np.zeros(OUTPUTS, np.float32))
        stored = form.compress(weight)
        full = {part: f"{LAYER}{form.separator}{part}" for part in stored}
        names = list(full.values())
        found = form.layers(["model.embed_tokens.table", *names, "unrelated"])
        assert found == {LAYER: full}

    # -- storing ----------------------------------------------------------------------------------------------------

    def test_what_is_stored_is_read_again(self) -> None:
        for weight in self.storable():
            back = self.trip(weight)
            exact = weight.dequantize().astype(np.float64)
            if isinstance(weight, QuantizedLinear):
                assert isinstance(back, QuantizedLinear)
                assert np.allclose(back.dequantize(), exact, rtol=1e-6, atol=0)
                assert (back.mode, back.weight.scheme) == (weight.mode, weight.weight.scheme)
                if weight.input_scale is not None and back.input_scale is not None:
                    assert np.allclose(back.input_scale, weight.input_scale, rtol=1e-6, atol=0)
                continue
            assert isinstance(back, LinearWeight)
            # Codes come back as they were; a float16 scale moves a value by at most 2**-11 of the longest one.
            step = np.take(np.abs(weight.scale.astype(np.float64)), weight.column_groups, axis=1)
            assert np.all(np.abs(back.dequantize() - exact) <= step * (1 << weight.bits) * 2.0**-10), weight.spec
            assert back.spec.act_order == weight.spec.act_order

    def test_storing_again_changes_nothing(self) -> None:
        form = self.make_format()
        for weight in self.storable():
            once = form.compress(weight, LAYER)
            again = form.compress(self.trip(weight), LAYER)
            assert once.keys() == again.keys()
            for part in once:
                assert np.array_equal(self.octets(once[part]), self.octets(again[part])), (part, weight.spec)

    def test_the_bias_is_kept(self) -> None:
        bias = np.linspace(-1, 1, OUTPUTS).astype(np.float32)
        weight = replace(self.storable()[0], bias=bias)
        back = self.trip(weight).bias
        assert back is not None
        assert np.array_equal(back, bias)

    def test_it_is_smaller_than_float16(self) -> None:
        form = self.make_format()
        for weight in self.storable():
            stored = sum(self.octets(array).size for array in form.compress(weight).values())
            assert stored < 2 * OUTPUTS * INPUTS, weight.spec

    def test_torch_gives_the_same_bytes(self) -> None:
        torch = pytest.importorskip("torch")
        form = self.make_format()
        for weight in self.storable():
            ours, theirs = form.compress(weight), form.compress(self.in_torch(torch, weight))
            for part, array in ours.items():
                stored = theirs[part].contiguous().reshape(-1).view(torch.uint8)
                assert np.array_equal(self.octets(array), stored.numpy()), (part, weight.spec)
            back = form.decompress(theirs, self.settings(weight), LAYER)
            assert np.array_equal(back.dequantize().numpy(), self.trip(weight).dequantize()), weight.spec

    # -- refusing ---------------------------------------------------------------------------------------------------

    def test_what_it_cannot_store_it_refuses_with_the_reason(self) -> None:
        form = self.make_format()
        for weight in self.candidates():
            reason = form.why_not(weight)
            if reason is None:
                continue
            with pytest.raises(FormatError) as caught:
                form.compress(weight, LAYER)
            assert reason in str(caught.value)
            assert LAYER in str(caught.value)

    def test_a_missing_tensor_is_named(self) -> None:
        form = self.make_format()
        weight = self.storable()[0]
        stored = form.compress(weight)
        with pytest.raises(FormatError, match=LAYER) as caught:
            form.decompress({}, self.settings(weight), LAYER)
        assert any(part in str(caught.value) for part in stored)

    def test_a_tensor_cut_short_is_refused(self) -> None:
        form = self.make_format()
        for weight in self.storable():
            stored = form.compress(weight)
            # A shorter row with one scale, or fewer rows of a layer that is a single tensor, are a smaller layer.
            if isinstance(weight, LinearWeight) and weight.group_size in (-1, INPUTS):
                continue
            if isinstance(weight, QuantizedLinear) and isinstance(weight.weight.scheme.granularity, _WHOLE):
                continue
            for part, array in stored.items():
                for short in (array[:-1], array[:, :-1]) if array.ndim == 2 else ():
                    if len(stored) == 1 and short.shape[1] == array.shape[1]:
                        continue
                    with pytest.raises(FormatError, match=LAYER):
                        form.decompress({**stored, part: short}, self.settings(weight), LAYER)

    def test_scales_that_are_no_numbers_are_refused(self) -> None:
        form = self.make_format()
        for weight in self.storable():
            stored = form.compress(weight)
            for part, array in stored.items():
                if array.dtype.kind != "f" or part == "bias":
                    continue
                bad = np.array(array)
                bad.reshape(-1)[-1] = np.nan
                with pytest.raises(FormatError, match=LAYER):
                    form.decompress({**stored, part: bad}, self.settings(weight), LAYER)
