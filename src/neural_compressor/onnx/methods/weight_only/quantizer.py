"""Quantize the weights of MatMul, Gemm and Gather nodes, and leave what they are multiplied with in float."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms import FloatZeroArray, InputStatistics, LayerResult, ScarceData
from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.files.scratch import scratch_folder
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.matrix_nodes import (
    MatrixNode,
    added_terms,
    upright_input,
)
from neural_compressor.onnx.graph.normalise import raise_opset
from neural_compressor.onnx.graph.queries import at_node
from neural_compressor.onnx.methods.weight_only import blockwise as nodes
from neural_compressor.onnx.methods.weight_only.blockwise import StoredBlocks, block_codes, runs_in_kernel
from neural_compressor.onnx.methods.weight_only.decoded import Decoder, check_weight, dequantizer_versions, onnx_float
from neural_compressor.onnx.methods.weight_only.groups import WeightGroup, in_blocks, in_portions, weight_groups
from neural_compressor.onnx.methods.weight_only.input_statistics import CalibrationPasses, Sources
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
        self.edit = GraphEditor(self.model)
        self.groups = weight_groups(self.model, schemes)
        self.layer_wise = any(method_of(scheme).options.get("layer_wise") for scheme in schemes.values())
        self.decoder = Decoder(self.edit)
        self.scarce = ScarceData()
        # Data that later nodes are calibrated on goes through these, in float32 as in other frameworks.
        self._level = options.level if passes is None else _FLOAT32_INPUTS
        self._products: list[ir.Node] = []
        self._waiting = {node.node for group in self.groups for node in group.nodes}
        for node, scheme in ((node, group.scheme) for group in self.groups for node in group.nodes):
            with at_node(node.name):
                check_weight(weight_of(scheme), node.shape[1])

    def run(self) -> ir.Model:
        """The quantized model."""
        seen_by, done = self.float_model, set[str]()
        for number, together in enumerate(self._measured_together()):
            portions = list(in_portions(together, self.options.hessian_bytes))
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
        for product in self._products:
            product.attributes.add(ir.AttrInt64("accuracy_level", self.options.level))
        return self.model

    def _measured_together(self) -> list[list[WeightGroup]]:
        """Groups calibrated on the same model: with all that come before them quantized, and none of their own."""
        apart = [[group] for group in self.groups] if self.layer_wise else in_blocks(self.groups)
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
            if key in changed or node.node.op_type == "Gather":
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
            # Asked for now, because a node that shares the weight may have made it, and been replaced.
            x = inputs.get(node.node, node.input)
            if node.node.op_type == "Gather":
                edit.replace(node.node, [nodes.add_gather(edit, node, stored)])
                continue
            vector, rest = added_terms(edit, node)
            if isinstance(stored, ir.Value):
                product = nodes.add_float_matmul(edit, node, x, stored, vector)
            elif self.options.quant_format == "QOperator":
                product = nodes.add_matmul_nbits(edit, node, x, stored, vector, self._level)
                self._products += filter(None, [product.producer()])
            else:
                product = nodes.add_dequantized_matmul(edit, node, x, stored, vector)
            if isinstance(stored, StoredBlocks):
                product = nodes.add_offsets(edit, node, x, stored, product)
            if rest is not None:
                product = edit.insert(node.node, "Add", [product, rest])[0]
            edit.replace(node.node, [product])

    def _stored(
        self, consumers: Sequence[MatrixNode], array: QuantizedArray | FloatZeroArray
    ) -> StoredBlocks | ir.Value:
        """The constants of the kernel that takes the weight, or else the weight in float, made of constants."""
        edit, first, quant_format, kind = self.edit, consumers[0], self.options.quant_format, array.scheme.dtype
        as_operator = first.node.op_type == "Gather" or quant_format == "QOperator"
        if runs_in_kernel(kind):
            blocks = block_codes(array, nodes.widths(first, quant_format))
            return (nodes.store_for_operator if as_operator else nodes.store_for_dequantize)(edit, first, blocks)
        assert isinstance(array, QuantizedArray)
        small_float = None if as_operator else onnx_float(kind, self.options.providers[0])
        if small_float is None:
            return self.decoder.decoded(consumers, array)
        return nodes.store_small_floats(edit, first, array, small_float)
