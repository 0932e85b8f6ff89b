"""The layers of a model whose weights can be quantized alone, and why other weights are left."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import nn

from neural_compressor.torch.nn.weight_only import is_conv1d


def is_linear(module: nn.Module) -> bool:
    """Whether ``module`` computes ``x Wᵀ + b`` and nothing else."""
    return type(module) is nn.Linear or is_conv1d(module)


@dataclass(frozen=True)
class Layers:
    """Linear layers by name, and the names of weights that are left in float with the reason."""

    linear: Mapping[str, nn.Module]
    left: Mapping[tuple[str, str], str]


def find_layers(model: nn.Module, with_head: bool = False) -> Layers:
    """The linear layers of ``model``; its output head only ``with_head``."""
    linear: dict[str, nn.Module] = {}
    left: dict[tuple[str, str], str] = {}
    head = output_head(model)
    for name, module in model.named_modules():
        kind = type(module).__name__
        if is_linear(module):
            if module is head and not with_head:
                left[name, kind] = "the output head; quant_lm_head=True quantizes it"
            else:
                linear[name] = module
        elif isinstance(module, nn.Embedding):
            left[name, kind] = "an embedding: weight-only algorithms quantize linear layers"
        elif isinstance(module, nn.Linear):
            left[name, kind] = "a subclass of Linear with behaviour of its own"
        else:
            for parameter_name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() == 3:
                    place = f"{name}.{parameter_name}" if name else parameter_name
                    left[place, kind] = (
                        f"a stack of {parameter.shape[0]} matrices in one parameter of shape {tuple(parameter.shape)} "
                        "(fused experts): its module multiplies with it directly"
                    )
                elif parameter.dim() == 2 and min(parameter.shape) > 1:
                    left[name, kind] = f"op type {kind} multiplies with a weight of its own"
    return Layers(linear, left)


def output_head(model: nn.Module) -> nn.Module | None:
    """The layer that maps to a vocabulary: what the model says, or the last Linear as wide as its embedding."""
    ask = getattr(model, "get_output_embeddings", None)
    if callable(ask):
        found = ask()
        return found if isinstance(found, nn.Module) else None
    sizes = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}
    heads = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features in sizes]
    return heads[-1] if heads else None


def find_blocks(model: nn.Module, layers: Collection[str]) -> list[str]:
    """Names of the repeated blocks of a model, outermost first: children of one class in a ModuleList or Sequential.

    A model without any is worked on as one block.
    """
    blocks: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or any(name.startswith(b + ".") for b in blocks):
            continue
        children = list(module.named_children())
        kinds = [type(child) for _, child in children]
        for child_name, child in children:
            path = f"{name}.{child_name}" if name else child_name
            holds = any(layer.startswith(path + ".") for layer in layers)
            if holds and kinds.count(type(child)) > 1:
                blocks.append(path)
    return blocks
