"""The weight-only methods by name: what each is called with, and the one description of its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, create_model

from neural_compressor.algorithms.layer_result import LayerResult
from neural_compressor.algorithms.statistics import InputStatistics
from neural_compressor.errors import CalibrationError, ConfigError, NeuralCompressorError, QuantizationError
from neural_compressor.registry import Registry, close_matches
from neural_compressor.schemes import Method, TensorScheme
from neural_compressor.schemes.arrays import Array
from neural_compressor.validation import explain

if TYPE_CHECKING:
    from typing_extensions import Self

EXECUTOR = "executor"
"""Marks an option that whoever walks the model reads; all others are arguments of the algorithm's function."""
FullRange = Annotated[
    bool | None,
    Field(description="negative scales for symmetric signed integers, so that steps are finer; None: where possible"),
]
Hadamard = Annotated[bool, EXECUTOR, Field(description="rotate the inputs, so that no channel stands out")]
CALL_TIME = ("rotation", "use_up")
"""What an executor gives a function that has a parameter of that name; no option, because it is no plain data."""


class LayerOptions(BaseModel):
    """The options of a method, of which these are common to all: a child adds those of its algorithm.

    An unknown name or a bad value is a :class:`ConfigError`. A method lists what differs from the defaults here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    nsamples: Annotated[PositiveInt | None, EXECUTOR] = Field(
        default=None, description="samples of the data it sees; None: all"
    )
    seqlen: Annotated[PositiveInt | None, EXECUTOR] = Field(
        default=None, description="tokens of each sample; None: all"
    )
    amp: Annotated[bool, EXECUTOR] = Field(
        default=False, description="run data through float32 models in bfloat16, where the device is fast at it"
    )
    layer_wise: Annotated[bool, EXECUTOR] = Field(
        default=False,
        description="see each layer behind all that are quantized before it, not each block behind blocks",
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, type(self).__name__, "option", type(self).model_fields)) from None

    @property
    def needs_statistics(self) -> bool:
        """Whether these options ask for data where the algorithm could do without."""
        return False

    @classmethod
    def of_function(cls, given: Mapping[str, Any]) -> Self:
        """The options that the algorithm's function was called with, among which those for executors have no place."""
        known = cls.names(executor=False)
        for name in given:
            if name not in known:
                raise ConfigError(f"{cls.__name__} has no option {name!r} for one weight; {close_matches(name, known)}")
        return cls(**given)

    @classmethod
    def names(cls, *, executor: bool) -> tuple[str, ...]:
        """The options that the executor reads, or those that the algorithm's function is called with."""
        return tuple(name for name, field in cls.model_fields.items() if (EXECUTOR in field.metadata) == executor)

    def for_function(self) -> dict[str, Any]:
        """What the algorithm's function is called with, defaults included."""
        given = {name: getattr(self, name) for name in self.names(executor=False)}
        return {**given, **(self.model_extra or {})}

    def distinct(self) -> dict[str, Any]:
        """What differs from the defaults: equal for options that mean the same, however they were spelled."""
        return self.model_dump(exclude_defaults=True)


