"""``quant_method: fp8``: e4m3 weights with a scale a tensor or a block, as DeepSeek and others publish them.

``weight`` e4m3 (out, in). With one scale a tensor ``weight_scale``, and ``input_scale`` where ``activation_scheme`` is
static.
With ``weight_block_size`` [r, c] ``weight_scale_inv`` (ceil(out / r), ceil(in / c)), which multiplies all the same.
``scale_fmt`` "ue8m0": scales are powers of two, those of dynamic inputs too (``act_quant`` of DeepSeek-V3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from neural_compressor.dtypes import dtype
from neural_compressor.errors import FormatError
from neural_compressor.formats.base import FORMATS, CheckpointFormat
from neural_compressor.formats.byte_views import as_float8, dtype_name, float8_codes
from neural_compressor.formats.compressed_floats import e4m3_codes, why_not_fp8
from neural_compressor.formats.quantized_linear import QuantizedLinear
from neural_compressor.formats.stored_tensors import finite_scale, of_shape, one_number, required, with_checked_scales
from neural_compressor.schemes import (
    PER_TENSOR,
    PER_TOKEN,
    OpScheme,
    PerBlock,
    PerGroup,
    PerTensor,
    QuantizedArray,
    Scaling,
    TensorScheme,
)
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32
from neural_compressor.schemes.grid import decode
from neural_compressor.schemes.ranges import scale_shape

_E4M3 = dtype("fp8_e4m3")
_SCALINGS = {"float": None, "ue8m0": Scaling(rounding="pow2")}
#: What some files call the tensors.
_OTHER_NAMES = {
    "weight_scale": "weight_scale_inv",
    "weight_scale_inv": "weight_scale",
    "input_scale": "activation_scale",
}


class FP8(CheckpointFormat[QuantizedLinear]):
    """``quant_method: fp8``: all layers alike, dynamic or static inputs."""

    name = "fp8"
    parts = ("weight", "weight_scale", "weight_scale_inv", "input_scale", "activation_scale")
    key = "weight"
    takes = (QuantizedLinear,)

    def _why_not(self, weight: QuantizedLinear) -> str | None:
        scheme = weight.weight.scheme
        if scheme.dtype != _E4M3:
            return f"its weights are fp8_e4m3, not {scheme.dtype.name}"
        if not isinstance(scheme.granularity, (PerTensor, PerBlock)):
            return (
                f"its weights have a scale a tensor or block, not {scheme.granularity.name}; the layout "
                "'compressed-tensors' has one a channel"
            )
        if weight.activation is None:
            return "its inputs are quantized too; the layout 'compressed-tensors' has them in float"
        if weight.mode == "dynamic" and isinstance(weight.activation.granularity, PerTensor):
            return "its dynamic inputs have a scale a token; the layout 'compressed-tensors' has one a tensor too"
        return why_not_fp8(weight)

    def _store(self, weight: QuantizedLinear) -> dict[str, Array]:
        scale = as_float32(weight.weight.qparams.scale)
        in_blocks = isinstance(weight.weight.scheme.granularity, PerBlock)
        tensors = {"weight": as_float8(weight.weight.codes)}
        tensors["weight_scale_inv" if in_blocks else "weight_scale"] = scale
        if weight.input_scale is not None:
            tensors["input_scale"] = array_namespace(scale).reshape(as_float32(weight.input_scale), ())
        return tensors

    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> QuantizedLinear:
        spec = _spec(config)
        assert spec.weight is not None
        codes = e4m3_codes(tensors, "weight")
        shape = (int(codes.shape[0]), int(codes.shape[1]))
        part = "weight_scale_inv" if isinstance(spec.weight.granularity, PerBlock) else "weight_scale"
        found = _named(tensors, part)
        scale = finite_scale(_as_numbers(required({part: tensors[found]} if found else {}, part)), found or part)
        xp, wanted = array_namespace(scale), scale_shape(shape, spec.weight.granularity)
        if not wanted and tuple(scale.shape) == (1,):
            scale = xp.reshape(scale, ())
        array = QuantizedArray(codes, as_float32(of_shape(scale, wanted, found or part)), None, spec.weight, shape)
        of_inputs = None
        if spec.mode == "static":
            own = _named(tensors, "input_scale") or "input_scale"
            of_inputs = one_number(tensors, own)
        array = with_checked_scales(array, found or part)
        return QuantizedLinear(array, spec.activation, of_inputs, bias=tensors.get("bias"))

    def config(
        self, specs: Mapping[str, OpScheme], ignore: Iterable[str] = (), complete: bool = True
    ) -> dict[str, Any]:
        """The block; all layers must be quantized alike, for it has no way to say otherwise."""
        if len(set(specs.values())) != 1:
            raise FormatError(
                f"the layers of an fp8 checkpoint are quantized alike, and these in {len(set(specs.values()))} ways; the "
                "layout 'compressed-tensors' has layers of several kinds"
            )
        spec = next(iter(specs.values()))
        part = None if spec.weight is None else spec.weight.granularity
        left = sorted(ignore)
        return {
            "quant_method": self.name,
            "fmt": "e4m3",
            "activation_scheme": spec.mode,
            "weight_block_size": [part.rows, part.columns] if isinstance(part, PerBlock) else None,
            **({"scale_fmt": "ue8m0"} if has_powers_of_two(spec) else {}),
            # Engines read the one name or the other.
            "ignored_layers": left,
            "modules_to_not_convert": left,
        }

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether the block says fp8."""
        return config.get("quant_method") == self.name

    def layers(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The layers, known by their scales: a weight without any is in float."""
        found = super().layers(names)
        scales = ("weight_scale", "weight_scale_inv")
        return {layer: parts for layer, parts in found.items() if any(scale in parts for scale in scales)}


def _spec(config: Mapping[str, Any]) -> OpScheme:
    when, sizes = config.get("activation_scheme", "dynamic"), config.get("weight_block_size")
    if when not in ("static", "dynamic"):
        raise FormatError(f"'activation_scheme' is static or dynamic, found {when!r}")
    if config.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise FormatError(f"'fmt' is e4m3, found {config['fmt']!r}")
    if (scales := config.get("scale_fmt") or "float") not in _SCALINGS:
        raise FormatError(f"'scale_fmt' is {' or '.join(_SCALINGS)}, found {scales!r}")
    own = _SCALINGS[scales] if when == "dynamic" else None
    if sizes is None:
        activation = TensorScheme(_E4M3, granularity=_inputs(when), scaling=own)
        return OpScheme(TensorScheme(_E4M3), activation, when)
    if not isinstance(sizes, (list, tuple)) or len(sizes) != 2 or not all(type(n) is int and n > 0 for n in sizes):
        raise FormatError(f"'weight_block_size' is [rows, columns], found {sizes!r}")
    if when != "dynamic":
        raise FormatError("beside weights in blocks 'activation_scheme' is dynamic, found static")
    activation = TensorScheme(_E4M3, granularity=PerGroup(sizes[1]), scaling=own)
    return OpScheme(TensorScheme(_E4M3, granularity=PerBlock(*sizes)), activation, when)


def has_powers_of_two(spec: OpScheme) -> bool:
    """Whether it is one of blocks that ``scale_fmt: ue8m0`` describes, of inputs too."""
    in_blocks = spec.weight is not None and isinstance(spec.weight.granularity, PerBlock)
    return in_blocks and spec.activation is not None and spec.activation.scaling == _SCALINGS["ue8m0"]


def _inputs(when: str) -> Any:
    return PER_TENSOR if when == "static" else PER_TOKEN


def _named(tensors: Mapping[str, Array], part: str) -> str | None:
    """The name under which ``part`` is there."""
    return next((name for name in (part, _OTHER_NAMES[part]) if name in tensors), None)


def _as_numbers(scale: Array) -> Array:
    """Scales that are stored as powers of two (``ue8m0``) as float32."""
    return decode(float8_codes(scale), dtype("e8m0")) if dtype_name(scale) == "float8_e8m0fnu" else scale


FORMATS.add(FP8.name, FP8())
