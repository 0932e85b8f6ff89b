"""The pipeline under ``quantize`` and ``autotune``: smooth and quantize statically, then weights alone, then dynamically."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from neural_compressor.onnx.files.quantization_record import QuantizationRecord, write_record
from neural_compressor.onnx.graph.overridable_inputs import restore_overridable
from neural_compressor.onnx.graph.sum_order import target_cpu
from neural_compressor.onnx.methods.dynamic.quantizer import quantize_dynamic
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.methods.weight_only.decoded import simulated_ops
from neural_compressor.onnx.methods.weight_only.job import WeightOnlyOptions
from neural_compressor.onnx.methods.weight_only.quantizer import quantize_weight_only
from neural_compressor.onnx.passes.smooth_quant import prevailing_weights, smooth
from neural_compressor.onnx.passes.store_weights import store_weights, stored_instead
from neural_compressor.onnx.quantization.calibration_store import CalibrationStore
from neural_compressor.onnx.quantization.config import StaticQuantConfig, WeightOnlyConfig
from neural_compressor.onnx.quantization.provider_capability import ProviderCapability
from neural_compressor.onnx.quantization.resolution import Resolution
from neural_compressor.onnx.quantization.whole_model import setting, smoothing_of
from neural_compressor.onnx.runtime.providers import CPU
from neural_compressor.schemes import OpKey, Plan, float_op


def run_pipeline(model: ir.Model, resolution: Resolution, store: CalibrationStore) -> ir.Model:
    """A new model, quantized as ``resolution`` says."""
    static, weights = resolution.configs("static"), resolution.configs("weight_only")
    calibrated = [config for config in weights if config.needs_calibration]
    for configs in (static, calibrated):
        if configs:
            store.samples(configs)  # what is missing is said before any work
    new, left, simulated = model, dict[OpKey, str](), dict[OpKey, str]()
    if static:
        new, left = _quantize_statically(model, resolution, store)
    if weights:
        jobs = {name: work.job for (name, _), work in resolution.of("weight_only").items() if work.job is not None}
        samples = store.samples(calibrated) if calibrated else None
        options = _weight_options(weights, resolution.capabilities["weight_only"])
        new = quantize_weight_only(new, jobs, samples, options)
        schemes = {key: work.scheme for key, work in resolution.of("weight_only").items()}
        simulated = simulated_ops(schemes, options.quant_format, options.providers[0])
    if resolution.of("dynamic"):
        new = quantize_dynamic(new, _plan(resolution, "dynamic"))
    plan = stored_instead(Plan({key: work.scheme for key, work in resolution.work.items()}), left)
    new = model.clone() if new is model else new
    refused = store_weights(new, plan)
    computing = (each for mode, each in resolution.capabilities.items() if mode != "weight_only")
    on_cpu = any(each.target.provider is CPU for each in computing)
    cpu = target_cpu(model, plan.ops) if on_cpu else ""
    write_record(new, replace(_record(resolution, plan, left, refused, simulated), target_cpu=cpu))
    restore_overridable(new)
    return new


def _quantize_statically(
    model: ir.Model, resolution: Resolution, store: CalibrationStore
) -> tuple[ir.Model, dict[OpKey, str]]:
    """The new model, and the nodes that stay in float since integers would not pay there."""
    configs, plan = resolution.configs("static"), _plan(resolution, "static")
    capability = resolution.capabilities["static"]
    options, smoothing = _static_options(configs, capability, resolution.named), smoothing_of(configs)
    size = setting(configs, "calibration_sampling_size")

    def smoothed() -> ir.Model:
        if smoothing is None:
            return model
        given = {name: getattr(smoothing, name) for name in ("folding", "op_types", "calib_iter", "scales_per_op")}
        samples = store.samples(configs)
        return smooth(model, samples, smoothing.alpha, weights=weights, providers=capability.sessions, **given)

    reader, weights = store.samples(configs).reader, prevailing_weights(plan)
    key = (id(model), id(reader), smoothing, None if smoothing is None else weights, size, options.percentile)
    base = store.base(key, smoothed)
    left: dict[OpKey, str] = {}
    return quantize_static(base.model, plan, store.samples(configs, size), options, base.known, left), left


def _plan(resolution: Resolution, approach: str) -> Plan:
    kept = {key: float_op() for key in resolution.kept}
    return Plan(kept | {key: work.scheme for key, work in resolution.of(approach).items()})


def _record(
    resolution: Resolution,
    plan: Plan,
    left: dict[OpKey, str],
    refused: dict[OpKey, str],
    simulated: dict[OpKey, str],
) -> QuantizationRecord:
    in_float = dict.fromkeys(refused, float_op("fp32", has_weight=True))
    kept = dict.fromkeys(resolution.kept, "kept in float")
    told = {**kept, **resolution.left, **resolution.stored, **simulated, **refused, **left}
    return QuantizationRecord({**plan.ops, **in_float}, told)


def _static_options(
    configs: Sequence[StaticQuantConfig], capability: ProviderCapability, named: Collection[str]
) -> StaticOptions:
    def extra(name: str) -> Any:
        return setting(configs, f"extra_options[{name!r}]", lambda config: config.option(name))

    needed = capability.query.entry.recipes
    return StaticOptions(
        quant_format=capability.quant_format,
        target=capability.provider,
        providers=capability.sessions,
        add_qdq_pair_to_weight=extra("AddQDQPairToWeight") or needed.get("add_qdq_pair_to_weight", False),
        dedicated_qdq_pair=extra("DedicatedQDQPair") or needed.get("dedicated_qdq_pair", False),
        optypes_to_exclude_output_quant=tuple(extra("OpTypesToExcludeOutputQuantization")),
        quantize_bias=needed.get("quantize_bias", True),
        bias_correction=extra("BiasCorrection"),
        percentile=extra("CalibPercentile"),
        named=named,
    )


def _weight_options(configs: Sequence[WeightOnlyConfig], capability: ProviderCapability) -> WeightOnlyOptions:
    return WeightOnlyOptions(
        quant_format=capability.quant_format,
        accuracy_level=setting(configs, "accuracy_level") or "auto",
        layer_wise=setting(configs, "layer_wise_quant"),
        providers=capability.sessions,
    )
