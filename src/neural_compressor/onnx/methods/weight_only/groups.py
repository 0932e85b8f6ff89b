"""Groups of weights that are quantized together, and their order."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.onnx.graph.blocks import Block, repeated_blocks
from neural_compressor.onnx.graph.matrix_nodes import MATRIX_OPS, MatrixNode, left_in_float, weight_only_nodes
from neural_compressor.onnx.graph.queries import at_node
from neural_compressor.onnx.methods.weight_only.input_statistics import Source, Sources
from neural_compressor.onnx.methods.weight_only.method import corrects_upstream, method_of, needs_data
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpScheme


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


def weight_groups(model: ir.Model, schemes: Mapping[str, OpScheme]) -> list[WeightGroup]:
    """The groups that ``schemes`` make of the nodes they name, in the order of each group's first node."""
    known = weight_only_nodes(model)
    _check_names(model, schemes, known)
    by_weight: dict[tuple[object, ...], list[MatrixNode]] = {}
    for name, node in known.items():
        if name in schemes:
            key = (id(node.weight), node.transposed, node.factor, node.node.op_type == "Gather", schemes[name])
            by_weight.setdefault(key, []).append(node)
    groups: dict[tuple[OpScheme, Sources, int], list[tuple[MatrixNode, ...]]] = {}
    for nodes in by_weight.values():
        scheme = schemes[nodes[0].name]
        sources = _sources(model, nodes, scheme)
        groups.setdefault((scheme, sources, 0 if sources else id(nodes)), []).append(tuple(nodes))
    places = _blocks(weights[0][0] for weights in groups.values())
    return [
        WeightGroup(scheme, tuple(weights), sources, places.get(weights[0][0].name))
        for (scheme, sources, _), weights in groups.items()
    ]


def in_blocks(groups: Sequence[WeightGroup]) -> list[list[WeightGroup]]:
    """Runs of ``groups`` of the same block; what is in none is in a run of its own."""
    return [list(run) for _, run in itertools.groupby(groups, lambda group: group.block)]


def _blocks(nodes: Iterable[MatrixNode]) -> dict[str, Block]:
    """The block of each node by its name, or by that of its weight where it tells nothing.

    The last part of a name is the node, or the weight, of a layer: a layer is in a block where more is left than that.
    """
    found: dict[str, Block] = {}
    names = {node.name: (node.name, node.weight.name or "") for node in nodes}
    for place in (1, 0):
        owners: dict[str, list[str]] = {}
        for name, given in names.items():
            owners.setdefault(re.sub(r"[./][^./]*$", "", given[place]), []).append(name)
        for block, inside in repeated_blocks(owners).items():
            found |= dict.fromkeys((name for owner in inside for name in owners[owner]), block)
    return found


def in_portions(groups: Sequence[WeightGroup], most_bytes: int) -> Iterator[list[WeightGroup]]:
    """Runs of ``groups`` whose statistics together take at most ``most_bytes``, or one group that takes more."""
    portion: list[WeightGroup] = []
    held: dict[Sources, int] = {}
    for group in groups:
        grown = held | {group.sources: group.hessian_bytes}
        if portion and sum(grown.values()) > most_bytes:
            yield portion
            portion, grown = [], {group.sources: group.hessian_bytes}
        portion.append(group)
        held = grown
    if portion:
        yield portion


def _sources(model: ir.Model, nodes: Sequence[MatrixNode], scheme: OpScheme) -> Sources:
    if not needs_data(scheme):
        return ()
    for node in nodes:
        if node.node.op_type == "Gather" or node.node.graph is not model.graph:
            what = "looks entries up" if node.node.op_type == "Gather" else "is in the body of an If, Loop or Scan"
            with at_node(node.name):
                raise ConfigError(
                    f"it {what}, so that {method_of(scheme).name} cannot see what its weight is multiplied with; "
                    "use rtn or hqq"
                )
    found = {Source(node.input.name or "", node.input_transposed) for node in nodes}
    return tuple(sorted(found))


def _check_names(model: ir.Model, schemes: Mapping[str, OpScheme], known: Mapping[str, MatrixNode]) -> None:
    unknown = [name for name in schemes if name not in known]
    if not unknown:
        return
    reasons = left_in_float(model)
    for name in unknown:
        if name in reasons:
            raise QuantizationError(f"the weight of node {name!r} cannot be quantized: {reasons[name]}")
        raise ConfigError(f"no {', '.join(MATRIX_OPS)} node is called {name!r}; {close_matches(name, known)}")
