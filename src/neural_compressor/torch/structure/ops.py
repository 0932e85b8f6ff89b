"""The quantizable ops of an eager PyTorch model, and why other modules with weights are left alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count

from torch import nn

from neural_compressor.schemes import OpKey
from neural_compressor.torch import functional
from neural_compressor.torch.structure.watch import Trace

FUNCTIONAL = (functional.MatMul, functional.Add, functional.Mul)
"""Ops without a weight; their output range is calibrated too."""

_MATMUL = "neural_compressor.torch.functional.MatMul"
_INSTEAD = {
    **dict.fromkeys(("matmul", "__rmatmul__", "mm", "bmm"), _MATMUL),
    **dict.fromkeys(
        ("einsum", "tensordot", "inner", "mv", "dot", "chain_matmul", "multi_dot"),
        f"{_MATMUL} (with the operands as matrices)",
    ),
    **dict.fromkeys(("addmm", "addbmm", "baddbmm", "addmv"), f"{_MATMUL} and an addition"),
    **{"linear": "nn.Linear", "embedding": "nn.Embedding", "lstm": "nn.LSTM", "gru": "nn.GRU"},
    **{f"conv{n}d": f"nn.Conv{n}d" for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": f"nn.ConvTranspose{n}d" for n in (1, 2, 3)},
    **dict.fromkeys(("scaled_dot_product_attention", "multi_head_attention_forward", "bilinear", "cdist"), ""),
}
"""Functions that multiply matrices, with the module that would be quantized; none where there is no quantized form."""


def op_classes() -> dict[str, type[nn.Module]]:
    """The module classes that count as ops, by type name."""
    names = (
        *("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
        *("Embedding", "LSTM", "GRU"),
    )
    classes: dict[str, type[nn.Module]] = {name: getattr(nn, name) for name in names}
    return classes | {cls.__name__: cls for cls in FUNCTIONAL}


def find_ops(
    model: nn.Module, op_types: Collection[str], traces: Sequence[Trace] = ()
) -> tuple[dict[OpKey, nn.Module], dict[OpKey, str]]:
    """``(ops, skipped)``: ops in the order they run (or are defined, without traces); skipped ones with the reason."""
    classes = op_classes()
    ops: dict[OpKey, nn.Module] = {}
    skipped: dict[OpKey, str] = {}
    order: dict[str, int] = {}
    for trace in traces:
        for name in trace.by_module:
            order.setdefault(name, len(order))
    for name, module in model.named_modules():
        kind = type(module).__name__
        key = (name, kind)
        if type(module) is classes.get(kind):
            if module._forward_hooks or module._forward_pre_hooks:
                skipped[key] = "it has forward hooks, which would be lost with the module"
            elif getattr(module, "proj_size", 0):
                skipped[key] = f"{kind} with projections (proj_size) has no quantized form"
            elif kind not in op_types:
                skipped[key] = f"the framework YAML lists no quantized {kind}"
            elif traces and name not in order:
                skipped[key] = (
                    "never called while the model ran on the calibration data: its parent may use its weight directly"
                )
            else:
                ops[key] = module
        elif base := next((c for c in classes.values() if isinstance(module, c)), None):
            skipped[key] = f"a subclass of {base.__name__} with behaviour of its own"
        elif any(p.dim() >= 2 for p in module.parameters(recurse=False)):
            skipped[key] = f"op type {kind} holds weights but is not in the framework YAML"
    if traces:
        ops = dict(sorted(ops.items(), key=lambda item: order[item[0][0]]))
    return ops, skipped


def find_functions(model: nn.Module, traces: Iterable[Trace], listed: Collection[OpKey]) -> dict[OpKey, str]:
    """Matrix products that forwards compute by functions of torch, with the reason why these stay in float.

    They are named by the module whose forward calls them. What happens inside ``listed`` modules of torch is said of those.
    """
    modules = dict(model.named_modules())
    known = {name for name, _ in listed if type(modules.get(name)).__module__.startswith("torch.")}
    found: dict[OpKey, str] = {}
    for trace in traces:
        taken: set[str] = set()
        for call in [*trace.calls, *trace.within]:
            kind = call.target.rpartition(".")[2]
            if call.module is not None or kind not in _INSTEAD or call.inside in known:
                continue
            first = f"{call.inside}.{kind}" if call.inside else kind
            numbered = (first if n == 0 else f"{first}_{n}" for n in count())
            name = next(name for name in numbered if name not in taken and name not in modules)
            taken.add(name)
            found[name, kind] = _of_function(kind)
    return found


def _of_function(kind: str) -> str:
    why = "a function that a forward calls, and only modules are quantized"
    return f"{why}; use {_INSTEAD[kind]} in its place" if _INSTEAD[kind] else f"{why}; it has no quantized form"


def find_blocks(model: nn.Module, ops: Collection[OpKey]) -> list[list[OpKey]]:
    """Ops grouped by the repeated blocks they sit in: children of one class in a ModuleList or Sequential."""
    blocks = []
    for prefix in _block_names(model):
        members = [key for key in ops if key[0].startswith(prefix + ".")]
        if len(members) > 1:
            blocks.append(members)
    return blocks


def _block_names(model: nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        children = list(module.named_children())
        kinds = [type(child) for _, child in children]
        for child_name, child in children:
            if kinds.count(type(child)) > 1 and any(True for _ in child.children()):
                yield f"{name}.{child_name}" if name else child_name
