"""Compile a quantized graph with Inductor, and say which layers it did not lower to int8 kernels."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.errors import ConfigError
from neural_compressor.report.terminal import print_ops
from neural_compressor.torch.pt2e.capture import arguments_of
from neural_compressor.torch.pt2e.exported import exported_of, finished, shared, state_of, without_warnings
from neural_compressor.torch.pt2e.ops import find_graph_ops, layer_name
from neural_compressor.torch.pt2e.records import graph_records
from neural_compressor.torch.quantized_model import Quantization

_COUNTED = ("qlinear_weight_prepack_matcher_count", "qconv_weight_prepack_matcher_count")
_FLOAT_KERNELS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.convolution.", "mkldnn._linear", "mkldnn._convolution")

logger = logging.getLogger("neural_compressor")


def compile(model: nn.Module, example_inputs: Any, *, quiet: bool = False, **options: Any) -> Any:
    """``torch.compile`` of a quantized graph with weights frozen into it, which is when Inductor uses int8 kernels.

    The model runs once on ``example_inputs`` (given as for ``export``), so that it is compiled when this returns. Lines on
    standard error say which layers run in int8 and which Inductor left in float; the same records are the attribute
    ``lowering`` of what is returned. ``options`` are those of ``torch.compile``. Sets ``torch._inductor.config.freezing``,
    as other shapes are compiled later.
    """
    exported = exported_of(model)
    if not isinstance(model, GraphModule) or exported is None:
        raise ConfigError("compile: the model is no exported graph; give what convert made of an exported model")
    done = getattr(model, "quantization", None)
    if not isinstance(done, Quantization):
        raise ConfigError(
            "compile: the model is not quantized; use torch.compile for a float model, or convert it first"
        )
    args, kwargs = arguments_of(example_inputs)
    config.freezing = True
    seen = _FloatProducts()
    before = _lowered_so_far()
    # A graph that was compiled before would not be compiled again, and so not be seen.
    model = finished(shared(model), exported, done)
    compiled = torch.compile(model, **options)
    state = state_of(model)
    with config.patch(post_grad_custom_post_pass=seen, force_disable_caches=True), torch.no_grad(), without_warnings():
        compiled(*args, **kwargs)
        for name, values in state.items():
            model.get_buffer(name).copy_(values)
    records = lowering_records(model, seen.layers, _lowered_so_far() - before)
    if not quiet:
        print_ops(records)
    model.lowering = records  # type: ignore[assignment]
    return compiled


def lowering_records(model: GraphModule, in_float: Iterable[str], lowered: int) -> list[OpRecord]:
    """The records of a quantized graph in which Inductor left the layers ``in_float`` and lowered so many calls of others.

    Where the numbers do not add up, some layer is in float under another name, and that is said of the whole.
    """
    left = set(in_float)
    calls = {key: len(nodes) for key, nodes in find_graph_ops(model, quantized=True)[0].items()}
    expected = sum(count for (name, _), count in calls.items() if name not in left)
    records = []
    for record in graph_records(model):
        is_left = record.mode != "float" and (record.name in left or not lowered)
        why = "Inductor did not lower it to an int8 kernel: it computes in float with int8 weights"
        records.append(
            replace(record, mode="float", kernel="float", precision="fp32", reason=why) if is_left else record
        )
    if 0 < lowered < expected:
        logger.warning("Inductor lowered %d of %d calls of int8 layers; others compute in float", lowered, expected)
    return records


def _lowered_so_far() -> int:
    return sum(counters["inductor"][name] for name in _COUNTED)


class _FloatProducts(CustomGraphPass):
    """Looks at the graph that Inductor makes code of, and changes nothing: which layers are float kernels in it."""

    def __init__(self) -> None:
        self.layers: list[str] = []

    def __call__(self, graph: Graph) -> None:
        for node in graph.nodes:
            if any(kernel in str(node.target) for kernel in _FLOAT_KERNELS):
                self.layers.append(layer_name(node))

    def uuid(self) -> Any:
        return None
