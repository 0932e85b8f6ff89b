"""Quantize the weights of MatMul, Gemm and Gather nodes, and leave what they are multiplied with in float."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms import FloatZeroArray, InputStatistics, LayerResult, ScarceData
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.onnx.files.scratch import scratch_folder
from neural_compressor.onnx.graph.blocks import Block, blocks_of_layers
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.matrix_nodes import (
    MATRIX_OPS,
    MatrixNode,
    added_terms,
    left_in_float,
    upright_input,
    weight_only_nodes,
)
from neural_compressor.onnx.graph.normalise import raise_opset
from neural_compressor.onnx.graph.queries import at_node
from neural_compressor.onnx.methods.weight_only.blockwise import (
    StoredBlocks,
    add_gather,
    add_product,
    block_codes,
    runs_in_kernel,
    store,
    widths,
)
from neural_compressor.onnx.methods.weight_only.decoded import Decoder, check_weight, dequantizer_versions, onnx_float
from neural_compressor.onnx.methods.weight_only.input_statistics import CalibrationPasses, Source, Sources
from neural_compressor.onnx.methods.weight_only.method import (
    WeightOnlyOptions,
    check_weight_only,
    corrects_upstream,
    find_weight,
    method_of,
    needs_data,
    weight_of,
)
from neural_compressor.onnx.passes.scale_folding import Channels, apply_folds, find_folds
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpScheme, QuantizedArray

logger = logging.getLogger("neural_compressor")

_FLOAT32_INPUTS = 1
"""The ``accuracy_level`` of MatMulNBits that rounds no inputs."""


def quantize_weight_only(
    model: ir.Model,
    schemes: Mapping[str, OpScheme],
    samples: Samples | None = None,
    options: WeightOnlyOptions | None = None,
) -> ir.Model:
    """A new model in which the weights of the nodes that ``schemes`` name are quantized; ``model`` is a normalised one.

    Nodes that read the same weight share the quantized one too, and the statistics of all their inputs. Nodes that share an
    input, and a scheme, are quantized as one matrix, so that a scale of the input (AWQ) serves them all.

    Where names tell of repeated blocks, each block is calibrated behind those quantized before it, which runs every block
    twice; where a method says ``layer_wise``, each group of nodes behind all before it, at a run over the data each.
    ``samples`` that can be gone over once only show what the float model has there.
    """
    options = options or WeightOnlyOptions()
    for name, scheme in schemes.items():
        with at_node(name):
            check_weight_only(scheme)
    waiting = [name for name, scheme in schemes.items() if needs_data(scheme)]
    if waiting and samples is None:
        raise CalibrationError(
            f"{method_of(schemes[waiting[0]]).name} needs calibration data for the node {waiting[0]!r}"
            f"{f' and {len(waiting) - 1} others' if len(waiting) > 1 else ''}; give a calibration_data_reader"
        )
    if options.quant_format == "QDQ" and schemes:
        needed = [dequantizer_versions(weight_of(scheme).dtype, options.providers[0]) for scheme in schemes.values()]
        model = raise_opset(model.clone(), max(least for least, _ in needed))
        model.ir_version = max(model.ir_version, *(version for _, version in needed))
    with scratch_folder() as folder:
        passes = None if samples is None else CalibrationPasses(model, samples, folder, options.providers)
        return _Quantization(model, schemes, options, passes).run()


class _Quantization:
    """One run over the groups of a model."""

    def __init__(
        self,
        model: ir.Model,
        schemes: Mapping[str, OpScheme],
        options: WeightOnlyOptions,
        passes: CalibrationPasses | None,
    ) -> None:
        self.float_model, self.model, self.passes = model, model.clone(), passes
        self.options = options
        self.edit, self._given = GraphEditor(self.model), set(self.model.graph.all_nodes())
        self.groups = _weight_groups(self.model, schemes)
        self.layer_wise = any(method_of(scheme).options.get("layer_wise") for scheme in schemes.values())
        self.decoder = Decoder(self.edit)
        self.scarce = ScarceData()
        # Data that later nodes are calibrated on goes through these, in float32 as in other frameworks.
        self._level = options.level if passes is None else _FLOAT32_INPUTS
        self._waiting = {node.node for group in self.groups for node in group.nodes}
        for node, scheme in ((node, group.scheme) for group in self.groups for node in group.nodes):
            with at_node(node.name):
                check_weight(weight_of(scheme), node.shape[1])

    def run(self) -> ir.Model:
        """The quantized model."""
        seen_by, done = self.float_model, set[str]()
        for number, together in enumerate(self._measured_together()):
            portions = list(_portions(together, self.options.hessian_bytes))
            if number:
                seen_by = self.model if len(portions) == 1 else self.model.clone()
            outputs = {str(node.node.outputs[0].name) for group in together for node in group.nodes}
            for portion in portions:
                seen = self._statistics(seen_by, portion, done)
                done = set() if seen else done
                for group in portion:
                    with at_node(*(node.name for node in group.nodes)):
                        self._quantize(group, seen.get(group.sources))
            done |= outputs
        self.scarce.warn()
        for node in self.model.graph.all_nodes():
            if node.op_type == "MatMulNBits" and node not in self._given:
                node.attributes.add(ir.AttrInt64("accuracy_level", self.options.level))
        return self.model

    def _measured_together(self) -> list[list[WeightGroup]]:
        """Groups calibrated on the same model: with all that come before them quantized, and none of their own."""
        by_block = itertools.groupby(self.groups, lambda group: group.block)
        apart = [[group] for group in self.groups] if self.layer_wise else [list(run) for _, run in by_block]
        calibrated = sum(any(group.sources for group in together) for together in apart)
        if self.passes is None or calibrated < 2 or self.passes.samples.repeats():
            return apart
        logger.warning(
            "weights are calibrated on the float model, since %s cannot be gone over again; with a rewind() each block is "
            "calibrated behind those quantized before it, which is more accurate",
            type(self.passes.samples.reader).__name__,
        )
        return [self.groups]

    def _statistics(
        self, seen_by: ir.Model, portion: Sequence[WeightGroup], done: Collection[str]
    ) -> dict[Sources, InputStatistics]:
        wanted = {group.sources for group in portion if group.sources}
        if not wanted or self.passes is None:
            return {}
        compared: set[Sources] = set()
        if seen_by is not self.float_model:
            inside = [group for group in portion if group.block is not None or self.layer_wise]
            compared = {group.sources for group in inside if group.sources and corrects_upstream(group.scheme)}
        return self.passes.statistics(seen_by, wanted, compared, done)

    def _quantize(self, group: WeightGroup, statistics: InputStatistics | None) -> None:
        matrices = [consumers[0].matrix() for consumers in group.weights]
        rows = [len(matrix) for matrix in matrices]
        stacked = matrices[0] if len(matrices) == 1 else np.concatenate(matrices)
        del matrices
        self.scarce.note([node.name for node in group.nodes], method_of(group.scheme).name, statistics)
        result = find_weight(group.scheme, stacked, statistics)
        del stacked
        self._waiting -= {node.node for node in group.nodes}
        inputs = self._changed_inputs(group, result)
        for consumers, part in zip(group.weights, result.split(rows), strict=True):
            self._install(consumers, part, inputs)
        if len(group.sources) > 1:
            # An input may have been scaled just before one of its consumers, and another consumer run before that.
            self.model.graph.sort()

    def _changed_inputs(self, group: WeightGroup, result: LayerResult) -> dict[ir.Node, ir.Value]:
        """What those nodes of the group multiply whose input is not taken as it is."""
        changed: dict[tuple[ir.Value, bool], ir.Value] = {}
        for node in group.nodes:
            key = (node.input, node.input_transposed)
            if key in changed or node.is_table:
                continue
            changed[key] = upright_input(self.edit, node)
            if result.input_scale is not None and not self._folded(node, group, result.input_scale):
                inverse = (1 / result.input_scale).astype(node.dtype.numpy())
                factor = self.edit.weight(f"{node.name}_input_scale", inverse, self.model.graph)
                changed[key] = self.edit.insert(node.node, "Mul", [changed[key], factor])[0]
        found = ((node, changed.get((node.input, node.input_transposed), node.input)) for node in group.nodes)
        return {node.node: value for node, value in found if value is not node.input}

    def _folded(self, node: MatrixNode, group: WeightGroup, scale: np.ndarray) -> bool:
        """Whether what makes the node's input now gives it divided by ``scale``."""
        if node.input_transposed or not self.options.fold:
            return False
        consumers = sum(other.input is node.input for other in group.nodes)
        folds = find_folds(node.input, Channels(node.shape[1], axis=-1, rank=2), consumers)
        settled = frozenset[str]() if self.passes is None else self.passes.settled
        if folds is None or any(fold.node in self._waiting or fold.node.name in settled for fold in folds):
            return False
        apply_folds(self.edit, folds, 1 / scale)
        return True

    def _install(
        self, consumers: Sequence[MatrixNode], result: LayerResult, inputs: Mapping[ir.Node, ir.Value]
    ) -> None:
        edit, stored = self.edit, self._stored(consumers, result.array)
        for node in consumers:
            if node.is_table:
                edit.replace(node.node, [add_gather(edit, node, stored)])
                continue
            # Asked for now, because a node that shares the weight may have made it, and been replaced.
            x = inputs.get(node.node, node.input)
            vector, rest = added_terms(edit, node)
            level = self._level if self.options.quant_format == "QOperator" else None
            product = add_product(edit, node, x, stored, vector, level)
            if rest is not None:
                product = edit.insert(node.node, "Add", [product, rest])[0]
            edit.replace(node.node, [product])

    def _stored(
        self, consumers: Sequence[MatrixNode], array: QuantizedArray | FloatZeroArray
    ) -> StoredBlocks | ir.Value:
        """The constants of the kernel that takes the weight, or else the weight in float, made of constants."""
        first, quant_format, kind = consumers[0], self.options.quant_format, array.scheme.dtype
        as_operator = first.is_table or quant_format == "QOperator"
        if runs_in_kernel(kind):
            blocks = block_codes(array, widths(first, quant_format))
            stored = ir.DataType[f"{'INT' if blocks.zeros is None else 'UINT'}{blocks.bits}"]
            return store(self.edit, first, blocks, None if as_operator else stored)
        assert isinstance(array, QuantizedArray)
        small_float = None if as_operator else onnx_float(kind, self.options.providers[0])
        if small_float is None:
            return self.decoder.decoded(consumers, array)
        return store(self.edit, first, block_codes(array, [kind.bits]), small_float)