@dataclass(frozen=True)
class WeightOnlyAlgorithm:
    """An algorithm for the weight (outputs, inputs) of one layer, or of the layers of a block together.

    One that ``needs_zero_point`` moves it, and is for asymmetric integers alone.
    ``quantize`` works on the arrays of one layer. It is None for a method of ``scope`` "block" that only executors know
    how to run: those that can train.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> ALGORITHMS["rtn"](np.float32([[1.0, -8.0]]), TensorScheme(dtype("int4"))).dequantize().tolist()
    [[1.0, -8.0]]
    """

    name: str
    quantize: Callable[..., LayerResult] | None
    options_model: type[LayerOptions] = LayerOptions
    needs_statistics: bool = False
    scope: Literal["layer", "block"] = "layer"
    needs_zero_point: bool = False

    def __call__(
        self, weight: Array, scheme: TensorScheme, statistics: InputStatistics | None = None, **options: Any
    ) -> LayerResult:
        """Quantize ``weight`` as ``scheme`` says; what is for the executor is refused here, where it would do nothing."""
        if self.quantize is None:
            raise QuantizationError(
                f"{self.name} works on whole blocks of a model, not on one weight; run it with an executor that trains"
            )
        if self.needs_statistics and (statistics is None or statistics.count == 0):
            raise CalibrationError(
                f"{self.name} needs the statistics of the layer's inputs; calibrate with at least one batch that runs "
                "through the layer, or use an algorithm that needs none (rtn, hqq)"
            )
        beside = {name: options.pop(name) for name in CALL_TIME if name in options}
        read = self.options(options)
        for name in self.options_model.names(executor=True):
            if name in read.distinct():
                raise ConfigError(
                    f"{self.name}: {name} says how a model is walked, and here is one weight; leave it out"
                )
        try:
            found = self.quantize(weight, scheme, statistics, **read.for_function(), **beside)
        except NeuralCompressorError:
            raise
        except Exception as error:  # whoever registered it has to know that it was his
            raise QuantizationError(f"algorithm {self.name!r}: {type(error).__name__}: {error}") from error
        if not isinstance(found, LayerResult):
            raise QuantizationError(
                f"algorithm {self.name!r} gave a {type(found).__name__}, expected a LayerResult, as in LayerResult(array)"
            )
        return found

    def options(self, given: Mapping[str, Any]) -> LayerOptions:
        """``given`` as validated options; what is unknown or wrong is an error that names this algorithm.

        >>> ALGORITHMS["gptq"].options({"act_oder": True})
        Traceback (most recent call last):
        neural_compressor.errors.ConfigError: method gptq: GPTQOptions has no option 'act_oder'; did you mean 'act_order'...
        """
        try:
            return self.options_model(**given)
        except ConfigError as error:
            raise ConfigError(f"method {self.name}: {error}") from None

    def method(self, **options: Any) -> Method:
        """The plain data that says: this algorithm with ``options``, as far as they are not the defaults.

        >>> ALGORITHMS["gptq"].method(act_order=True, percdamp=0.01)
        Method(name='gptq', options={'act_order': True})
        """
        return Method(self.name, self.options(options).distinct())

    def takes(self, parameter: str) -> bool:
        """Whether the function has the call-time ``parameter`` (:data:`CALL_TIME`)."""
        return self.quantize is not None and parameter in inspect.signature(self.quantize).parameters


ALGORITHMS: Registry[WeightOnlyAlgorithm] = Registry(
    "weight-only algorithm", entry_point_group="neural_compressor.algorithms"
)


def options_of(method: Method) -> LayerOptions:
    """The validated options of a method.

    >>> options_of(Method("gptq", {"act_order": True})).percdamp
    0.01
    """
    return ALGORITHMS[method.name].options(method.options)


def needs_data(method: Method) -> bool:
    """Whether the method must have seen the inputs of its layers."""
    return ALGORITHMS[method.name].needs_statistics or options_of(method).needs_statistics


def options_table(name: str) -> str:
    """The options of an algorithm as a Markdown table.

    >>> print(options_table("hqq").splitlines()[2])
    | `p` | 0.7 | exponent of the error that is made small |
    """
    model = ALGORITHMS[name].options_model
    rows = ["| option | default | |", "| --- | --- | --- |"]
    for option in (*model.names(executor=False), *model.names(executor=True)):
        field = model.model_fields[option]
        rows.append(f"| `{option}` | {field.default} | {field.description} |")
    return "\n".join(rows)


def register_algorithm(
    name: str,
    *,
    options: type[LayerOptions] | None = None,
    needs_statistics: bool = False,
    scope: Literal["layer", "block"] = "layer",
    needs_zero_point: bool = False,
) -> Callable[[Callable[..., LayerResult]], Callable[..., LayerResult]]:
    """Make ``function(weight, scheme, statistics, **options)`` known by ``name``.

    ``options`` describes its options; without it they are the keyword-only parameters of the function.
    """
    if options is not None and not (isinstance(options, type) and issubclass(options, LayerOptions)):
        raise ConfigError(f"options of {name!r}: got {options!r}, expected a class derived from LayerOptions")

    def add(function: Callable[..., LayerResult]) -> Callable[..., LayerResult]:
        model = _parameters_of(name, function) if options is None else options
        ALGORITHMS.add(name, WeightOnlyAlgorithm(name, function, model, needs_statistics, scope, needs_zero_point))
        return function

    return add


def _parameters_of(name: str, function: Callable[..., LayerResult]) -> type[LayerOptions]:
    """A model of the keyword-only parameters of ``function``, which checks names and not values."""
    parameters = inspect.signature(function).parameters.values()
    fields: dict[str, Any] = {
        each.name: (Any, ... if each.default is each.empty else each.default)
        for each in parameters
        if each.kind is each.KEYWORD_ONLY and each.name not in CALL_TIME
    }
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    config = ConfigDict(extra="allow") if takes_any else ConfigDict()
    base = type(f"{name}Options", (LayerOptions,), {"__module__": __name__, "model_config": config})
    return cast("type[LayerOptions]", create_model(f"{name}Options", __base__=base, **fields))
