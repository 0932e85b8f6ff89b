"""Quantized modules made of float modules and schemes, and put in their place in a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import OpScheme
from neural_compressor.torch.modules.activation import Range
from neural_compressor.torch.modules.base import QuantModule, quant_class
from neural_compressor.torch.modules.half import HalfModule
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.modules.matrix_stack import MatrixStack, weight_only_class
from neural_compressor.torch.modules.weight_only import is_conv1d


def quantized_module(
    module: nn.Module,
    scheme: OpScheme,
    act_ranges: Sequence[Range] = (),
    relu: bool = False,
    state: Mapping[str, Tensor] | None = None,
    change: InputChange | None = None,
) -> QuantModule:
    """The module that replaces ``module`` under ``scheme``, quantized from its values or rebuilt from ``state``.

    ``change`` is what it does to its input first; a ``state`` holds that already.

    >>> scheme = OpScheme.from_dict({"weight": {"dtype": "nf4", "granularity": "per_channel"}})
    >>> quantized_module(nn.Linear(8, 4), scheme)
    WeightOnlyLinear(in_features=8, out_features=4, nf4, mode=weight_only, kernel='simulated')
    """
    cls = replacing_class(module, scheme)
    if state is not None:
        return cls.from_state(module, scheme, state, relu)
    return cls.from_float(module, scheme, act_ranges, relu, change)


def replacing_class(module: nn.Module, scheme: OpScheme) -> type[QuantModule]:
    """The class of what replaces ``module`` under ``scheme``."""
    if scheme.is_float and scheme.precision == "fp32":
        raise QuantizationError("an op in fp32 stays the float module it is")
    if scheme.mode == "weight_only" and (type(module) in (nn.Linear, MatrixStack) or is_conv1d(module)):
        return weight_only_class(module)
    return HalfModule if scheme.is_float else quant_class(module)


def replace_module(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put ``new`` in the place of the module ``name``, wherever the same module object is used."""
    old = model.get_submodule(name)
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is old and path:
            parent, _, child = path.rpartition(".")
            setattr(model.get_submodule(parent), child, new)