@dataclass(frozen=True, eq=False)
class WeightGroup:
    """Weights quantized as one; each is the list of nodes that read it, since a weight shared by nodes stays shared.

    All of ``sources`` reach every weight of the group. There are none where the algorithm needs no data, and then the
    group is one weight.
    """

    scheme: OpScheme
    weights: tuple[tuple[MatrixNode, ...], ...]
    sources: Sources = ()
    block: Block | None = None
    """The repeated block of the model that the first node is in."""

    @property
    def nodes(self) -> list[MatrixNode]:
        """All nodes of the group."""
        return [node for consumers in self.weights for node in consumers]

    @property
    def hessian_bytes(self) -> int:
        """What the statistics of its inputs take, twice that where they are compared with the float model's."""
        squares = 2 if corrects_upstream(self.scheme) and self.block is not None else 1
        return squares * 4 * self.weights[0][0].shape[1] ** 2 if self.sources else 0


def _weight_groups(model: ir.Model, schemes: Mapping[str, OpScheme]) -> list[WeightGroup]:
    """The groups that ``schemes`` make of the nodes they name, in the order of each group's first node."""
    known = weight_only_nodes(model)
    for name in (name for name in schemes if name not in known):
        if (reason := left_in_float(model).get(name)) is not None:
            raise QuantizationError(f"the weight of node {name!r} cannot be quantized: {reason}")
        raise ConfigError(f"no {', '.join(MATRIX_OPS)} node is called {name!r}; {close_matches(name, known)}")
    by_weight: dict[tuple[object, ...], list[MatrixNode]] = {}
    for name, node in known.items():
        if name in schemes:
            key = (id(node.weight), node.transposed, node.factor, node.is_table, schemes[name])
            by_weight.setdefault(key, []).append(node)
    groups: dict[tuple[OpScheme, Sources, int], list[tuple[MatrixNode, ...]]] = {}
    for nodes in by_weight.values():
        scheme = schemes[nodes[0].name]
        sources = _sources(model, nodes, scheme)
        groups.setdefault((scheme, sources, 0 if sources else id(nodes)), []).append(tuple(nodes))
    first = (weights[0][0] for weights in groups.values())
    places = blocks_of_layers({node.name: node.weight.name or "" for node in first})
    return [
        WeightGroup(scheme, tuple(weights), sources, places.get(weights[0][0].name))
        for (scheme, sources, _), weights in groups.items()
    ]


def _portions(groups: Sequence[WeightGroup], most_bytes: int) -> Iterator[list[WeightGroup]]:
    """Runs of ``groups`` whose statistics together take at most ``most_bytes``, or one group that takes more."""
    portion: list[WeightGroup] = []
    held: dict[Sources, int] = {}
    for group in groups:
        own = {group.sources: group.hessian_bytes}
        if portion and sum((held | own).values()) > most_bytes:
            yield portion
            portion, held = [], {}
        portion.append(group)
        held |= own
    if portion:
        yield portion


def _sources(model: ir.Model, nodes: Sequence[MatrixNode], scheme: OpScheme) -> Sources:
    if not needs_data(scheme):
        return ()
    for node in nodes:
        if node.is_table or node.node.graph is not model.graph:
            what = "looks entries up" if node.is_table else "is in the body of an If, Loop or Scan"
            with at_node(node.name):
                raise ConfigError(
                    f"it {what}, so that {method_of(scheme).name} cannot see what its weight is multiplied with; "
                    "use rtn or hqq"
                )
    found = {Source(node.input.name or "", node.input_transposed) for node in nodes}
    return tuple(sorted(found))
