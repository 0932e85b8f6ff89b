"""Configurations of floating-point formats: fp8, MX blocks with a shared scale, half precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import register_config
from neural_compressor.config.parameter_space import one_or_more
from neural_compressor.config.words import as_list, word
from neural_compressor.dtypes import DType, dtype
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.torch.quantization.config.fields import Count, Flag, Path

_RANGES = ("hw", "pow2", "arbitrary")
SCALE_METHODS = (
    "unit_scale",
    *(f"maxabs_{kind}" for kind in _RANGES),
    *(f"maxabs_{kind}_opt_weight" for kind in ("hw", "pow2")),
    *(f"act_maxabs_{act}_weights_pcs_{kind}" for act in ("hw", "pow2") for kind in ("maxabs_pow2", "opt_pow2")),
)
"""How scales are chosen: none, the largest value (rounded as the hardware wants), or the best one for the weight; ``pcs``
is a scale a channel."""
TENSORS = ("INPUT", "OUTPUT", "PARAMS", "ALL", "NONE")


def _any_case(known: tuple[str, ...]) -> Any:
    """A validator that admits the words in ``known`` in capitals or not."""
    spelled = {name.upper(): name for name in known}

    def check(value: Any) -> str:
        if isinstance(value, str) and value.upper() in spelled:
            return spelled[value.upper()]
        raise ConfigError(f"got {value!r}; {close_matches(str(value), known)}")

    return check


def _op_list(value: Any) -> dict[str, list[str]]:
    """Names and types of ops; a class is its name."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"got {value!r}, expected {{'names': [...], 'types': [...]}}")
    for part in value:
        if part not in ("names", "types"):
            raise ConfigError(f"got a part {part!r}; {close_matches(str(part), ('names', 'types'))}")
    found = {part: [_op_name(item) for item in as_list(value.get(part, []))] for part in ("names", "types")}
    return found


def _op_name(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, str) and value:
        return value
    raise ConfigError(f"got {value!r}, expected the name of an op or of a type of op")


def _no_ops() -> dict[str, list[str]]:
    return {"names": [], "types": []}


OpList = Annotated[dict[str, list[str]], PlainValidator(_op_list)]


@register_config("torch", "fp8_quant")
class FP8Config(ComposableConfig):
    """Weights and activations in an 8-bit float.

    ``mode`` is ``"AUTO"`` (measure, then quantize), or one of the two steps with files under ``dump_stats_path`` between
    them. ``allowlist`` and ``blocklist`` are ``{"names": [...], "types": [...]}``; empty ones admit and exclude nothing.

    >>> FP8Config(fp8_config="e5m2").fp8_config
    'E5M2'
    """

    fp8_config: Annotated[str, one_or_more(_any_case(("E4M3", "E5M2")))] = "E4M3"
    mode: Annotated[str, PlainValidator(_any_case(("AUTO", "MEASURE", "QUANTIZE")))] = "AUTO"
    hp_dtype: Annotated[str, one_or_more(word(("bf16", "fp16", "fp32")))] = "bf16"
    observer: Annotated[str, one_or_more(word(("maxabs", "maxabs_per_channel", "save")))] = "maxabs"
    allowlist: OpList = Field(default_factory=_no_ops)
    blocklist: OpList = Field(default_factory=_no_ops)
    scale_method: Annotated[str, one_or_more(word(SCALE_METHODS))] = "maxabs_hw"
    measure_exclude: Annotated[str, PlainValidator(_any_case(TENSORS))] = "OUTPUT"
    dump_stats_path: Path = "./nc_workspace/fp8_stats"
    fake_quant: Flag = False
    use_qdq: Flag = False
    dynamic_quantization: Flag = False

    @property
    def needs_calibration(self) -> bool:
        """Unless scales are fixed, or taken from each batch."""
        return self.scale_method != "unit_scale" and not self.dynamic_quantization

    @property
    def dtype(self) -> DType:
        """The data type of weights and activations."""
        self.require_single()
        return dtype(f"fp8_{self.fp8_config.lower()}")

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        if values["fake_quant"] and values["use_qdq"] and {"fake_quant", "use_qdq"} <= given:
            raise ConfigError(f"{cls.__name__}: fake_quant and use_qdq are two ways to run the model; choose one")
        return {**super()._settled(values, given), "use_qdq": values["use_qdq"] and not values["fake_quant"]}


ELEMENTS = ("int8", "int4", "int2", "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4", "float16", "bfloat16")
"""What the elements of a block can be; the last two leave the tensor without a scale."""
ROUNDINGS = ("nearest", "dither", "floor", "even")


def _named(known: tuple[str, ...]) -> Any:
    """A validator that admits the types in ``known`` in any registered spelling, and keeps the one listed."""
    listed = {dtype(name).name: name for name in known}

    def check(value: Any) -> str:
        try:
            found = listed.get(dtype(value).name) if isinstance(value, str) else None
        except ConfigError:
            found = None  # the message below names what is known here, not every data type
        if found is None:
            raise ConfigError(f"got {value!r}; {close_matches(str(value), known)}")
        return found

    return check


Element = Annotated[str, one_or_more(_named(ELEMENTS))]


@register_config("torch", "mx_quant")
class MXQuantConfig(ComposableConfig):
    """Weights and activations in blocks of ``blocksize`` elements that share a scale, simulated in ``out_dtype``.

    >>> MXQuantConfig(w_dtype="fp4_e2m1").w_dtype
    'fp4'
    """

    w_dtype: Element = "int8"
    act_dtype: Element = "int8"
    out_dtype: Annotated[str, one_or_more(_named(("bfloat16", "float16", "float32")))] = "bfloat16"
    blocksize: Count = 32
    round_method: Annotated[str, one_or_more(word(ROUNDINGS))] = "nearest"
    weight_only: Flag = False


@register_config("torch", "mixed_precision")
class MixedPrecisionConfig(ComposableConfig):
    """Ops in fp16 or bf16; ``fp32`` leaves them as they are.

    >>> [each.dtype for each in MixedPrecisionConfig(dtype=["fp16", "bf16"]).expand()]
    ['fp16', 'bf16']
    """

    dtype: Annotated[str, one_or_more(word(("fp16", "bf16", "fp32")))] = "fp16"

    @property
    def quantizes(self) -> bool:
        """Whether ops change at all."""
        return self.dtype != "fp32"
