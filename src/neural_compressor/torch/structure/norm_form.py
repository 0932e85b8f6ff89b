"""Whether a module commutes with orthogonal turns of its input, once a gain it has is out of the way: found by trying."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neural_compressor.algorithms import Orthogonal

_CLOSE = 1e-4


@dataclass(frozen=True)
class NormForm:
    """A module that computes ``turned(x) -> turned(y)`` with a gain of one: RMSNorm, LayerNorm, a dropout, nothing at all.

    ``neutral`` is the value of ``weight`` that means a gain of one: 1, or 0 where the module multiplies with ``1 + weight``;
    None where it has no gain. With ``keeps_mean`` it commutes with those turns alone that do not move the mean, as it
    subtracts that.
    """

    neutral: float | None = None
    keeps_mean: bool = False

    def gain(self, module: nn.Module) -> Tensor | None:
        """By what ``module`` multiplies each channel, in float64."""
        if self.neutral is None:
            return None
        weight = module.weight
        assert isinstance(weight, Tensor)
        return weight.detach().double() + (1 - self.neutral)


@torch.no_grad()
def norm_form(module: nn.Module, shape: tuple[int, ...]) -> NormForm | None:
    """How ``module`` commutes with turns of an input of ``shape``; None where it does not.

    It may have a vector for a weight and one for a bias, and no other parameter. Nothing is taken from its name.
    """
    own = dict(module.named_parameters())
    if not shape or any(name not in ("weight", "bias") or p.dim() != 1 for name, p in own.items()):
        return None
    width, state = shape[-1], {**own, **dict(module.named_buffers())}
    if any(len(p) != width for p in own.values()):
        return None
    generator = torch.Generator().manual_seed(0)
    place = next((t.device for t in state.values()), torch.device("cpu"))

    def drawn(*sizes: int) -> Tensor:
        return (torch.randn(sizes, generator=generator) + 0.3).to(place)

    leading = tuple(1 for _ in shape[:-2]) + ((3,) if len(shape) > 1 else ())
    x, weight, bias = drawn(*leading, width), drawn(width), drawn(width)

    def run(values: Tensor, **parameters: Tensor) -> Tensor | None:
        given = {name: parameters[name] for name in own}
        try:
            found = functional_call(module, {**state, **given}, (values,))
        except Exception:  # noqa: BLE001 - code of the user's ran on other values than it is made for
            return None
        fits = isinstance(found, Tensor) and found.shape == values.shape and found.is_floating_point()
        return found if fits and bool(found.any()) else None

    for neutral in (1.0, 0.0) if "weight" in own else (None,):
        plain = {"weight": torch.full((width,), neutral or 0.0, device=place), "bias": torch.zeros(width, device=place)}
        before = run(x, **plain)
        if before is None:
            continue
        scaled = run(x, weight=weight, bias=bias)
        expected = before if neutral is None else before * (weight + 1 - neutral)
        if scaled is None or not _close(scaled, expected + bias if "bias" in own else expected):
            continue
        for keeps_mean in (False, True):
            turn = Orthogonal(width, seed=1, keeps_mean=keeps_mean)
            after = run(turn.apply(x), **plain)
            if after is not None and _close(after, turn.apply(before)):
                return NormForm(neutral, keeps_mean)
    return None


def _close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).norm() <= _CLOSE * expected.norm())
