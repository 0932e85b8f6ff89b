"""Configurations of floating-point formats: fp8, MX blocks with a shared scale, half precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import as_list, one_or_more, word
from neural_compressor.dtypes import DTYPES, DType, dtype
from neural_compressor.errors import ConfigError
from neural_compressor.name_pattern import NamePattern
from neural_compressor.registry import close_matches
from neural_compressor.schemes import Method, OpScheme, PerGroup, TensorScheme, float_op
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
_RUN_SCALES = ("maxabs_hw", "maxabs_arbitrary")
TENSORS = ("INPUT", "OUTPUT", "PARAMS", "ALL", "NONE")


def _spelled(known: tuple[str, ...], same: Callable[[str], str]) -> Any:
    """A validator that admits the words in ``known`` in any spelling of which ``same`` makes one, and keeps that listed."""
    listed = {same(name): name for name in known}

    def check(value: Any) -> str:
        try:
            found = listed.get(same(value)) if isinstance(value, str) else None
        except ConfigError:
            found = None  # the message below names what is known here
        if found is None:
            raise ConfigError(f"got {value!r}; {close_matches(str(value), known)}")
        return found

    return check


def _any_case(*known: str) -> Any:
    return _spelled(known, str.upper)


def _dtypes(*known: str) -> Any:
    return _spelled(known, lambda name: dtype(name).name)


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


def _is_listed(ops: Mapping[str, list[str]], name: str, op_type: str) -> bool:
    """Whether a list of ops names one: by its type, or by a regular expression that is found in its name."""
    return op_type in ops["types"] or any(NamePattern.of(f".*(?:{text}).*").matches(name) for text in ops["names"])


def _refuse_changed(config: ComposableConfig, *names: str) -> None:
    """Refuse fields that nothing reads yet, unless they are at their default."""
    for name, (value, usual) in config.changed(*names).items():
        raise ConfigError(f"{type(config).__name__}.{name}: got {value!r}, which is not run yet; leave it at {usual!r}")


OpList = Annotated[dict[str, list[str]], PlainValidator(_op_list)]


@register_config("torch", "fp8_quant")
class FP8Config(ComposableConfig):
    """Weights and activations in an 8-bit float.

    ``mode`` is ``"AUTO"`` (measure, then quantize), or one of the two steps with files under ``dump_stats_path`` between
    them. ``allowlist`` and ``blocklist`` are ``{"names": [...], "types": [...]}``; empty ones admit and exclude nothing.

    >>> FP8Config(fp8_config="e5m2").fp8_config
    'E5M2'
    """

    fp8_config: Annotated[str, one_or_more(_any_case("E4M3", "E5M2"))] = "E4M3"
    mode: Annotated[str, PlainValidator(_any_case("AUTO", "MEASURE", "QUANTIZE"))] = "AUTO"
    hp_dtype: Annotated[str, one_or_more(word(("bf16", "fp16", "fp32")))] = "bf16"
    observer: Annotated[str, one_or_more(word(("maxabs", "maxabs_per_channel", "save")))] = "maxabs"
    allowlist: OpList = Field(default_factory=_no_ops)
    blocklist: OpList = Field(default_factory=_no_ops)
    scale_method: Annotated[str, one_or_more(word(SCALE_METHODS))] = "maxabs_hw"
    measure_exclude: Annotated[str, PlainValidator(_any_case(*TENSORS))] = "OUTPUT"
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

    @property
    def wanted(self) -> OpScheme:
        """How an op computes."""
        _refuse_changed(self, "mode", "hp_dtype", "observer", "measure_exclude", "dump_stats_path")
        if self.scale_method not in _RUN_SCALES:
            raise ConfigError(
                f"FP8Config.scale_method: got {self.scale_method!r}; what is run are scales of any size, the "
                f"largest value over that of the type: {', '.join(_RUN_SCALES)}"
            )
        mode = "dynamic" if self.dynamic_quantization else "static"
        return OpScheme(TensorScheme(self.dtype), TensorScheme(self.dtype), mode)

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The fields of :attr:`wanted` that nothing else will do for: the data types."""
        return {(tensor, "dtype"): self.dtype.name for tensor in ("weight", "activation")}

    def check_ops(self, ops: Iterable[tuple[str, str]]) -> None:
        """Refuse an entry of the lists that speaks of none of ``ops``, (name, type) each."""
        ops = list(ops)
        for field in ("allowlist", "blocklist"):
            for part, texts in getattr(self, field).items():
                for text in texts:
                    alone = {**_no_ops(), part: [text]}
                    if not any(_is_listed(alone, *key) for key in ops):
                        known = sorted({key[part == "types"] for key in ops})
                        raise ConfigError(
                            f"FP8Config.{field}: {text!r} among the {part} matches no op of the model; "
                            f"{close_matches(text, known)}"
                        )

    def excludes(self, name: str, op_type: str) -> str:
        """Why an op is left in float by the lists of the configuration; empty where it is not."""
        if _is_listed(self.blocklist, name, op_type):
            return "the blocklist of FP8Config names it"
        if any(self.allowlist.values()) and not _is_listed(self.allowlist, name, op_type):
            return "the allowlist of FP8Config does not name it"
        return ""

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        if values["fake_quant"] and values["use_qdq"] and {"fake_quant", "use_qdq"} <= given:
            raise ConfigError(f"{cls.__name__}: fake_quant and use_qdq are two ways to run the model; choose one")
        return {**super()._settled(values, given), "use_qdq": values["use_qdq"] and not values["fake_quant"]}


