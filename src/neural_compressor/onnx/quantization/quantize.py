"""Quantize an ONNX model as a configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from neural_compressor.config.composed import config_of
from neural_compressor.config.composition import Composition
from neural_compressor.onnx.adaptor.op_records import brief_records
from neural_compressor.onnx.executor import Executor
from neural_compressor.onnx.files.model_file import as_proto, read_model, write_model
from neural_compressor.onnx.quantization.resolution import resolve
from neural_compressor.onnx.quantization.selection import require_onnx
from neural_compressor.onnx.quantization.source_model import Source, read_float_model
from neural_compressor.onnx.runtime.data_reader import example_of
from neural_compressor.onnx.runtime.fusion_check import running_in_float
from neural_compressor.onnx.runtime.profiling import warn_if_slower
from neural_compressor.onnx.runtime.providers import CPU
from neural_compressor.onnx.runtime.saturation import warn_if_saturating
from neural_compressor.paths import check_writable, output_file
from neural_compressor.report.terminal import print_ops


def quantize(
    model_input: Source,
    model_output: str | Path | None,
    quant_config: Any,
    optimization_level: Any = None,
    calibration_data_reader: Any = None,
    *,
    graph_only: bool = False,
    quiet: bool = False,
) -> onnx.ModelProto | None:
    """Quantize ``model_input`` as ``quant_config`` says, and write the result as ``model_output``.

    ``quant_config`` is a configuration, a list of them to add up, or settings as a dict, as its ``to_dict`` has them.
    Without ``model_output`` the result is returned. ``calibration_data_reader`` serves configurations that need data and
    have none of their own. ``optimization_level`` (``onnxruntime.GraphOptimizationLevel``) is how far ONNX Runtime
    simplifies the graph first; by default it does for static quantization, as far as nodes keep their names.
    ``graph_only`` makes a model for an execution provider that does not run here, and calibrates it on the CPU.
    A few lines on standard error say what runs in integers, what is simulated and what stayed in float, and why; ``quiet``
    leaves them out.

    >>> import numpy as np
    >>> from onnx import helper, numpy_helper
    >>> x, y = (helper.make_tensor_value_info(name, 1, ["n", 64]) for name in "xy")
    >>> weight = numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
    >>> graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "one product", [x], [y], [weight])
    >>> from neural_compressor.onnx.quantization import RTNConfig
    >>> new = quantize(helper.make_model(graph), None, RTNConfig())
    >>> [node.op_type for node in new.graph.node]
    ['MatMulNBits']
    """
    quant_config = config_of(quant_config, "onnxrt")
    require_onnx(quant_config)
    if model_output is not None:
        check_writable(output_file(model_output))
    new, in_float = quantized(model_input, quant_config, optimization_level, calibration_data_reader, graph_only)
    if not quiet:
        print_ops(brief_records(new, in_float))
    if model_output is None:
        return as_proto(new)
    write_model(new, model_output)
    return None


def quantized(
    source: Source, config: Composition, level: Any, reader: Any, graph_only: bool
) -> tuple[ir.Model, dict[str, str]]:
    """What :func:`quantize` writes, and why quantized nodes run in float, by name."""
    executor = Executor(read_float_model(source), one_plan=True)
    resolution = resolve(config, executor, level, reader, graph_only)
    new = executor.run(resolution.plan, resolution.run_options({}))
    static, in_float = resolution.capabilities.get("static"), dict[str, str]()
    if static is not None and static.target.runs_here:
        in_float = running_in_float(new, static.target.sessions)
    providers = [capability.target.provider for capability in resolution.capabilities.values()]
    if CPU in providers:
        warn_if_saturating(new)
    if "weight_only" not in resolution.capabilities and all(provider is CPU for provider in providers):
        given = isinstance(source, onnx.ModelProto | ir.Model)
        original = executor.float_model(resolution.plan.passes) if given else read_model(source)
        reader = next(iter(resolution.readers.values()), reader)
        warn_if_slower(original, new, lambda: None if reader is None else example_of(reader))
    return new, in_float
