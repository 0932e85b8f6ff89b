"""The contract of a checkpoint format as a test suite: subclass it, say how to make the format, inherit the tests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neural_compressor.errors import FormatError
from neural_compressor.formats import FORMATS, CheckpointFormat, LinearWeight, format_of
from neural_compressor.formats.linear_weight import run_groups

OUTPUTS, INPUTS = 64, 192
LAYER = "model.layers.0.mlp.up_proj"


class FormatContract:
    """What every checkpoint format must do.

    Subclass it as ``class TestMyFormat(FormatContract)`` and override :meth:`make_format`. The format must be registered.
    """

    def make_format(self) -> CheckpointFormat:
        """The format."""
        raise NotImplementedError

    # -- what the tests share ---------------------------------------------------------------------------------------

    def candidates(self) -> list[LinearWeight]:
        """Weights of all kinds, most of which a format can store."""
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

    def storable(self) -> list[LinearWeight]:
        """The weights that the format says it can store."""
        form = self.make_format()
        weights = [weight for weight in self.candidates() if form.can_compress(weight)]
        assert weights, f"{form.name} stores none of the weights it was offered"
        return weights

    def settings(self, weight: LinearWeight) -> dict[str, Any]:
        """The configuration of a checkpoint with this one layer."""
        return self.make_format().config({LAYER: weight.spec})

    def trip(self, weight: LinearWeight) -> LinearWeight:
        """The weight after it was stored and read."""
        form = self.make_format()
        return form.decompress(form.compress(weight, LAYER), self.settings(weight), LAYER)

    @staticmethod
    def octets(array: Any) -> npt.NDArray[np.uint8]:
        """The bytes of an array."""
        return np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)

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
                assert format_of(block).name == form.name
                json.dumps(form.files(block))

    def test_its_layers_are_found_among_other_tensors(self) -> None:
        form = self.make_format()
        weight = replace(self.storable()[0], bias=np.zeros(OUTPUTS, np.float32))
        stored = form.compress(weight)
        names = [f"{LAYER}.{part}" for part in stored]
        found = form.layers(["model.embed_tokens.table", *names, "unrelated"])
        assert found == {LAYER: {part: f"{LAYER}.{part}" for part in form.layers(names)[LAYER]}}
        assert set(found[LAYER]) == set(stored)

    # -- storing ----------------------------------------------------------------------------------------------------

    def test_what_is_stored_is_read_again(self) -> None:
        for weight in self.storable():
            back = self.trip(weight)
            exact = weight.dequantize().astype(np.float64)
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
            arrays = [weight.codes, weight.scale, weight.zero_point, weight.g_idx, weight.bias]
            codes, scale, zeros, g_idx, bias = (None if a is None else torch.from_numpy(a) for a in arrays)
            same = LinearWeight(codes, scale, zeros, weight.bits, weight.group_size, g_idx, bias)
            ours, theirs = form.compress(weight), form.compress(same)
            for part, array in ours.items():
                assert np.array_equal(self.octets(array), self.octets(theirs[part])), (part, weight.spec)
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
            if weight.group_size in (-1, INPUTS):
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
                bad = array.copy()
                bad.reshape(-1)[3] = np.nan
                with pytest.raises(FormatError, match=LAYER):
                    form.decompress({**stored, part: bad}, self.settings(weight), LAYER)
