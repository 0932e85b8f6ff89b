"""Convert an ONNX model to fp16 or bf16."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from neural_compressor.config.validators import as_list
from neural_compressor.onnx.adaptor.op_records import half_records
from neural_compressor.onnx.files.model_file import as_proto, write_model
from neural_compressor.onnx.graph.normalise import restore_overridable
from neural_compressor.onnx.passes.half import check_half, computes_in, to_half
from neural_compressor.onnx.quantization.selection import named_nodes
from neural_compressor.onnx.quantization.source_model import node_types, read_float_model
from neural_compressor.onnx.runtime.providers import choose_target
from neural_compressor.paths import check_writable, output_file
from neural_compressor.report.terminal import print_ops

logger = logging.getLogger("neural_compressor")


def convert_precision(
    model_input: str | Path | onnx.ModelProto | ir.Model,
    model_output: str | Path | None = None,
    dtype: str = "fp16",
    *,
    nodes_to_exclude: str | Sequence[str] = (),
    weights_only: bool | None = None,
    execution_provider: str | None = None,
    graph_only: bool = False,
    quiet: bool = False,
) -> onnx.ModelProto | None:
    """Convert ``model_input`` to ``dtype``, "fp16" or "bf16", and write the result as ``model_output``.

    Inputs and outputs stay as they were. Without ``model_output`` the result is returned. ``nodes_to_exclude`` (names,
    regular expressions, types of node) stay in float32. ``weights_only`` stores matrices in ``dtype`` and computes in
    float32; by default that is done where the execution provider has no kernels in ``dtype`` for what the model computes,
    as on a CPU. With False what it has kernels for is converted, and the rest stays in float32 behind casts.
    ``graph_only`` makes a model for a provider that does not run here. A few lines on standard error say what was
    converted, and what stayed in float32; ``quiet`` leaves them out.

    >>> import numpy as np
    >>> from onnx import helper, numpy_helper
    >>> x, y = (helper.make_tensor_value_info(name, 1, ["n", 64]) for name in "xy")
    >>> weight = numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
    >>> graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "one product", [x], [y], [weight])
    >>> new = convert_precision(
    ...     helper.make_model(graph), dtype="fp16", execution_provider="CUDAExecutionProvider", graph_only=True
    ... )
    >>> [node.op_type for node in new.graph.node]
    ['Cast', 'MatMul', 'Cast']
    """
    check_half(dtype)
    if model_output is not None:
        check_writable(output_file(model_output))
    target = choose_target(execution_provider, graph_only=graph_only)
    model = read_float_model(model_input)
    keep = named_nodes(as_list(nodes_to_exclude), node_types(model), "nodes_to_exclude")
    provider = target.provider.name
    if weights_only is None:
        weights_only = not computes_in(model, dtype, provider)
        if weights_only:
            logger.warning(
                "%s does not compute in %s: weights are stored in it, and computed with in float32", provider, dtype
            )
    new = to_half(model, dtype, keep, weights_only=weights_only, provider=provider)
    restore_overridable(new)
    if not quiet:
        print_ops(half_records(model, new, dtype, keep))
    if model_output is None:
        return as_proto(new)
    write_model(new, model_output)
    return None
