"""Scales of channels that move from one layer into another: weights by their input and output channels."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from neural_compressor.torch.modules.weight_only import is_conv1d
from neural_compressor.torch.structure.feeds import CONVS


def is_scalable(module: nn.Module) -> bool:
    """Whether the input channels of a layer can be scaled by its weight."""
    return type(module) in (nn.Linear, *CONVS) or is_conv1d(module)


def _channels(module: nn.Module, weight: Tensor) -> Tensor:
    """A view (groups, outputs of one, inputs of one, the rest); input ``j`` is number ``j`` of the first and third."""
    groups = module.groups if isinstance(module, CONVS) else 1
    if is_conv1d(module):
        weight = weight.T
    return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)


def input_reach(module: nn.Module) -> Tensor:
    """The largest magnitude among the weights of each input channel."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return _channels(module, weight.detach().float()).abs().amax((1, 3)).flatten()


def output_reach(module: nn.Module) -> Tensor:
    """The largest magnitude among the weights of each output channel."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return (weight.T if is_conv1d(module) else weight).detach().float().flatten(1).abs().amax(1)


def scale_inputs(module: nn.Module, scale: Tensor) -> None:
    """Multiply the weights of each input channel by ``scale``; the parameter is a new one."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    view = _channels(module, weight.detach())
    new = view * scale.to(view.dtype).reshape(view.shape[0], 1, view.shape[2], 1)
    new = new.reshape(weight.T.shape).T.contiguous() if is_conv1d(module) else new.reshape(weight.shape)
    module.weight = nn.Parameter(new, requires_grad=weight.requires_grad)


def scale_outputs(module: nn.Module, scale: Tensor) -> None:
    """Multiply weights and bias of each output channel by ``scale``; the parameters are new ones."""
    for name in ("weight", "bias"):
        old = getattr(module, name, None)
        if isinstance(old, Tensor):
            along = old.dim() - 1 if is_conv1d(module) or name == "bias" else 0
            factor = scale.to(old.dtype).reshape([-1 if axis == along else 1 for axis in range(old.dim())])
            setattr(module, name, nn.Parameter(old.detach() * factor, requires_grad=old.requires_grad))


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """What :func:`restore_parameters` puts back."""
    return dict(module._parameters)


def restore_parameters(module: nn.Module, kept: Mapping[str, nn.Parameter | None]) -> None:
    """Undo changes of parameters."""
    for name, parameter in kept.items():
        setattr(module, name, parameter)
