"""Graphs simplified by ONNX Runtime before they are quantized: constants folded, batch normalisation in its Conv."""

from __future__ import annotations

import hashlib
import logging

import onnx_ir as ir
from onnx_ir.passes import common

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.files.mapped_file import map_external
from neural_compressor.onnx.files.model_file import ONE_FILE_BYTES, initializers, read_model, weight_bytes
from neural_compressor.onnx.files.scratch import scratch_folder
from neural_compressor.onnx.graph.editor import GraphEditor, discard
from neural_compressor.onnx.graph.normalise import EarlyPasses, normalise
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.registry import close_matches

logger = logging.getLogger("neural_compressor")

LEVELS = {
    "DISABLE_ALL": "none",
    "ENABLE_BASIC": "basic",
    "ENABLE_EXTENDED": "extended",
    "ENABLE_ALL": "all",
}
"""The levels by the names ONNX Runtime gives them."""
_RENAMING = ("MatMulAddFusion",)
"""Changes that lose the name of a product, by which users speak of it."""
_MACHINE_LAYOUT = ("NchwcTransformer",)
"""Changes to the memory layout of this machine, for which there are no integer operators."""

_SHARED_BYTES = 1024
"""Smaller constants are left in the branches that hold them."""


def optimise(model: ir.Model, level: str | None = None) -> ir.Model:
    """``model`` as ONNX Runtime simplifies it at ``level``, normalised.

    None is the basic level without what renames products. Beyond the basic level the graph has operators of ONNX Runtime
    itself, most of which are not quantized. A model too large for one file stays as it is: the
    runtime would hold its weights several times.
    """
    if level is not None and level.removeprefix("ORT_") not in LEVELS:
        raise ConfigError(f"graph_optimization_level is {level!r}; {close_matches(str(level), LEVELS)}")
    name = "basic" if level is None else LEVELS[level.removeprefix("ORT_")]
    if name == "none":
        return model
    if weight_bytes(model) > ONE_FILE_BYTES:
        logger.warning("the graph is not simplified first: its weights take more than %d bytes", ONE_FILE_BYTES)
        return model
    disabled = (*_MACHINE_LAYOUT, *(_RENAMING if level is None else ()))
    with scratch_folder() as folder:
        path = folder / "optimised.onnx"
        make_session(model, level=name, optimized_path=str(path), disabled_optimizers=disabled)
        early = EarlyPasses()
        new = read_model(path, early)
        map_external(new)
    for node in new.graph:
        # A product that took in the addition behind it is the same op to whoever named it.
        node.name = (node.name or "").removesuffix("/MatMulAddFusion")
    common.RemoveUnusedOpsetsPass()(new)
    new = normalise(new, inferred=early.inferred)
    _share_between_branches(new)
    return new


def _share_between_branches(model: ir.Model) -> None:
    """Have constants that several inner graphs hold once, in the main graph.

    The runtime computes what is constant in each branch, also where that is made of one weight they all read.
    """
    alike: dict[tuple[object, ...], list[ir.Value]] = {}
    for value, tensor in list(initializers(model)):
        if value.graph is not model.graph and tensor.nbytes >= _SHARED_BYTES and not value.is_graph_output():
            digest = hashlib.sha256(tensor.tobytes()).digest()
            alike.setdefault((tensor.dtype, *tensor.shape.numpy(), digest), []).append(value)
    edit = GraphEditor(model)
    for values in alike.values():
        if len({value.graph for value in values}) < 2:
            continue
        held = values[0].const_value
        assert held is not None
        shared = edit.weight(f"{values[0].name}_shared", held, model.graph)
        for value in values:
            value.replace_all_uses_with(shared)
            discard(value)
