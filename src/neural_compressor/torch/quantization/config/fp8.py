"""Weights and activations in 8-bit floats."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainValidator, PrivateAttr

from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import as_list, at_least, flag, one_or_more, optional, word
from neural_compressor.dtypes import DType, dtype
from neural_compressor.errors import ConfigError
from neural_compressor.name_pattern import NamePattern
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, OpScheme
from neural_compressor.schemes.scaling import DEVICE_SCALES
from neural_compressor.torch.quantization.config.fields import FoldedHadamard, Path, TorchConfig, spelled
from neural_compressor.torch.quantization.config.fp8_scales import (
    DYNAMIC,
    SCALE_METHODS,
    STATIC,
    names_of,
    read_scale_method,
    read_scale_params,
    scale_method,
    with_backoff,
)

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("neural_compressor")
TENSORS = ("INPUT", "OUTPUT", "PARAMS", "ALL", "NONE")
MODES = ("AUTO", "MEASURE", "QUANTIZE", "LOAD", "SHAPE", "NONE")
OBSERVERS = ("maxabs", "maxabs_per_channel", "save", "shape")
RUN_FIELDS = (
    "mode",
    "observer",
    "measure_exclude",
    "dump_stats_path",
    "recalc_scales",
    "ignore_modules_wo_measures",
    "seperate_measure_files",
    "calibration_sample_interval",
    "local_rank",
    "global_rank",
    "world_size",
    "kv_cache",
)
"""The fields that speak of a run over the whole model, and not of single ops."""
_LOOK_UPS = ("Embedding", "EmbeddingBag")
_OF_HABANA = frozenset(
    [
        *("KVCache", "VLLMKVCache", "Softmax", "ModuleFusedSDPA", "FalconLinear", "LoRACompatibleLinear"),
        *("LoRACompatibleConv", "LinearLayer", "LinearAllreduce", "ScopedLinearAllReduce", "LmHeadLinearAllreduce"),
    ]
)
"""Types of modules in programs for HPU, whose lists name them for every model."""
_HIGH_PRECISION = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _any_case(*known: str) -> Any:
    return spelled(known, str.upper)


def _op_list(value: Any) -> dict[str, list[str]]:
    """Names and types of ops; a class is its name."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"got {value!r}, expected {{'names': [...], 'types': [...]}}")
    for part in value:
        if part not in ("names", "types"):
            raise ConfigError(f"got a part {part!r}; {close_matches(str(part), ('names', 'types'))}")
    return {part: [_op_name(item) for item in as_list(value.get(part, []))] for part in ("names", "types")}


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
    kinds = (kind.casefold() for kind in ops["types"])
    return op_type.casefold() in kinds or any(NamePattern.of(f".*(?:{text}).*").matches(name) for text in ops["names"])


_OF_FILES = {"method": "HOOKS", "quantize_weight": False}
"""What files say beside the fields, with the one value that it has."""

OpList = Annotated[dict[str, list[str]], PlainValidator(_op_list)]


