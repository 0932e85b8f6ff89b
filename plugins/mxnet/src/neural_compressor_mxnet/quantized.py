"""Int8 networks: MXNet's own passes put int8 ops in the graph, with the ranges of the core and weights it has rounded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.contrib import quantization
from mxnet.gluon import SymbolBlock

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import OpScheme, Plan, QuantizedArray, choose_qparams, quantize_with, value_range
from neural_compressor_mxnet.calibration import STEPS, Ranges
from neural_compressor_mxnet.graph import FUSION, Arrays, Graph, Op, as_block

#: How MXNet names the int8 form of a node.
INT8 = "quantized_"


class QuantizedBlock(SymbolBlock):
    """A Gluon block with int8 ops: the plan it was made by, its graph, and its quantized weights as codes."""

    plan: Plan
    ops: tuple[Op, ...]
    symbol: mx.sym.Symbol
    graph_inputs: tuple[str, ...]
    floats: Arrays
    codes: Mapping[str, QuantizedArray]


@dataclass(frozen=True)
class _Calibrated:
    """What MXNet takes for the collector of a calibration that is over."""

    min_max_dict: Ranges


def int8_nodes(graph: Graph, ops: Iterable[Op]) -> set[str]:
    """The nodes that become int8: those of ``ops``, and a Flatten between two of them."""
    found = {op.node for op in ops}
    for node in graph.nodes.values():
        read_by_int8 = any(reader.name in found for reader in graph.readers.get(node.name, ()))
        if node.op == "Flatten" and node.inputs[0][0] in found and read_by_int8:
            found.add(node.name)
    return found


def supported_nodes(graph: Graph, wanted: set[str]) -> set[str]:
    """Those of ``wanted`` that MXNet has an int8 form of."""
    if not wanted:
        return set()
    rows = json.loads(_int8_symbol(graph, wanted, None).tojson())["nodes"]
    return {row["name"].removeprefix(INT8) for row in rows if row["name"].startswith(INT8)} & wanted


def int8_symbol(graph: Graph, nodes: set[str], ranges: Ranges) -> mx.sym.Symbol:
    """The graph with int8 forms of ``nodes``, calibrated with ``ranges``."""
    if not nodes:
        return graph.symbol
    symbol = _int8_symbol(graph, nodes, ranges).get_backend_symbol(FUSION)
    return _with_exact_ranges(symbol, graph, ranges)


def rounded_weights(graph: Graph, quantized: Mapping[Op, OpScheme]) -> dict[str, QuantizedArray]:
    """The weights of quantized ops as codes, by parameter name.

    The int8 kernels take float weights, and round them to 127.5 steps of the largest magnitude of each channel when they
    first run. These are the codes they arrive at, and :func:`float_weights` has values that lead there again.
    """
    found = {}
    for op, scheme in quantized.items():
        readers = [other for other in graph.ops.values() if other.weight == op.weight]
        if op.weight is not None and scheme.weight is not None and all(each in quantized for each in readers):
            weight = graph.arguments[op.weight].asnumpy()
            # A hair less than the range, so that its ends are surely rounded to the outermost codes.
            share = (127 / STEPS["int8"]) * (1 - 2.0**-20)
            low, high = (side * share for side in value_range(weight, scheme.weight.granularity))
            qparams = choose_qparams(low, high, scheme.weight)
            found[op.weight] = quantize_with(weight, scheme.weight, qparams)
    return found


def float_weights(array: QuantizedArray) -> np.ndarray:
    """Values that the kernels round to the codes of ``array``: the outermost code of a channel is the end of its range."""
    values, codes = np.asarray(array.dequantize(), dtype=np.float32), np.asarray(array.codes)
    peak = np.asarray(array.scale, dtype=np.float32).reshape(-1, *[1] * (codes.ndim - 1)) * np.float32(STEPS["int8"])
    # Half a step more than a whole code: where the kernel's float32 product falls short of it, another peak is taken.
    for _ in range(16):
        peak = np.where(
            peak * (np.float32(STEPS["int8"]) / peak) < STEPS["int8"], np.nextafter(peak, np.float32(np.inf)), peak
        )
    return np.where(codes >= 127, peak, np.where(codes <= -128, -peak, values))


def build_block(
    symbol: mx.sym.Symbol,
    inputs: tuple[str, ...],
    floats: Mapping[str, mx.nd.NDArray],
    codes: Mapping[str, QuantizedArray],
    plan: Plan,
    ops: Iterable[Op],
) -> QuantizedBlock:
    """A block from its graph, the parameters that are float, and those that are codes."""
    rounded = {name: mx.nd.array(float_weights(array), dtype=np.float32) for name, array in codes.items()}
    block: Any = as_block(symbol, inputs, {**floats, **rounded}, QuantizedBlock)
    block.plan, block.ops, block.symbol, block.graph_inputs = plan, tuple(ops), symbol, inputs
    needed = {*symbol.list_arguments(), *symbol.list_auxiliary_states()}
    block.floats = {name: array for name, array in floats.items() if name in needed and name not in codes}
    block.codes = dict(codes)
    return block


def input_dtypes(block: QuantizedBlock) -> dict[str, str]:
    """The data type each int8 op of ``block`` reads, by op name, as MXNet's type inference finds it."""
    internals = block.symbol.get_internals()
    _, types, _ = internals.infer_type(**dict.fromkeys(block.graph_inputs, np.float32))
    by_output: dict[tuple[str, int], str] = {}
    counts: dict[str, int] = {}
    for output, kind in zip(internals, types, strict=True):
        number = counts.get(output.name, 0)
        counts[output.name] = number + 1
        by_output[output.name, number] = np.dtype(kind).name
    rows = json.loads(block.symbol.tojson())["nodes"]
    first = {row["name"]: (rows[row["inputs"][0][0]]["name"], row["inputs"][0][1]) for row in rows if row["inputs"]}
    return {op.name: by_output[first[INT8 + op.node]] for op in block.ops if INT8 + op.node in first}


