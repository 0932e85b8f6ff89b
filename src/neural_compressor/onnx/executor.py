"""The executor: a float model, read once, quantized by one plan after another.

``quantize``, ``quantization.fit``, ``autotune`` and ``MatMulNBitsQuantizer`` all run plans here. A run is: simplify the
graph, smooth, static (with its corrections), weight-only, dynamic, half precision, weights stored in integers, record.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import onnx_ir as ir

from neural_compressor.adaptor.plan_check import check_known, check_no_method, check_weight_range, read_pass
from neural_compressor.algorithms.smoothquant import alphas_between, check_alpha
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.onnx.files.quantization_record import QuantizationRecord, write_record
from neural_compressor.onnx.graph.linear_ops import LINEAR_TYPES
from neural_compressor.onnx.graph.normalise import restore_overridable
from neural_compressor.onnx.graph.sum_order import target_cpu
from neural_compressor.onnx.methods.dynamic import quantize_dynamic
from neural_compressor.onnx.methods.static.calibration import KnownRanges
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.methods.weight_only.decoded import simulated_ops
from neural_compressor.onnx.methods.weight_only.method import WeightOnlyOptions, check_weight_only
from neural_compressor.onnx.methods.weight_only.quantizer import quantize_weight_only
from neural_compressor.onnx.passes.half import half_precision
from neural_compressor.onnx.passes.simplify import optimise, simplify, tidy
from neural_compressor.onnx.passes.smooth_quant import prevailing_weights, smooth
from neural_compressor.onnx.passes.store_weights import store_weights, stored_instead, without_stored
from neural_compressor.onnx.runtime.capability import ProviderCapability
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.providers import CPU
from neural_compressor.registry import Registry, close_matches
from neural_compressor.schemes import OpKey, Pass, Plan, TensorScheme, float_op

_KEPT = 4
"""How many smoothed models, or the same on other data, are kept for later plans."""
_HALVES = ("fp16", "bf16")
_SIMPLIFIED = {"integers": simplify, "tidy": tidy, "none": None}

PASSES: Registry[type[Any]] = Registry("pass over ONNX models", entry_point_group="neural_compressor.onnx_passes")
"""The options of each pass, a frozen dataclass. One with a method ``change(model) -> model`` changes the float model, which
is its own to change, before anything is quantized; plans name the ops of what it gives."""


@PASSES.register("optimize")
@dataclass(frozen=True)
class Optimize:
    """How the graph is simplified first.

    ``level`` is the name of a level of ONNX Runtime, or None for the basic one without what renames products. ``simplify``
    is "integers" for what helps integer ops, "tidy" for what no runtime needs, or "none".
    """

    level: str | None = None
    simplify: str = "integers"

    def change(self, model: ir.Model) -> ir.Model:
        """The model simplified."""
        if self.simplify not in _SIMPLIFIED:
            raise ConfigError(
                f"the pass optimize: simplify is {self.simplify!r}; {close_matches(self.simplify, _SIMPLIFIED)}"
            )
        model = optimise(model, self.level)
        if (change := _SIMPLIFIED[self.simplify]) is not None:
            change(model)
        return model


@PASSES.register("smooth")
@dataclass(frozen=True)
class Smooth:
    """The arguments of :func:`~neural_compressor.onnx.passes.smooth_quant.smooth`, and what ``alpha="auto"`` chooses from.

    Of ops that share a scale the error of all of them decides, whatever ``attn_method`` says.
    """

    alpha: float | str | list[float | str] = 0.5
    folding: bool = True
    op_types: tuple[str, ...] = LINEAR_TYPES
    calib_iter: int = 100
    scales_per_op: bool = True
    alpha_min: float = 0.0
    alpha_max: float = 1.0
    alpha_step: float = 0.1
    attn_method: str = "min"

    def arguments(self) -> dict[str, Any]:
        """What the function is called with."""
        auto = alphas_between(self.alpha_min, self.alpha_max, self.alpha_step)
        given = {name: getattr(self, name) for name in ("folding", "op_types", "calib_iter", "scales_per_op")}
        return {"alpha": check_alpha(self.alpha, auto), **given}


@PASSES.register("correct_biases")
@dataclass(frozen=True)
class CorrectBiases:
    """Biases are corrected on data where it admits that; where it is ``required``, what stands against it is an error."""

    required: bool = False


@PASSES.register("correct_weights")
@dataclass(frozen=True)
class CorrectWeights:
    """Rounded weights get the spread of the float ones."""


@PASSES.register("calibrate")
@dataclass(frozen=True)
class Calibrate:
    """``percentile`` is the share of values that an estimator of that name keeps, in percent."""

    percentile: float = StaticOptions.percentile


@PASSES.register("qdq_layout")
@dataclass(frozen=True)
class QdqLayout:
    """How a statically quantized model is written, as :class:`StaticOptions` has it; None is what the provider takes."""

    quant_format: str | None = None
    add_qdq_pair_to_weight: bool = False
    dedicated_qdq_pair: bool = False
    optypes_to_exclude_output_quant: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


@PASSES.register("weight_layout")
@dataclass(frozen=True)
class WeightLayout:
    """How weights that are quantized alone are written, as :class:`WeightOnlyOptions` has it; ``accuracy_level`` 0 is
    "auto", and "runtime" leaves it to the runtime."""

    quant_format: str | None = None
    accuracy_level: int | str = "auto"
    fold: bool = True


DEFAULT_PASSES = (Pass("optimize"), Pass("correct_biases"))
"""The passes of a plan that names none."""


def one_by_one(plan: Plan) -> Plan:
    """``plan`` for a model whose ops can be told apart: each reads and gives floats, and no other op makes up for it."""
    layouts: dict[str, dict[str, Any]] = {"qdq_layout": {"quant_format": "QDQ"}, "weight_layout": {"fold": False}}
    kept = [step for step in plan.passes if step.name != "correct_biases"]
    passes = [step.with_options(**layouts.pop(step.name, {})) for step in kept]
    return replace(plan, passes=[*passes, *(Pass(name, options) for name, options in layouts.items())])


P = TypeVar("P")


class Steps:
    """The passes of a plan with their options read; unknown passes and options are errors that name them.

    >>> Steps([Pass("smooth", {"alfa": 1})])
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: the pass smooth has no 'alfa'; did you mean 'alpha'? Known: alpha, ...
    """

    def __init__(self, passes: Iterable[Pass]) -> None:
        self._read: dict[type[Any], Any] = {}
        self.changes: dict[Pass, Any] = {}
        for step in passes:
            read = self._read[PASSES[step.name]] = read_pass(step, PASSES, "ONNX models")
            if hasattr(read, "change"):
                self.changes[step] = read

    @property
    def origin(self) -> str:
        """The passes that make the float model, in words."""
        return " ".join(map(str, self.changes)) or "as given"

    def get(self, kind: type[P]) -> P | None:
        """The options of a pass, where the plan has it."""
        return self._read.get(kind)

    def usual(self, kind: type[P]) -> P:
        """The options of a pass, or the default ones."""
        return self._read.get(kind) or kind()


@dataclass(frozen=True)
class CalibrationData:
    """``samples`` of a ``source``, a reader, loader or function; what is known of one source serves all later plans."""

    samples: Samples | None = None
    source: object = None

    def upto(self, count: int | None) -> Samples | None:
        """The first ``count`` samples."""
        if self.samples is not None:
            self.samples.limit = count
        return self.samples


NO_DATA = CalibrationData()


@dataclass(frozen=True)
class RunOptions:
    """What a plan does not say: by mode the execution provider that a model is for, and the calibration data.

    ``reasons`` of ops that stay in float go into the record of the quantized model.
    """

    capabilities: Mapping[str, ProviderCapability]
    data: Mapping[str, CalibrationData] = field(default_factory=dict)
    reasons: Mapping[OpKey, str] = field(default_factory=dict)

    @property
    def provider(self) -> str:
        """The name of the provider."""
        return next(iter(self.capabilities.values())).name


@dataclass(frozen=True)
class _Base:
    """A float model, smoothed or not, and the ranges seen on it so far; None where nobody asks for them again."""

    key: Hashable
    name: str
    model: ir.Model
    known: KnownRanges | None


@dataclass
class Executor:
    """Runs plans on the model ``source``, a normalised one, which is left as it is.

    With ``one_plan`` no ranges are collected beside those that the plan needs.
    """

    source: ir.Model
    one_plan: bool = False
    _floats: dict[str, ir.Model] = field(default_factory=dict, init=False)
    _bases: list[_Base] = field(default_factory=list, init=False)

    def float_model(self, passes: Iterable[Pass] = ()) -> ir.Model:
        """The model as plans with ``passes`` name its ops; made once."""
        steps = Steps(passes)
        if steps.origin not in self._floats:
            model = self.source.clone()
            for options in steps.changes.values():
                model = options.change(model)
            self._floats[steps.origin] = model
        return self._floats[steps.origin]

    def run(self, plan: Plan, options: RunOptions) -> ir.Model:
        """The model quantized as ``plan`` says; what cannot be run is an error before any work."""
        steps, model = Steps(plan.passes), self.float_model(plan.passes)
        _check(plan, model, options)
        whole, plan = plan, without_stored(plan)
        new, left, origin = model, dict[OpKey, str](), steps.origin
        simulated: Mapping[OpKey, str] = {}
        if "static" in plan.modes:
            seen, capability = options.data.get("static", NO_DATA), options.capabilities["static"]
            base = self._base(plan, steps, model, seen, capability.target.sessions)
            origin, samples = base.name, seen.upto(plan.calib_sampling_size)
            new = quantize_static(base.model, plan, samples, _static_options(steps, capability), base.known, left)
        if "weight_only" in plan.modes:
            schemes = {name: each for (name, _), each in plan.items() if each.mode == "weight_only"}
            samples = options.data.get("weight_only", NO_DATA).upto(None)
            layout = _weight_options(steps, options.capabilities["weight_only"])
            new = quantize_weight_only(new, schemes, samples, layout)
            simulated = simulated_ops(plan.ops, layout.quant_format, layout.providers[0])
        if "dynamic" in plan.modes:
            new = quantize_dynamic(new, plan)
        for precision in _HALVES:
            chosen = {name for (name, _), s in plan.items() if s.is_float and s.precision == precision}
            if chosen:
                new = half_precision(new, precision, chosen, options.provider)
        whole = stored_instead(whole, left)
        new = new.clone() if new is model else new
        refused = store_weights(new, whole)
        ops = whole.with_ops(dict.fromkeys(refused, float_op("fp32", has_weight=True))).ops
        told = {**options.reasons, **simulated, **refused, **left}
        write_record(new, QuantizationRecord(ops, told, origin, _target_cpu(model, whole, options)))
        restore_overridable(new)
        return new

    def before_rounding(self, origin: str) -> ir.Model | None:
        """The float model that was quantized, made by the passes that a record tells of; None where it was not made here."""
        return (self._floats | {base.name: base.model for base in self._bases}).get(origin)

    def _base(self, plan: Plan, steps: Steps, model: ir.Model, data: CalibrationData, sessions: Sequence[str]) -> _Base:
        wanted, weights = steps.get(Smooth), prevailing_weights(plan)
        name = steps.origin + ("" if wanted is None else f" {plan.step('smooth')} {weights.to_dict()}")
        percentile = steps.usual(Calibrate).percentile
        key = (name, id(model), id(data.source), plan.calib_sampling_size, percentile)
        for base in self._bases:
            if base.key == key:
                return base
        if wanted is not None:
            model = _smoothed(model, wanted, weights, data, sessions)
        new = _Base(key, name, model, None if self.one_plan else {})
        self._bases = [*self._bases[-_KEPT + 1 :], new]
        return new


def _check(plan: Plan, model: ir.Model, options: RunOptions) -> None:
    known = {(str(node.name), node.op_type) for node in model.graph.all_nodes()}
    for key, scheme in plan.items():
        check_known(key, known)
        if scheme.mode not in (*options.capabilities, "float"):
            raise ConfigError(f"the plan has {key[0]!r} as {scheme.mode}, which {options.provider} does not run")
        check_weight_range(scheme)
        if scheme.mode == "weight_only":
            check_weight_only(scheme)
        else:
            check_no_method(key, scheme)


def _smoothed(
    model: ir.Model, wanted: Smooth, weights: TensorScheme, data: CalibrationData, sessions: Sequence[str]
) -> ir.Model:
    if (samples := data.upto(None)) is None:
        raise CalibrationError("smoothing looks at activations: give calibration data")
    return smooth(model, samples, weights=weights, providers=sessions, **wanted.arguments())


def _static_options(steps: Steps, capability: ProviderCapability) -> StaticOptions:
    layout, biases = steps.usual(QdqLayout), steps.get(CorrectBiases)
    needed = capability.query.entry.recipes
    pairs = {name: True for name in ("add_qdq_pair_to_weight", "dedicated_qdq_pair") if needed.get(name)}
    form = {"quant_format": layout.quant_format or capability.quant_format}
    return StaticOptions(
        **{**vars(layout), **form, **pairs},
        target=capability.name,
        providers=capability.target.sessions,
        quantize_bias=bool(needed.get("quantize_bias", True)),
        bias_correction=False if biases is None else biases.required or None,
        weight_correction=steps.get(CorrectWeights) is not None,
        percentile=steps.usual(Calibrate).percentile,
    )


_LEVELS: Mapping[int | str, int | str] = {0: "auto", "runtime": 0}
"""Words of configurations for the ``accuracy_level`` of :class:`WeightOnlyOptions`."""


def _weight_options(steps: Steps, capability: ProviderCapability) -> WeightOnlyOptions:
    layout = steps.usual(WeightLayout)
    return WeightOnlyOptions(
        quant_format=layout.quant_format or capability.quant_format,
        accuracy_level=next(
            (own for word, own in _LEVELS.items() if word == layout.accuracy_level), layout.accuracy_level
        ),
        fold=layout.fold,
        providers=capability.target.sessions,
    )


def _target_cpu(model: ir.Model, plan: Plan, options: RunOptions) -> str:
    """Which CPUs the model gives the same on; empty where no integers are multiplied on one."""
    modes = plan.modes & {"static", "dynamic"}
    on_cpu = any(options.capabilities[mode].target.provider is CPU for mode in modes)
    return target_cpu(model, plan.ops) if on_cpu else ""
