"""Normalisations, found by trying: modules whose outputs follow a gain, and those that commute with turns of their input."""

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


def scaled_vectors(norm: nn.Module) -> list[Tensor]:
    """The parameters of a normalisation that a scale of its outputs goes into: gain and bias."""
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        return []
    return [weight, bias] if isinstance(bias, Tensor) else [weight]


@torch.no_grad()
def follows_weight(norm: nn.Module) -> bool:
    """Whether dividing weight and bias by a vector divides the output by it."""
    vectors = scaled_vectors(norm)
    if not vectors or any(True for _ in norm.children()):
        return False
    generator = torch.Generator().manual_seed(0)
    first = vectors[0]
    x = torch.randn(3, len(first), generator=generator).to(first.device, first.dtype)
    scale = (torch.rand(len(first), generator=generator) + 0.5).to(first.device, first.dtype)
    before, kept = norm(x), [v.clone() for v in vectors]
    for vector in vectors:
        vector.div_(scale)
    after = norm(x)
    for vector, old in zip(vectors, kept, strict=True):
        vector.copy_(old)
    return bool(torch.allclose(after * scale, before, rtol=1e-2, atol=1e-3))
