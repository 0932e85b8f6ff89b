"""A float model made ready once, and quantized by one plan after another."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.onnx.adaptor.capability import OnnxQuery
from neural_compressor.onnx.adaptor.recipes import Recipes
from neural_compressor.onnx.files.quantization_record import QuantizationRecord, write_record
from neural_compressor.onnx.graph.blocks import repeated_blocks
from neural_compressor.onnx.graph.log_spectra import before_logarithm
from neural_compressor.onnx.graph.matrix_nodes import left_in_float as without_matrix
from neural_compressor.onnx.graph.matrix_nodes import weight_only_nodes
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.graph.ops import quantizable_nodes, unquantizable_nodes
from neural_compressor.onnx.graph.overridable_inputs import restore_overridable
from neural_compressor.onnx.graph.queries import constant
from neural_compressor.onnx.graph.sum_order import ANY, for_any_cpu, target_cpu
from neural_compressor.onnx.methods.dynamic.quantizer import dynamic_nodes, quantize_dynamic
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.methods.static.params import KnownRanges
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.methods.weight_only.decoded import simulated_ops
from neural_compressor.onnx.methods.weight_only.job import WeightJob, WeightOnlyOptions
from neural_compressor.onnx.methods.weight_only.quantizer import quantize_weight_only
from neural_compressor.onnx.passes.corrections import corrected
from neural_compressor.onnx.passes.half import to_half
from neural_compressor.onnx.passes.optimize import optimise
from neural_compressor.onnx.passes.simplify import simplify
from neural_compressor.onnx.passes.smooth_quant import prevailing_weights, smooth
from neural_compressor.onnx.passes.store_weights import storable_nodes, store_weights, stored_instead, without_stored
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.providers import CPU, DML, Target
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, OpScheme, Plan, TensorScheme, float_op

logger = logging.getLogger("neural_compressor")

_HALVES = ("fp16", "bf16")


_KEPT = 4
"""How many smoothed models, or the same on other data, are kept for later plans."""


@dataclass(frozen=True)
class CalibrationData:
    """``samples`` of a ``source``, a data loader or function; what is known of one source serves all later plans."""

    samples: Samples | None
    source: object
    size: int

    def is_same(self, other: CalibrationData) -> bool:
        """Whether both would give the same samples."""
        return self.source is other.source and self.size == other.size


@dataclass(frozen=True)
class _Base:
    """A model to quantize, smoothed or not, and the ranges seen on it so far."""

    model: ir.Model
    smoothing: str
    data: CalibrationData
    known: KnownRanges = field(default_factory=dict)


class FloatModel:
    """``ops`` are the configs of each op that can be quantized, ``skipped`` why other ops cannot."""

    def __init__(self, source: ir.Model, query: OnnxQuery, target: Target, level: str | None = None) -> None:
        self.query, self.target = query, target
        _check_batch(source, target)
        self.model = optimise(normalise(source.clone()), level)
        simplify(self.model)
        self.ops: dict[OpKey, list[dict[str, Any]]] = {}
        self.skipped: dict[OpKey, str] = {}
        self._spectra = before_logarithm(self.model)
        self._find_ops()
        self._bases: list[_Base] = []

    @property
    def in_float_unless_named(self) -> dict[str, dict[Any, str]]:
        """By mode the op types, and the ops, that compute in integers only where a user names them, with the reason."""
        types = self.query.in_float_unless_named
        return {mode: {**types.get(mode, {}), **self._spectra} for mode in ("static", "dynamic")}

    def blocks(self) -> list[list[OpKey]]:
        """Ops grouped by the repeated parts of the model that their names tell of, such as ``/layers.3/``."""
        keys = {key[0]: key for key in self.ops}
        return [[keys[name] for name in names] for names in repeated_blocks(keys).values() if len(names) > 1]

    def quantize(self, plan: Plan, data: CalibrationData, quant_format: str | None = None) -> ir.Model:
        """The model quantized as ``plan`` says.

        Ranges are kept for later plans on the same data. Without a ``quant_format`` weights alone are quantized for the
        kernels the runtime has for them, whatever form static quantization has.
        """
        for key in plan:
            if key not in self.ops and key not in self.skipped:
                names = [name for name, kind in self.ops if kind == key[1]] or [name for name, _ in self.ops]
                raise ConfigError(
                    f"the plan names {key[0]!r} ({key[1]}), which the model does not have; {close_matches(key[0], names)}"
                )
        recipes = Recipes.of(plan.recipes, self.query.entry.recipes)
        if recipes.target_cpu == ANY and self.target.provider is CPU:
            plan = self._for_any_cpu(plan)
        whole, plan = plan, without_stored(plan)
        modes = {scheme.mode for scheme in plan.values()}
        new, left, smoothing = self.model, dict[OpKey, str](), ""
        if "static" in modes:
            base, options = self._base(recipes, prevailing_weights(plan), data), self._static_options(recipes)
            smoothing = base.smoothing
            # The shapes of one trial's data are those of all: nothing is read for them again.
            shapes = None if base.data.samples is None else base.data.samples.shapes
            new = quantize_static(base.model, plan, data.samples, options, base.known, left, shapes)
            if recipes.corrections and data.samples is not None:
                # Ranges are those of the model that is to be imitated, which are known by now.
                rounded = Plan({key: scheme for key, scheme in plan.items() if key not in left})
                wanted = corrected(base.model, rounded, data.samples, recipes.corrections, self.target.sessions)
                new = quantize_static(wanted, plan, data.samples, options, base.known, shapes=shapes)
        if "weight_only" in modes:
            layout = self._weight_options(recipes, quant_format)
            new = quantize_weight_only(new, _jobs(plan, recipes), data.samples, layout)
        if "dynamic" in modes:
            new = quantize_dynamic(new, plan)
        for precision in _HALVES:
            chosen = {name for (name, _), s in plan.items() if s.is_float and s.precision == precision}
            if chosen:
                new = half_precision(new, precision, chosen, self.target.provider.name)
        whole = stored_instead(whole, left)
        new = new.clone() if new is self.model else new
        refused = store_weights(new, whole)
        layout = self._weight_options(recipes, quant_format)
        simulated = simulated_ops(plan.ops, layout.quant_format, layout.providers[0])
        write_record(new, self._record(whole, {**left, **simulated}, refused, smoothing))
        restore_overridable(new)
        return new

    def _for_any_cpu(self, plan: Plan) -> Plan:
        nodes = {(str(node.name), node.op_type): node for node in self.model.graph.all_nodes()}
        ops = {key: for_any_cpu(nodes[key], scheme) if key in nodes else scheme for key, scheme in plan.items()}
        return Plan(ops, plan.calib_sampling_size, plan.recipes)

    def before_rounding(self, smoothing: str) -> ir.Model | None:
        """The float model that was quantized, smoothed as a record says; None where that was not done here."""
        smoothed = (base.model for base in self._bases if base.smoothing == smoothing)
        return next(smoothed, None if smoothing else self.model)

    def _find_ops(self) -> None:
        static, dynamic, matrices, storable = (
            quantizable_nodes(self.model),
            dynamic_nodes(self.model),
            weight_only_nodes(self.model),
            storable_nodes(self.model),
        )
        _check_finite((*(info.weight for info in static.values()), *(m.weight for m in matrices.values())))
        no_static, no_matrix = unquantizable_nodes(self.model), without_matrix(self.model)
        types = self.query.quantizable_types()
        for node in self.model.graph.all_nodes():
            key = (str(node.name), node.op_type)
            info, has_matrix = static.get(key), key[0] in matrices
            able = {
                "static": info is not None,
                "dynamic": dynamic.get(key, "") is None,
                "weight_only": has_matrix and key[1] in ("MatMul", "Gemm", "Gather"),
            }
            modes = [mode for mode, possible in able.items() if possible]
            if key[1] not in types:
                if any(map(_is_weight, node.inputs)):
                    self.skipped[key] = f"the framework YAML lists no quantized {key[1]}"
                continue
            configs = self.query.node_configs(
                key[1],
                modes,
                has_weight=info.weight is not None if info is not None else True,
                per_channel=info is None or info.axis is not None,
                stored=storable[key] is None and key not in self._spectra if key in storable else None,
            )
            if any("quant_mode" in config["activation"] for config in configs):
                self.ops[key] = configs
            elif reason := no_static.get(key) or dynamic.get(key) or no_matrix.get(key[0]):
                self.skipped[key] = reason
            elif modes:
                self.skipped[key] = f"{self.target.provider.name} runs no {key[1]} of this kind in integers"

    def _base(self, recipes: Recipes, weights: TensorScheme, data: CalibrationData) -> _Base:
        key = recipes.smoothing_key and f"{recipes.smoothing_key} {weights.to_dict()}"
        for base in self._bases:
            if base.smoothing == key and base.data.is_same(data):
                return base
        model = self.model
        if recipes.smoothing is not None:
            if data.samples is None:
                raise CalibrationError("the recipe smooth_quant looks at activations: pass a calib_dataloader")
            model = smooth(model, data.samples, weights=weights, providers=self.target.sessions, **recipes.smoothing)
        new = _Base(model, key, data)
        self._bases = [*self._bases[-_KEPT + 1 :], new]
        return new

    def _static_options(self, recipes: Recipes) -> StaticOptions:
        return StaticOptions(
            quant_format=self.query.quant_format,
            target=self.target.provider.name,
            providers=self.target.sessions,
            add_qdq_pair_to_weight=recipes.add_qdq_pair_to_weight,
            dedicated_qdq_pair=recipes.dedicated_qdq_pair,
            optypes_to_exclude_output_quant=recipes.optypes_to_exclude_output_quant,
            quantize_bias=recipes.quantize_bias,
        )

    def _weight_options(self, recipes: Recipes, quant_format: str | None) -> WeightOnlyOptions:
        return WeightOnlyOptions(
            quant_format=quant_format or self.query.weight_only_format,
            layer_wise=recipes.layer_wise,
            providers=self.target.sessions,
        )

    def _record(
        self, plan: Plan, left: Mapping[OpKey, str], refused: Mapping[OpKey, str], smoothing: str
    ) -> QuantizationRecord:
        in_float = dict.fromkeys(refused, float_op("fp32", has_weight=True))
        reasons = {key: "the plan keeps it in float" for key, scheme in plan.items() if scheme.is_float}
        unnamed = {key: "the plan does not name it" for key in self.ops if key not in plan}
        told = {**self.skipped, **unnamed, **reasons, **refused, **left}
        multiplies = any(scheme.mode in ("static", "dynamic") for scheme in plan.values())
        cpu = target_cpu(self.model, plan.ops) if multiplies and self.target.provider is CPU else ""
        return QuantizationRecord({**plan.ops, **in_float}, told, smoothing, cpu)


def half_precision(model: ir.Model, precision: str, names: set[str], provider: str) -> ir.Model:
    """``model`` with the nodes ``names`` in fp16 or bf16 where ``provider`` runs them so, and all others as they are."""
    others = [str(node.name) for node in model.graph.all_nodes() if node.name not in names]
    return to_half(model, precision, others, provider=provider)


def _jobs(plan: Plan, recipes: Recipes) -> dict[str, WeightJob]:
    return {name: _job(scheme, recipes) for (name, _), scheme in plan.items() if scheme.mode == "weight_only"}


def _job(scheme: OpScheme, recipes: Recipes) -> WeightJob:
    weight = scheme.weight
    if weight is None:
        raise ConfigError("an op is to have its weight alone quantized, and the plan says nothing of it")
    assert scheme.method is not None
    algorithm = scheme.method.name
    # HQQ fits zero points, whatever the scheme says.
    plain = replace(weight, symmetric=weight.symmetric and algorithm != "hqq")
    return WeightJob(algorithm, plain, {**recipes.algorithms.get(algorithm, {}), **scheme.method.options})


def _check_batch(model: ir.Model, target: Target) -> None:
    """DirectML has kernels for integer ops at a fixed batch of one sample."""
    given = [value for value in model.graph.inputs if not value.is_initializer()]
    if target.provider is DML and not all(v.shape is not None and len(v.shape) and v.shape[0] == 1 for v in given):
        logger.warning("%s runs quantized models with a batch fixed to 1, and this model's is not", DML.name)


def _is_weight(value: ir.Value | None) -> bool:
    tensor = None if value is None else value.const_value
    return tensor is not None and tensor.dtype.is_floating_point() and len(tensor.shape) > 1 and tensor.size > 1


def _check_finite(values: Iterable[ir.Value | None]) -> None:
    """Only what is quantized: masks rightly hold infinities."""
    for value in values:
        array = constant(value)
        if value is not None and array is not None and not np.isfinite(array.astype(np.float32, copy=False)).all():
            raise QuantizationError(
                f"the weight {value.name!r} holds NaN or Inf: the model is broken before quantization"
            )