ELEMENTS = ("int8", "int4", "int2", "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4", "float16", "bfloat16")
"""What the elements of a block can be; the last two leave the tensor without a scale."""
ROUNDINGS = ("nearest", "dither", "floor", "even")


Element = Annotated[str, one_or_more(_dtypes(*ELEMENTS))]


@register_config("torch", "mx_quant")
class MXQuantConfig(ComposableConfig):
    """Weights and activations in blocks of ``blocksize`` elements that share a scale, simulated in ``out_dtype``.

    >>> MXQuantConfig(w_dtype="fp4_e2m1").w_dtype
    'fp4'
    """

    w_dtype: Element = "int8"
    act_dtype: Element = "int8"
    out_dtype: Annotated[str, one_or_more(_dtypes("bfloat16", "float16", "float32"))] = "bfloat16"
    blocksize: Count = 32
    round_method: Annotated[str, one_or_more(word(ROUNDINGS))] = "nearest"
    weight_only: Flag = False

    @property
    def quantizes(self) -> bool:
        """Whether weights or activations are rounded to blocks at all."""
        return self.w_dtype not in _WHOLE or self.act_dtype not in _WHOLE

    @property
    def wanted(self) -> OpScheme:
        """How an op computes."""
        self.require_single()
        _refuse_changed(self, "out_dtype", "blocksize")
        if self.round_method not in ("nearest", "even"):
            raise ConfigError(
                f"MXQuantConfig.round_method: got {self.round_method!r}, which is not run yet; values are rounded to the "
                "nearest, ties to even"
            )
        weight, activation = self._block("w_dtype"), self._block("act_dtype")
        if weight is None:
            raise ConfigError(
                f"MXQuantConfig.w_dtype: got {self.w_dtype!r}; with weights in float nothing gets smaller: use "
                "MixedPrecisionConfig for both, or a block type for the weight"
            )
        if self.weight_only or activation is None:
            return OpScheme(weight, mode="weight_only", method=Method("rtn"))
        return OpScheme(weight, activation, "dynamic")

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The fields of :attr:`wanted` that nothing else will do for: the data types."""
        wanted = self.wanted
        tensors = {"weight": wanted.weight, "activation": wanted.activation}
        return {(name, "dtype"): tensor.dtype.name for name, tensor in tensors.items() if tensor is not None}

    def _block(self, field: str) -> TensorScheme | None:
        """The blocks of a tensor; None where it stays in float."""
        name = getattr(self, field)
        if name in _WHOLE:
            return None
        if name not in _BLOCKS:
            raise ConfigError(
                f"MXQuantConfig.{field}: got {name!r}, of which there is no block format; {close_matches(name, _BLOCKS)}"
            )
        kind = dtype(_BLOCKS[name])
        return TensorScheme(kind, granularity=PerGroup(self.blocksize))


_WHOLE = ("float16", "bfloat16")
_BLOCKS = {name: f"mx{name}" for name in ELEMENTS if f"mx{name}" in DTYPES}
"""The block format of each type of element that has one."""


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

    @property
    def wanted(self) -> OpScheme:
        """How an op computes."""
        self.require_single()
        return float_op(self.dtype)

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The precision is all there is to say."""
        return {}