def _int8_symbol(graph: Graph, nodes: set[str], ranges: Ranges | None) -> mx.sym.Symbol:
    """``quantize_net`` in its two halves: that one would run the calibration, and hybridize the user's network."""
    how = {"calib_mode": "customize", "quantized_dtype": "auto", "logger": None}
    symbol, _, _, _ = quantization.quantize_graph(
        graph.symbol,
        graph.arguments,
        graph.auxiliary,
        ctx=mx.cpu(),
        excluded_sym_names=[name for name in graph.nodes if name not in nodes],
        quantize_mode="full",
        quantize_granularity="channel-wise",
        LayerOutputCollector=_Calibrated({}),
        **how,
    )
    if ranges is None:
        return symbol
    return quantization.calib_graph(symbol, graph.arguments, graph.auxiliary, _Calibrated(ranges), **how)[0]


def _with_exact_ranges(symbol: mx.sym.Symbol, graph: Graph, ranges: Ranges) -> mx.sym.Symbol:
    """The calibrated graph with all digits of each range: MXNet writes six decimals, which makes 1e-7 zero."""
    made_by = {node: name for (node, number), name in graph.tensors.items() if number == 0}
    content = json.loads(symbol.tojson())
    for row in (rows := content["nodes"]):
        attributes = row.get("attrs", {})
        if row["op"] == "_contrib_quantize_v2":
            source, number, *_ = row["inputs"][0]
            tensor = graph.tensors.get((rows[source]["name"], number))
        else:
            tensor = made_by.get(row["name"].removeprefix("requantize_").removeprefix(INT8))
        if "min_calib_range" in attributes and tensor in ranges:
            attributes["min_calib_range"], attributes["max_calib_range"] = (f"{side:.9g}" for side in ranges[tensor])
        elif row["op"] in ("_contrib_quantize_v2", "_contrib_requantize"):
            raise QuantizationError(f"MXNet quantizes at {row['name']!r}, which was not calibrated")
    return mx.sym.load_json(json.dumps(content))
