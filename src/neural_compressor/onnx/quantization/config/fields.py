"""The base of the configurations for ONNX models, and field types and extra options that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import PlainValidator

from neural_compressor.algorithms.smoothquant import alphas_between
from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.recipes import TARGET_CPUS
from neural_compressor.config.validators import (
    as_list,
    at_least,
    expecting,
    flag,
    group_size,
    is_whole,
    number_between,
    one_or_more,
    smoothing_alpha,
    whole_between,
    word,
)
from neural_compressor.dtypes import DTYPES
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.linear_ops import LINEAR_TYPES
from neural_compressor.onnx.quantization.quant_types import CalibrationMethod, QuantFormat, QuantType, choice
from neural_compressor.onnx.runtime.providers import AUTOMATIC, find_provider
from neural_compressor.registry import close_matches

if TYPE_CHECKING:
    from typing_extensions import Self


def smoothed_types(value: Any) -> tuple[str, ...]:
    """Validate the types of node to smooth."""
    found = tuple(word(LINEAR_TYPES)(kind) for kind in as_list(value))
    if not found:
        raise ConfigError(f"got an empty list, expected some of {', '.join(LINEAR_TYPES)}")
    return found


def _types(value: Any) -> list[str]:
    return [str(item) for item in as_list(value)]


def _alphas(value: Any) -> Any:
    return [smoothing_alpha(item) for item in value] if isinstance(value, list | tuple) else smoothing_alpha(value)


_AUTO_ALPHA: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "alpha_min": (0.0, number_between(0, 1)),
    "alpha_max": (1.0, number_between(0, 1)),
    "alpha_step": (0.1, number_between(0, 1)),
    # Of ops that share an input, which have one scale: the error of all of them decides, whatever is said.
    "attn_method": ("min", word(("min", "max", "mean"))),
}


def auto_alpha(value: Any) -> dict[str, Any]:
    """Validate what alpha="auto" chooses from; where nothing is said of it, nothing is filled in."""
    if value in (None, {}):
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"got {value!r}, expected a dict with alpha_min, alpha_max and alpha_step")
    if unknown := [name for name in value if name not in _AUTO_ALPHA]:
        raise ConfigError(f"has no part {unknown[0]!r}; {close_matches(str(unknown[0]), _AUTO_ALPHA)}")
    found = {name: check(value.get(name, usual)) for name, (usual, check) in _AUTO_ALPHA.items()}
    alphas_between(found["alpha_min"], found["alpha_max"], found["alpha_step"])
    return found


EXTRA_OPTIONS: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "ActivationSymmetric": (False, flag),
    "WeightSymmetric": (None, flag),
    "AddQDQPairToWeight": (False, flag),
    "DedicatedQDQPair": (False, flag),
    "OpTypesToExcludeOutputQuantization": ([], _types),
    "BiasCorrection": (None, flag),
    "CalibPercentile": (99.999, number_between(50, 100)),
    "SmoothQuant": (False, flag),
    "SmoothQuantAlpha": (0.5, _alphas),
    "SmoothQuantFolding": (True, flag),
    "SmoothQuantOpTypes": (None, smoothed_types),
    "SmoothQuantCalibIter": (100, at_least(1)),
    "SmoothQuantScalesPerOp": (True, flag),
    "AutoAlphaArgs": ({}, auto_alpha),
}
"""Each option with its default and what admits a value."""
STATIC_OPTIONS = tuple(name for name in EXTRA_OPTIONS if not name.startswith(("SmoothQuant", "AutoAlpha")))
"""Those of a configuration that smooths by fields of its own."""
DYNAMIC_OPTIONS = ("WeightSymmetric", "ActivationSymmetric")
"""Those that mean something where ranges of activations are taken from each batch."""


def dynamic_options(value: Any) -> dict[str, Any]:
    """Validate the options of dynamic quantization: activations are asymmetric there.

    >>> dynamic_options({"ActivationSymmetric": False})
    {}
    """
    found = options_among(DYNAMIC_OPTIONS)(value)
    if found.pop("ActivationSymmetric", False):
        raise ConfigError(
            "option ActivationSymmetric: got True, and DynamicQuantizeLinear, which takes ranges from each batch, gives "
            "uint8 with a zero point; leave it out, or take StaticQuantConfig"
        )
    return found


def options_among(known: tuple[str, ...] = tuple(EXTRA_OPTIONS)) -> Callable[[Any], dict[str, Any]]:
    """A validator of a dict of the ``known`` options.

    >>> options_among()({"ActivationSymmetric": True})
    {'ActivationSymmetric': True}
    """

    def check(value: Any) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"got {value!r}, expected a dict of options; known: {', '.join(known)}")
        found = {}
        for name, given in value.items():
            if name not in known:
                raise ConfigError(f"has no option {name!r}; {close_matches(str(name), known)}")
            try:
                found[name] = EXTRA_OPTIONS[name][1](given)
            except ConfigError as error:
                raise ConfigError(f"option {name}: {error}") from None
        return found

    return check


def extra_option(options: Mapping[str, Any], name: str) -> Any:
    """What ``options`` say of ``name``, or its default."""
    return options.get(name, EXTRA_OPTIONS[name][0])


FLOAT = "fp32"
"""The data type that leaves a node as it is."""
RUNTIME = "runtime"
"""The accuracy level that is left to the runtime, which a model says with 0."""
MOST_BITS = 8
"""The widest codes of weights that are quantized alone."""


def weight_dtype(value: Any) -> str:
    """Validate the data type of a weight: ``"int"``, whose width is given apart, the name of one, or ``"fp32"``.

    >>> weight_dtype("int8"), weight_dtype("fp4"), weight_dtype("fp32")
    ('int8', 'fp4_e2m1', 'fp32')
    """
    if value == "int":
        return "int"
    if not isinstance(value, str) or value not in DTYPES:
        raise ConfigError(f"got {value!r}; {close_matches(str(value), ('int', *DTYPES.names()))}")
    kind = DTYPES[value]
    if kind.name != FLOAT and (kind.bits > MOST_BITS or not kind.needs_scale):
        raise ConfigError(
            f"got {value!r}, expected a data type of 1 to {MOST_BITS} bits, or 'fp32', which leaves the node as it is; "
            "convert_precision stores weights in fp16 or bf16"
        )
    return kind.name


_act_dtype = expecting(
    "'fp32': weights alone are quantized here; for activations too use StaticQuantConfig or DynamicQuantConfig",
    lambda value: value == FLOAT,
    str,
)
_accuracy_level: Callable[[Any], int | str] = expecting(
    f"0 (the fastest), 1 (inputs in fp32), 2 (fp16), 3 (bf16), 4 (int8 in blocks), or {RUNTIME!r}",
    lambda value: value in (None, RUNTIME) or (is_whole(value) and 0 <= value <= 4),
    lambda value: RUNTIME if value == RUNTIME else int(value or 0),
)


def _names(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, Mapping):
        raise ConfigError(f"got {value!r}, expected a name or a list of names")
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    for name in found:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"got {name!r}, expected a name or a list of names")
    return tuple(dict.fromkeys(found))


def _optional_names(value: Any) -> tuple[str, ...] | None:
    return _names(value) or None


def _provider(value: Any) -> str | None:
    if value is None or value in AUTOMATIC:
        return None
    if not isinstance(value, str):
        raise ConfigError(f"got {value!r}, expected the name of an execution provider, such as 'CPUExecutionProvider'")
    return find_provider(value).name


def _providers(value: Any) -> tuple[str, ...]:
    found = tuple(find_provider(name).name for name in _names(value))
    if not found:
        raise ConfigError(f"got {value!r}, expected a list of execution providers, such as ['CPUExecutionProvider']")
    return found


def _reader(value: Any) -> Any:
    if value is None or callable(getattr(value, "get_next", None)):
        return value
    raise ConfigError(f"got a {type(value).__name__}, expected a CalibrationDataReader (get_next, rewind)")


Reader = Annotated[Any, PlainValidator(_reader)]
Names = Annotated[tuple[str, ...], PlainValidator(_names)]
OptionalNames = Annotated[tuple[str, ...] | None, PlainValidator(_optional_names)]
Provider = Annotated[str | None, PlainValidator(_provider)]
Providers = Annotated[tuple[str, ...], PlainValidator(_providers)]

Flag = Annotated[bool, one_or_more(flag)]
Count = Annotated[int, one_or_more(at_least(1))]
Fraction = Annotated[float, one_or_more(number_between(0, 1))]
Bits = Annotated[int, one_or_more(whole_between(1, MOST_BITS, f"bits, of which 2, 4 and {MOST_BITS} have kernels"))]
GroupSize = Annotated[int, one_or_more(group_size)]
WeightDtype = Annotated[str, one_or_more(weight_dtype)]
ActDtype = Annotated[str, one_or_more(_act_dtype)]
AccuracyLevel = Annotated[int | str, one_or_more(_accuracy_level)]
Type = Annotated[QuantType, one_or_more(choice(QuantType))]
Format = Annotated[QuantFormat, one_or_more(choice(QuantFormat))]
TargetCpu = Annotated[str, one_or_more(word(TARGET_CPUS))]
Method = Annotated[CalibrationMethod, one_or_more(choice(CalibrationMethod))]

_READER = "calibration_data_reader"


class OnnxConfig(ComposableConfig):
    """The configuration of one algorithm for ONNX models.

    ``op_types_to_quantize`` bounds the types of node it speaks of, ``nodes_to_quantize`` the nodes (names, or regular
    expressions matched whole), ``nodes_to_exclude`` names those to leave in float. ``quant_last_matmul=False`` leaves the
    last matrix product in float, too.

    A calibration data reader is data and not a setting: copies share it, and files and dicts leave it out.
    """

    #: "static", "dynamic" or "weight_only"
    approach: ClassVar[str] = ""
    #: The types quantized where nothing says which; None stands for all that can be.
    usual_types: ClassVar[tuple[str, ...] | None] = None

    if TYPE_CHECKING:
        # Each class lists its own fields, so that their order is that of its parameters.
        op_types_to_quantize: tuple[str, ...] | None
        nodes_to_quantize: tuple[str, ...]
        nodes_to_exclude: tuple[str, ...]
        quant_last_matmul: bool

    @property
    def reader(self) -> Any:
        """The calibration data reader the configuration has of its own, or None."""
        return getattr(self, _READER, None)

    def expand(self) -> list[Self]:
        singles = super().expand()
        for single in singles:
            if single is not self and self.reader is not None:
                setattr(single, _READER, self.reader)
        return singles

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        memo = {} if memo is None else memo
        memo[id(self.reader)] = self.reader
        return super().__deepcopy__(memo)

    def _values(self) -> dict[str, Any]:
        return {name: value for name, value in super()._values().items() if name != _READER}
