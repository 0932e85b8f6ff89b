"""The layers of a model whose weights can be quantized alone, and why other weights are left."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import nn

from neural_compressor.torch.modules.weight_only import is_conv1d


def is_linear(module: nn.Module) -> bool:
    """Whether ``module`` computes ``x Wᵀ + b`` and nothing else."""
    return type(module) is nn.Linear or is_conv1d(module)


@dataclass(frozen=True)
class Layers:
    """Linear layers by name, and the names of weights that are left in float with the reason.

    ``stacks`` are parameters that hold several matrices, by their name, with the module that multiplies with them.
    """

    linear: Mapping[str, nn.Module]
    left: Mapping[tuple[str, str], str]
    stacks: Mapping[str, nn.Module] = field(default_factory=dict)


def find_layers(model: nn.Module, with_head: bool = False) -> Layers:
    """The linear layers of ``model``; its output head only ``with_head``."""
    linear: dict[str, nn.Module] = {}
    left: dict[tuple[str, str], str] = {}
    stacks: dict[str, nn.Module] = {}
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
        elif isinstance(module, nn.modules.conv._ConvNd):
            left[name, kind] = "a convolution: weight-only algorithms quantize linear layers"
        else:
            experts = _stacks_of(module)
            stacks |= {f"{name}.{own}" if name else own: module for own in experts}
            for own, parameter in module.named_parameters(recurse=False):
                if own not in experts and sum(size > 1 for size in parameter.shape) > 1:
                    left[f"{name}.{own}" if name else own, kind] = (
                        f"a parameter of shape {tuple(parameter.shape)} that {kind} works with directly"
                    )
    return Layers(linear, left, stacks)


def _stacks_of(module: nn.Module) -> list[str]:
    """The parameters of ``module`` that hold a matrix for each of several experts.

    Such a module has a stack for each of the layers that an expert has, all of the same number. One array alone may be
    anything: positions, a bias for each head.
    """
    threes = {name: p.shape for name, p in module.named_parameters(recurse=False) if p.dim() == 3 and min(p.shape) > 1}
    counts = [shape[0] for shape in threes.values()]
    return [name for name, shape in threes.items() if counts.count(shape[0]) > 1]


def op_type(model: nn.Module, name: str) -> str:
    """The class of the layer ``name``, or of the module that has the parameter of that name."""
    return type(model.get_submodule(name.rpartition(".")[0] if is_parameter(model, name) else name)).__name__


def is_parameter(model: nn.Module, name: str) -> bool:
    """Whether ``name`` is a parameter of ``model``, and no module."""
    owner, _, own = name.rpartition(".")
    return own in model.get_submodule(owner)._parameters


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
