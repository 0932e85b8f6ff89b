"""Hand int8 tensors from one quantized op to the next without going through float.

Where everything that reads an op's output first quantizes it with the same scale, and only ops that commute with
quantization lie between, the op may as well return the quantized tensor. The numbers are the same; two passes over
memory fall away.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from neural_compressor.torch.nn import QuantModule

# They pick, move or clamp values and so give the same codes before and after quantization.
_COMMUTES = (nn.Identity, nn.Flatten, nn.ReLU)


def find_relays(model: nn.Module) -> dict[str, str]:
    """``{op: the op whose input scale it can emit}`` for a quantized ``model``.

    Only neighbours in an ``nn.Sequential`` count: what its children are called with is fixed, where the forward of any
    other module may take another path for another input.
    """
    relays = {}
    for name, parent in model.named_modules():
        if type(parent) is not nn.Sequential:
            continue
        source: str | None = None
        for child_name, child in parent.named_children():
            path = f"{name}.{child_name}" if name else child_name
            if isinstance(child, QuantModule):
                if source is not None and child.inputs == ("input",) and child.input_qparams is not None:
                    relays[source] = path
                source = path if child.can_emit else None
            elif not _commutes(child):
                source = None
    return {op: reader for op, reader in relays.items() if _used_once(model, op) and _used_once(model, reader)}


def _commutes(module: nn.Module) -> bool:
    if isinstance(module, nn.MaxPool2d):
        return not module.return_indices
    return type(module) in _COMMUTES and not module._forward_hooks and not module._forward_pre_hooks


def _used_once(model: nn.Module, name: str) -> bool:
    module = model.get_submodule(name)
    return sum(m is module for _, m in model.named_modules(remove_duplicate=False)) == 1


def connect(model: nn.Module, relays: Mapping[str, str]) -> None:
    """Make each op of ``relays`` emit int8."""
    for name, reader in relays.items():
        op, target = model.get_submodule(name), model.get_submodule(reader)
        if isinstance(op, QuantModule) and isinstance(target, QuantModule) and target.input_qparams is not None:
            op.set_output_qparams(*target.input_qparams)