def _no_modules(value: Any) -> dict[str, str]:
    """A class is quantized as what it is: a map of class names has nothing to add but what holds already."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"got {value!r}, expected a dict of op types by the name of a class")
    for name, kind in value.items():
        if str(name).lower() != str(kind).lower():
            raise ConfigError(
                f"got {{{name!r}: {kind!r}}}: a module is quantized by its own class; derive {name} from that of torch "
                "without a forward of its own, and it is taken for it"
            )
    return dict(value)


def _switch(value: Any) -> bool:
    """A flag; in JSON files of these settings it is as often a word."""
    words = {"true": True, "false": False}
    return flag(words.get(value.lower(), value) if isinstance(value, str) else value)


Rank = Annotated[int | None, PlainValidator(lambda value: None if value in (None, -1) else at_least(0)(value))]


@register_config("torch", "fp8_quant")
class FP8Config(TorchConfig):
    """Weights and activations in an 8-bit float.

    ``mode`` is ``"AUTO"`` (prepare, data, convert), or one step of it with statistics in files under the prefix
    ``dump_stats_path``: ``"MEASURE"`` (prepare, data, ``finalize_calibration``), ``"QUANTIZE"`` (convert with these),
    ``"LOAD"`` (convert with the scales that QUANTIZE wrote), ``"SHAPE"`` (shapes of tensors alone), ``"NONE"`` (the model
    stays in float). ``scale_method`` is one of ``SCALE_METHODS`` or a dict of its parts; ``scale_params`` has
    ``input_backoff`` and ``weight_backoff``, and ``device_for_scales`` (gaudi2, gaudi3) the set of scales that ``hw``
    means. ``allowlist`` and ``blocklist`` are ``{"names": [...], "types": [...]}``; empty ones admit and exclude nothing.

    ``kv_cache=True`` rounds keys and values to fp8 (e4m3) before a cache gets them, with a scale each from calibration: the
    buffers ``k_scale`` and ``v_scale`` of attentions. ``neural_compressor.torch.fp8_cache`` holds them in 8 bits.

    Results do not depend on ``scale_format``, as scales are tensors of a layer, nor on ``fake_quant`` and ``use_qdq`` where
    there is no fp8 kernel. Statistics are measured where the model is. ``hadamard="folded"`` is that of
    :class:`RTNConfig`, for mode AUTO.

    >>> FP8Config(fp8_config="e5m2").fp8_config
    'E5M2'
    """

    fp8_config: Annotated[str, one_or_more(_any_case("E4M3", "E5M2"))] = "E4M3"
    mode: Annotated[str, PlainValidator(_any_case(*MODES))] = "AUTO"
    hp_dtype: Annotated[str, one_or_more(spelled(("bf16", "fp16", "fp32"), str.lower))] = "bf16"
    observer: Annotated[str, one_or_more(word(OBSERVERS))] = "maxabs"
    allowlist: OpList = Field(default_factory=_no_ops)
    blocklist: OpList = Field(default_factory=_no_ops)
    scale_method: Annotated[str | dict[str, Any], one_or_more(read_scale_method)] = STATIC
    measure_exclude: Annotated[str, PlainValidator(_any_case(*TENSORS))] = "OUTPUT"
    dump_stats_path: Path = "./hqt_output/measure"
    fake_quant: Annotated[bool, one_or_more(_switch)] = False
    use_qdq: Annotated[bool, one_or_more(_switch)] = False
    dynamic_quantization: Annotated[bool, one_or_more(_switch)] = False
    scale_params: Annotated[dict[str, float], PlainValidator(read_scale_params)] = Field(default_factory=dict)
    scale_format: Annotated[str, PlainValidator(spelled(("scalar", "const"), str.lower))] = "scalar"
    device_for_scales: Annotated[str | None, PlainValidator(optional(spelled(tuple(DEVICE_SCALES), str.lower)))] = None
    recalc_scales: Annotated[bool, PlainValidator(_switch)] = False
    ignore_modules_wo_measures: Annotated[bool, PlainValidator(_switch)] = False
    seperate_measure_files: Annotated[bool, PlainValidator(_switch)] = True
    calibration_sample_interval: Annotated[int, PlainValidator(at_least(1))] = 1
    local_rank: Rank = None
    global_rank: Rank = None
    world_size: Rank = None
    mod_dict: Annotated[dict[str, str], PlainValidator(_no_modules)] = Field(default_factory=dict)
    measure_on_hpu: Annotated[bool, PlainValidator(_switch)] = True
    kv_cache: Annotated[bool, PlainValidator(_switch)] = False
    hadamard: FoldedHadamard = False

    _json_file: str | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        """Whether all fields are the same; from which file they were read is no difference."""
        return type(other) is type(self) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @property
    def measure(self) -> bool:
        """Whether data is run through the model."""
        return self.mode in ("AUTO", "MEASURE", "SHAPE")

    @property
    def quantize(self) -> bool:
        """Whether the model is quantized."""
        return self.mode in ("AUTO", "QUANTIZE", "LOAD")

    @property
    def writes_statistics(self) -> bool:
        """Whether statistics are left in files; AUTO does so where a path is said."""
        return self.measure and (self.mode != "AUTO" or bool(self.changed("dump_stats_path")))

    @property
    def needs_ranges(self) -> bool:
        """Whether scales of activations follow from data seen before; not where they are fixed, or taken from each batch."""
        fixed = (
            isinstance(self.scale_method, str)
            and SCALE_METHODS[self.scale_method].activation.scale_value_type == "unit"
        )
        return not fixed and not self.dynamic_quantization

    @property
    def needs_calibration(self) -> bool:
        """Whether data has to run through the model: for ranges, for those of a cache, for files, or to change the model."""
        wanted = self.needs_ranges or self.kv_cache or self.writes_statistics or bool(self.passes)
        return self.measure and wanted

    @property
    def dtype(self) -> DType:
        """The data type of weights and activations."""
        self.require_single()
        return dtype(f"fp8_{self.fp8_config.lower()}")

    @property
    def wanted(self) -> OpScheme:
        """How a Linear computes of which nothing else is said."""
        return self.wanted_for("", "Linear")

    def wanted_for(self, name: str, op_type: str) -> OpScheme:
        """How the op ``name`` computes."""
        method = scale_method(self.scale_method, name, op_type, self.dynamic_quantization)
        method = with_backoff(method, self.scale_params)
        device = self.device_for_scales or "gaudi3"
        if not self.dynamic_quantization and method.activation.granularity == "pcs":
            raise ConfigError(
                "FP8Config.scale_method: a scale a channel of an activation would have to be known beforehand; take pts, or "
                "dynamic_quantization=True, where each token has a scale"
            )
        if method.activation.scale_value_type == "opt":
            raise ConfigError(
                "FP8Config.scale_method: opt looks at all values, which there are of weights alone; take maxabs"
            )
        parts = {
            tensor: getattr(method, tensor).scheme(self.dtype, tensor, device) for tensor in ("weight", "activation")
        }
        activation = None if op_type in _LOOK_UPS else parts["activation"]
        return OpScheme(parts["weight"], activation, "dynamic" if self.dynamic_quantization else "static")

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The fields of :attr:`wanted` that nothing else will do for: the data types."""
        return {(tensor, "dtype"): self.dtype.name for tensor in ("weight", "activation")}

    def check_model(self, kinds: Collection[str], devices: Collection[str]) -> None:
        """Refuse what the types of the model's parameters, or the devices they are on, contradict."""
        wanted = _HIGH_PRECISION[self.hp_dtype]
        if self.changed("hp_dtype") and kinds and wanted not in kinds:
            raise ConfigError(
                f"FP8Config.hp_dtype: got {self.hp_dtype!r}, and the model computes in {', '.join(sorted(kinds))}: bring it "
                f"to torch.{wanted} first, or leave hp_dtype out"
            )
        if "hpu" in devices and not self.measure_on_hpu:
            raise ConfigError("FP8Config.measure_on_hpu: got False, and the model is there; move it before prepare")
        if (self.fake_quant or self.use_qdq) and set(devices) - {"cpu"}:
            raise ConfigError(
                f"FP8Config.{'fake_quant' if self.fake_quant else 'use_qdq'}: got True, and the model is on "
                f"{', '.join(sorted(devices))}, where kernels run it if there are any; simulate on the CPU"
            )

    def check_ops(self, ops: Iterable[OpKey], in_float: Collection[OpKey] = ()) -> None:
        """Refuse an entry of the lists, or of a dict of scale methods, that speaks of none of ``ops``.

        The blocklist may speak of what stays ``in_float`` anyhow.
        """
        ops = list(ops)
        entries = [("scale_method", part, text) for part, text in names_of(self.scale_method)]
        for field in ("allowlist", "blocklist"):
            entries += [(field, part, text) for part, texts in getattr(self, field).items() for text in texts]
        for field, part, text in entries:
            by_type = part in ("types", "layer_types")
            alone = {**_no_ops(), "types" if by_type else "names": [text]}
            known = sorted({key[by_type] for key in ops})
            if by_type and text in _OF_HABANA:
                logger.warning("FP8Config.%s: %s is a type of programs for HPU, and no op of the model", field, text)
                continue
            among = [*ops, *in_float] if field == "blocklist" else ops
            if text not in known if part == "nodes" else not any(_is_listed(alone, *key) for key in among):
                raise ConfigError(
                    f"FP8Config.{field}: {text!r} among the {part} matches no op of the model; {close_matches(text, known)}"
                )

    def listed_among(self, ops: Iterable[tuple[str, str]], *fields: str) -> list[list[str]]:
        """Of each entry of its lists, or of those that ``fields`` name, the ops that it speaks of among ``ops``."""
        ops = list(ops)
        entries = [
            {**_no_ops(), part: [text]}
            for field in fields or ("allowlist", "blocklist")
            for part, texts in getattr(self, field).items()
            for text in texts
        ]
        return [[name for name, kind in ops if _is_listed(entry, name, kind)] for entry in entries]

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
        values = {**super()._settled(values, given), "use_qdq": values["use_qdq"] and not values["fake_quant"]}
        method = values["scale_method"]
        if isinstance(method, str) and SCALE_METHODS[method].dynamic:
            values = cls._with(values, {"dynamic_quantization": True}, given, f"scale_method {method!r}")
        elif values["dynamic_quantization"] and method == STATIC and "scale_method" not in given:
            values = {**values, "scale_method": DYNAMIC}
        if values["observer"] in ("save", "shape") and values["mode"] == "AUTO":
            raise ConfigError(
                f"{cls.__name__}.observer: {values['observer']!r} writes files, from which a later run may quantize; take "
                "mode='MEASURE'"
            )
        if values["mode"] == "SHAPE":
            values = cls._with(values, {"observer": "shape"}, given, "mode 'SHAPE'")
        if values["measure_exclude"] in ("INPUT", "ALL") and values["mode"] == "AUTO":
            raise ConfigError(
                f"{cls.__name__}.measure_exclude: got {values['measure_exclude']!r}, and scales of activations come from "
                "the inputs of ops; exclude OUTPUT or PARAMS"
            )
        if values["hadamard"] and (values["mode"] != "AUTO" or "dump_stats_path" in given):
            raise ConfigError(
                f"{cls.__name__}.hadamard: got {values['hadamard']!r}, which changes the model before scales are taken, and "
                "statistics in files are of the model as it came; take mode='AUTO' and leave dump_stats_path out"
            )
        if values["hadamard"] and values["kv_cache"]:
            raise ConfigError(
                f"{cls.__name__}.kv_cache: got True with hadamard={values['hadamard']!r}, which turns the values of a "
                "cache after their scales were taken; leave one out"
            )
        cls._check_ranks(values)
        return values

    @classmethod
    def _check_ranks(cls, values: dict[str, Any]) -> None:
        world, rank = values["world_size"], values["global_rank"]
        rank = values["local_rank"] if rank is None else rank
        if world is not None and (rank is None or not 0 <= rank < world):
            raise ConfigError(
                f"{cls.__name__}.global_rank: got {rank}, expected 0 to {world - 1} of world_size {world}"
            )

    # -- files ------------------------------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` writes, or a JSON file of the fields alone."""
        given = dict(config_dict)
        for name, usual in _OF_FILES.items():
            if given.pop(name, usual) != usual:
                raise ConfigError(f"FP8Config.{name}: got {config_dict[name]!r}, expected {usual!r}")
        if given.pop("dump_stats_xlsx_path", None) is not None:
            logger.info("FP8Config: dump_stats_xlsx_path is not read, statistics are written as JSON")
        texts = {"True": True, "False": False}  # as tools write flags into config.json
        return super().from_dict({name: texts.get(v, v) if isinstance(v, str) else v for name, v in given.items()})

    @classmethod
    def from_json_file(cls, filename: str | os.PathLike[str]) -> Self:
        """Read a JSON file of the fields."""
        new = super().from_json_file(filename)
        new._json_file = os.fspath(filename)
        return new

    @property
    def json_file(self) -> str:
        """The file it was read from, or a temporary one with its fields."""
        if self._json_file is None:
            self.save_temp_json_file()
        assert self._json_file is not None
        return self._json_file

    def save_temp_json_file(self) -> str:
        """Write the fields to a temporary JSON file and return its path."""
        handle, self._json_file = tempfile.mkstemp(prefix="fp8_config_", suffix=".json")
        os.close(handle)
        self.to_json_file(self._json_file)
        return self._json_file
