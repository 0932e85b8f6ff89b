"""Which axes of its parameters a layer multiplies its input with, and which give its output.

Linear layers and embeddings are known. Of others that hold matrices themselves (routers, experts fused into stacks) it is
found by trying: with the input and an axis turned alike they give what they gave before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neural_compressor.algorithms import Orthogonal
from neural_compressor.algorithms.matrix_parts import row_blocks
from neural_compressor.errors import NeuralCompressorError
from neural_compressor.torch.batches import tensors_in
from neural_compressor.torch.modules.weight_only import is_conv1d
from neural_compressor.torch.structure.ops import is_linear

Axis = tuple[str, int]
"""A parameter, and an axis of it."""
_MOST_AXES = 3
"""So many are turned together at most: gate, up and their bias."""


@dataclass(frozen=True)
class LayerForm:
    """The axes that its input, and its output, lie along; none where it has no input, or an output of another kind.

    ``source`` is the place of the input among the tensors that it is called with.
    """

    inputs: tuple[Axis, ...] = ()
    outputs: tuple[Axis, ...] = ()
    source: int = 0


class ModuleCallError(NeuralCompressorError):
    """A module of the user's failed on other values than it is made for."""


def called(module: Callable[[], Any]) -> Any:
    """What a call of a module of the user's gives; :class:`ModuleCallError` where it fails.

    >>> called(lambda: [][0])
    Traceback (most recent call last):
    neural_compressor.torch.structure.layer_form.ModuleCallError: IndexError: list index out of range
    """
    try:
        return module()
    except Exception as error:
        raise ModuleCallError(f"{type(error).__name__}: {error}") from error


def known_form(module: nn.Module) -> LayerForm | None:
    """The form of a linear layer or an embedding, unless something else makes its weight (``weight_norm``)."""
    if not isinstance(getattr(module, "weight", None), nn.Parameter):
        return None
    if isinstance(module, nn.Embedding):
        return LayerForm(outputs=(("weight", 1),))
    if not is_linear(module):
        return None
    out, into = (1, 0) if is_conv1d(module) else (0, 1)
    bias: tuple[Axis, ...] = (("bias", 0),) if isinstance(module.bias, Tensor) else ()
    return LayerForm((("weight", into),), (("weight", out), *bias))


def holds_matrices(module: nn.Module) -> bool:
    """Whether ``module`` multiplies with matrices that are parameters of its own, and holds no layer."""
    inside = any(True for child in module.children() for _ in child.parameters())
    return not inside and known_form(module) is None and any(p.dim() > 1 for p in module.parameters(recurse=False))


@torch.no_grad()
def tried_form(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LayerForm | None:
    """The form of a module that :func:`holds_matrices`, as it was called; None where no axes were found for its input."""
    place = next(
        (i for i, t in enumerate(args) if isinstance(t, Tensor) and t.is_floating_point() and t.dim() > 1), None
    )
    if place is None:
        return None
    own, x = dict(module.named_parameters(recurse=False)), args[place]

    def run(values: Tensor, changed: Mapping[str, Tensor]) -> list[Tensor]:
        given = (*args[:place], values, *args[place + 1 :])
        return list(tensors_in(called(lambda: functional_call(module, dict(changed), given, dict(kwargs)))))

    def turned(axes: Iterable[Axis], turn: Orthogonal) -> dict[str, Tensor]:
        new = dict[str, Tensor]()
        for name, axis in axes:
            new[name] = turned_axis(new.get(name, own[name].detach()), axis, turn)
        return new

    before = run(x, {})
    turn = Orthogonal(x.shape[-1], seed=1)
    inside = (
        axes for axes in _choices(own, x.shape[-1]) if _close(run(turned_axis(x, -1, turn), turned(axes, turn)), before)
    )
    inputs = next(inside, None)
    if inputs is None:
        return None
    if len(before) != 1 or before[0].dim() < 2:
        return LayerForm(inputs, source=_place(args, place))
    wide = Orthogonal(before[0].shape[-1], seed=2)
    outside = (
        axes
        for axes in _choices(own, before[0].shape[-1])
        if _close(run(x, turned(axes, wide)), [turned_axis(before[0], -1, wide)])
    )
    return LayerForm(inputs, next(outside, ()), _place(args, place))


def turned_axis(
    values: Tensor, axis: int, turn: Orthogonal, dtype: torch.dtype | None = None, gain: Tensor | None = None
) -> Tensor:
    """``values`` with one axis multiplied by ``gain`` and turned, a few rows in float64 at a time; as ``dtype`` if given.

    A ``gain`` that is shorter than the axis is that of each run of its length: of a norm of single heads.

    >>> turned_axis(torch.eye(6), 0, Orthogonal(6)).shape
    torch.Size([6, 6])
    """
    last = values.movedim(axis, -1)
    rows = last.reshape(-1, last.shape[-1])
    if gain is not None:
        gain = gain.repeat(rows.shape[-1] // len(gain))
    found = torch.empty_like(rows, dtype=dtype or values.dtype, memory_format=torch.contiguous_format)
    for part in row_blocks(rows):
        exact = rows[part].double()
        found[part] = turn.apply(exact if gain is None else exact * gain).to(found.dtype)
    return found.reshape(last.shape).movedim(-1, axis).contiguous()


def _place(args: tuple[Any, ...], place: int) -> int:
    return sum(1 for _ in tensors_in(args[:place]))


def _choices(own: Mapping[str, Tensor], width: int) -> Iterator[tuple[Axis, ...]]:
    """Axes of that length that may belong together, few of them first; experts are counted along the first axis."""
    axes = [
        (name, axis)
        for name, parameter in own.items()
        for axis in range(1 if parameter.dim() > 2 else 0, parameter.dim())
        if parameter.shape[axis] == width
    ]
    for count in range(1, min(len(axes), _MOST_AXES) + 1):
        yield from combinations(axes, count)


def _close(found: list[Tensor], expected: list[Tensor]) -> bool:
    if [a.shape for a in found] != [b.shape for b in expected]:
        return False
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if b.is_floating_point()]
    return all(bool((a - b).norm() <= _allowed(b.dtype) * b.norm()) for a, b in pairs) and bool(pairs)


def _allowed(kind: torch.dtype) -> float:
    return min(1024 * torch.finfo(kind).eps, 0.05)
