"""Weights and activations in 8-bit floats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import as_list, one_or_more, word
from neural_compressor.dtypes import DType, dtype
from neural_compressor.errors import ConfigError
from neural_compressor.name_pattern import NamePattern
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpScheme, TensorScheme
from neural_compressor.torch.quantization.config.fields import Flag, Path, refuse_changed, spelled

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


def _any_case(*known: str) -> Any:
    return spelled(known, str.upper)


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
        refuse_changed(self, "mode", "hp_dtype", "observer", "measure_exclude", "dump_stats_path")
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
