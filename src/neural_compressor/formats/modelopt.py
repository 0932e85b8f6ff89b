"""``quant_method: modelopt``: fp8 and NVFP4 as NVIDIA publishes them.

FP8: ``weight`` e4m3 (out, in), ``weight_scale`` and ``input_scale``, one number each. NVFP4: ``weight`` uint8 (out, in / 2),
even elements in the low nibbles; ``weight_scale`` e4m3 (out, in / 16); ``weight_scale_2`` and ``input_scale``, one number
each, which multiply the scales of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from neural_compressor.dtypes import dtype
from neural_compressor.errors import FormatError
from neural_compressor.formats.base import FORMATS, CheckpointFormat
from neural_compressor.formats.byte_views import as_float8
from neural_compressor.formats.compressed_floats import block_array, e4m3_codes, why_not_fp8
from neural_compressor.formats.quantized_linear import QuantizedLinear
from neural_compressor.formats.stored_tensors import matrix, one_number, with_checked_scales
from neural_compressor.schemes import OpScheme, PerGroup, PerTensor, QuantizedArray, TensorScheme
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32

_FP8 = TensorScheme(dtype("fp8_e4m3"))
_NVFP4 = TensorScheme(dtype("nvfp4"), granularity=PerGroup(16))
_ALGORITHMS = {"FP8": _FP8, "NVFP4": _NVFP4}


class ModelOpt(CheckpointFormat[QuantizedLinear]):
    """``quant_method: modelopt``: all layers in fp8 or in NVFP4, inputs with a scale known beforehand."""

    name = "modelopt"
    parts = ("weight", "weight_scale", "weight_scale_2", "input_scale")
    key = "weight_scale"
    takes = (QuantizedLinear,)

    def _why_not(self, weight: QuantizedLinear) -> str | None:
        scheme = weight.weight.scheme
        if scheme.dtype.name not in (_FP8.dtype.name, _NVFP4.dtype.name):
            return f"its weights are fp8_e4m3 or nvfp4, not {scheme.dtype.name}"
        if weight.mode != "static" or weight.activation is None or weight.activation.dtype != scheme.dtype:
            return f"its inputs are {scheme.dtype.name} too, with a scale that calibration finds (a static scheme)"
        if scheme.dtype == _NVFP4.dtype:
            return f"its blocks of 16 must divide the inputs: {weight.in_features}" if weight.in_features % 16 else None
        if not isinstance(scheme.granularity, PerTensor):
            return f"its fp8 weights have a scale a tensor, not {scheme.granularity.name}"
        return why_not_fp8(weight)

    def _store(self, weight: QuantizedLinear) -> dict[str, Array]:
        packed = weight.weight.pack()
        if weight.weight.scheme.dtype == _NVFP4.dtype:
            tensors = {"weight": packed.data, "weight_scale": as_float8(packed.scale)}
            tensors["weight_scale_2"] = as_float32(packed.tensor_scale)
        else:
            tensors = {"weight": as_float8(weight.weight.codes), "weight_scale": as_float32(packed.scale)}
        assert weight.input_scale is not None
        tensors["input_scale"] = array_namespace(packed.data).reshape(as_float32(weight.input_scale), ())
        return tensors

    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> QuantizedLinear:
        scheme = _ALGORITHMS[_algorithm(config)]
        if scheme.dtype == _NVFP4.dtype:
            data, scale = matrix(tensors, "weight", "uint8"), e4m3_codes(tensors, "weight_scale")
            array = block_array(data, scale, scheme, one_number(tensors, "weight_scale_2"))
        else:
            codes = e4m3_codes(tensors, "weight")
            shape = (int(codes.shape[0]), int(codes.shape[1]))
            array = QuantizedArray(codes, one_number(tensors, "weight_scale"), None, scheme, shape)
            array = with_checked_scales(array, "weight_scale")
        return QuantizedLinear(array, scheme, one_number(tensors, "input_scale"), bias=tensors.get("bias"))

    def config(
        self, specs: Mapping[str, OpScheme], ignore: Iterable[str] = (), complete: bool = True
    ) -> dict[str, Any]:
        """The block; all layers must be quantized alike, for it has no way to say otherwise."""
        found = {spec.precision for spec in specs.values()}
        if len(found) != 1:
            raise FormatError(f"the layers of a modelopt checkpoint are quantized alike, found {sorted(found)}")
        algorithm = "NVFP4" if found == {"nvfp4"} else "FP8"
        args: dict[str, Any] = {"dynamic": False, "num_bits": 4 if algorithm == "NVFP4" else 8, "type": "float"}
        if algorithm == "NVFP4":
            args["group_size"] = 16
        groups = {"group_0": {"input_activations": args, "weights": args, "targets": ["Linear"]}}
        return {
            "quant_method": self.name,
            "quant_algo": algorithm,
            "config_groups": groups,
            "ignore": sorted(ignore),
        }

    def files(self, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """What engines looked for before the block in ``config.json``."""
        cache = "FP8" if config.get("kv_cache_scheme") else None
        told: dict[str, Any] = {"quant_algo": config["quant_algo"], "kv_cache_quant_algo": cache}
        told |= {"exclude_modules": config["ignore"]}
        if config["quant_algo"] == "NVFP4":
            told["group_size"] = 16
        return {"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": told}}

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether the block says modelopt."""
        return config.get("quant_method") == self.name


def _algorithm(config: Mapping[str, Any]) -> str:
    older = config.get("quantization")
    told = config.get("quant_algo") or (older.get("quant_algo") if isinstance(older, Mapping) else None)
    if not isinstance(told, str) or told not in _ALGORITHMS:
        raise FormatError(f"'quant_algo' is {' or '.join(_ALGORITHMS)}, found {told!r}")
    return told


FORMATS.add(ModelOpt.name, ModelOpt())
