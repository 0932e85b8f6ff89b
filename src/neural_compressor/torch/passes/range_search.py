"""Ranges of activations by what rounding and clipping them does to the output of the model.

An estimator such as KL looks at the values of one tensor. What clipping costs depends on who reads it: with ``d`` the error
of a tensor and ``g`` the gradient of the outputs by it, an error of ``sum(d g)`` comes out to first order. Channels of one
place are summed, as the op sums them; places and samples are squared apart from each other.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import PER_TENSOR, OpScheme, Plan, QParams
from neural_compressor.torch import functional
from neural_compressor.torch.batches import batch_size, tensors_in
from neural_compressor.torch.hooks import evaluating
from neural_compressor.torch.modules.activation import calibrated_qparams, simulate
from neural_compressor.torch.modules.base import QuantModule
from neural_compressor.torch.passes.model_pass import PASSES, ModelPass, PassOptions, PassState
from neural_compressor.torch.structure.ops import input_axis
from neural_compressor.torch.structure.replay import Arguments, CalibrationLimit, independent

logger = logging.getLogger("neural_compressor")

SAMPLES = 32
_AT_ONCE = 4
"""Samples that run at a time, with all that their gradients need."""
_DIRECTIONS = 4
"""Of the outputs, a call: what a range clips is few values, and one direction may miss what they do (6 dB once)."""
_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Of the range of all values seen; the range that the estimator found is tried as well."""
Site = tuple[str, str]
"""An op, and which of its tensors: one of its inputs, or its output."""
_ELEMENTWISE = ("Add", "Mul")
"""They sum over nothing: along which axis their errors meet is for those to say who read what they give."""


def is_searched(kind: str, op: OpScheme) -> bool:
    """Whether an op of that type has a range that can be searched for."""
    activation = op.activation
    if op.mode != "static" or activation is None or kind in _ELEMENTWISE:
        return False
    return activation.dtype.is_integer and activation.granularity == PER_TENSOR


class SearchRangesOptions(PassOptions):
    """Which ranges are searched for."""

    ops: list[str] | None = Field(default=None, description="names of ops with ranges that are searched; None: all")


@PASSES.register("search_ranges")
class SearchRanges(ModelPass):
    """Each static op gets the range, of those tried, with which the outputs of the model change least, to first order.

    Ops whose input is multiplied or turned first keep the range of what they then read; additions and products element by
    element keep theirs.
    """

    Options = SearchRangesOptions
    sees_data: ClassVar[bool] = True
    calls_alone: ClassVar[bool] = True
    limit: ClassVar[CalibrationLimit] = CalibrationLimit(samples=SAMPLES)
    options: SearchRangesOptions

    @classmethod
    def serves(cls, kind: str, op: OpScheme) -> bool:
        return is_searched(kind, op)

    def check(self, model: nn.Module, plan: Plan) -> None:
        can = [name for (name, kind), op in plan.items() if is_searched(kind, op)]
        what = "static op in integers that sums (a layer or a matrix product)"
        for name in self.options.ops or ():
            if name not in can:
                raise ConfigError(
                    f"the pass search_ranges: the plan has no {what} called {name!r}; {close_matches(name, can)}"
                )
        if not can:
            raise ConfigError(f"the pass search_ranges: the plan has no {what}, whose range it searches")
        order = [step.name for step in plan.passes]
        for other in ("learn_rounding", "correct_biases"):
            if other in order and order.index(other) < order.index("search_ranges"):
                raise ConfigError(f"the pass {other} sees inputs that search_ranges rounds differently: put it behind")

    def compares(self, plan: Plan) -> bool:
        return True

    def after(self, state: PassState) -> None:
        assert state.floats is not None
        sites = self._sites(state)
        if not sites:
            logger.warning("search_ranges changes nothing: no layer reads what is given to it as it comes")
            return
        search = _Search(state.floats, sites)
        with evaluating(state.floats), torch.inference_mode(False):
            for call in _parts(state.calls):
                search.observe(call)
            for place, call in enumerate(_parts(state.calls)):
                search.measure(call, seed=place)
        changed = search.settle()
        logger.info("ranges searched for %d tensors, of which %d have another one now", len(sites), changed)

    def _sites(self, state: PassState) -> dict[Site, QuantModule]:
        found, kept = dict[Site, QuantModule](), defaultdict[str, list[str]](list)
        for (name, kind), op in state.plan.items():
            if self.options.ops is not None and name not in self.options.ops:
                continue
            if kind in _ELEMENTWISE and op.mode == "static":
                kept["they sum over no channels"].append(name)
            module = state.model.get_submodule(name)
            if not is_searched(kind, op) or not isinstance(module, QuantModule):
                continue
            names = (*module.inputs, "output")
            if getattr(module, "input_change", None):
                kept["inputs are multiplied or turned first"].append(name)
                names = ("output",)
            found |= {(name, each): module for each in names if module.qparams(each) is not None}
        for why, ops in kept.items():
            _say_kept(ops, why)
        return found


def _say_kept(names: Iterable[str], why: str) -> None:
    logger.info("ranges of %s stay as they are: %s", ", ".join(names), why)


def _named(site: Site) -> str:
    return f"{site[1]} of {site[0]!r}"


class _Search:
    """Ranges of the tensors of a float model, and what each of them costs."""

    def __init__(self, model: nn.Module, sites: Mapping[Site, QuantModule]) -> None:
        self.model, self.sites = model, sites
        self._bounds: dict[Site, tuple[Tensor, Tensor]] = {}
        self._costs: dict[Site, Tensor] = {}
        self._tried: dict[Site, list[QParams]] = {}

    @torch.no_grad()
    def observe(self, call: Arguments) -> None:
        """Take the largest and smallest values into account."""
        with self._seen(call, gradients=False) as (_, seen):
            for site, tensors in seen.items():
                for tensor in tensors:
                    low, high = torch.aminmax(tensor)
                    if site in self._bounds:
                        low, high = (
                            torch.minimum(low, self._bounds[site][0]),
                            torch.maximum(high, self._bounds[site][1]),
                        )
                    self._bounds[site] = low, high

    def measure(self, call: Arguments, seed: int) -> None:
        """Add what each range costs on the samples of one call; directions of the outputs are drawn by random signs."""
        with torch.enable_grad(), self._seen(call, gradients=True) as (output, seen):
            found = [t for t in tensors_in(output) if t.requires_grad]
            kept = [(site, tensor) for site, tensors in seen.items() for tensor in tensors]
            if not found or not kept:
                return
            draw, tensors = torch.Generator().manual_seed(seed), [tensor for _, tensor in kept]
            directions = []
            for _ in range(_DIRECTIONS):
                signs = [torch.randint(2, t.shape, generator=draw).to(t) * 2 - 1 for t in found]
                try:
                    directions.append(torch.autograd.grad(found, tensors, signs, retain_graph=True, allow_unused=True))
                except RuntimeError as error:
                    if "inplace" not in str(error):
                        raise
                    raise CalibrationError(
                        f"search_ranges: the model has no gradients: {str(error).split(';')[0]}. Let it write into "
                        "no tensor that it has computed with, or leave the pass out (recipe range_search)"
                    ) from error
        for (site, tensor), *gradients in zip(kept, *directions, strict=True):
            if gradients[0] is not None:
                self._add(site, tensor.detach().float(), [gradient.float() for gradient in gradients])

    def settle(self) -> int:
        """Give each op the range that costs least; how many are new."""
        if self.sites and not self._costs:
            raise CalibrationError(
                "search_ranges: no gradient comes from the outputs of the model to its ops; what stands between is not "
                "differentiable, so leave the pass out (recipe range_search)"
            )
        for why, kept in (
            ("none of the samples came there", self.sites.keys() - self._bounds.keys()),
            ("no gradient comes there from the outputs of the model", self._bounds.keys() - self._costs.keys()),
        ):
            if kept:
                _say_kept((_named(site) for site in self.sites if site in kept), why)
        changed = 0
        for site, found in self._costs.items():
            costs = found.cpu()
            best = int(costs.argmin())
            if best and bool(torch.isfinite(costs[best])) and costs[best] < costs[0]:
                self.sites[site].set_qparams(site[1], self._tried[site][best])
                changed += 1
        return changed

    @torch.no_grad()
    def _add(self, site: Site, x: Tensor, gradients: Sequence[Tensor]) -> None:
        module, scheme = self.sites[site], self.sites[site].scheme.activation
        assert scheme is not None
        if site not in self._tried:
            low, high = self._bounds[site]
            ranges = [calibrated_qparams((low * share, high * share), scheme, _named(site)) for share in _SHARES]
            present = module.qparams(site[1])
            assert present is not None
            self._tried[site] = [present, *ranges]
            self._costs[site] = torch.zeros(1 + len(ranges), dtype=torch.float64, device=x.device)
        axis = _summed_axis(self.model.get_submodule(site[0]), site[1], x)
        for place, qparams in enumerate(self._tried[site]):
            error = simulate(x, scheme, qparams) - x
            changes = [(error * g).sum(axis).square_().sum() for g in gradients]
            self._costs[site][place] += torch.stack(changes).double().sum()

    @contextmanager
    def _seen(self, call: Arguments, gradients: bool) -> Iterator[tuple[Any, dict[Site, list[Tensor]]]]:
        """The output of the model for a call, and the tensors that its ops read and give on the way."""
        seen: dict[Site, list[Tensor]] = defaultdict(list)

        def kept(site: Site, tensor: Any) -> Any:
            if site not in self.sites or not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                return tensor
            if not tensor.numel():  # an expert that no token came to
                return tensor
            # A tensor of its own: others may read the same value, and have a range of their own for it.
            own = tensor.clone() if tensor.requires_grad or not gradients else tensor.clone().requires_grad_()
            seen[site].append(own)
            # What a layer gives may be written into by what follows (``y += x``).
            return own.clone() if site[1] == "output" else own

        def read(name: str, inputs: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = zip(inputs, args, strict=False)
            args = (*(kept((name, each), value) for each, value in given), *args[len(inputs) :])
            return args, {each: kept((name, each), value) for each, value in kwargs.items()}

        with ExitStack() as stack:
            for name, module in {name: module for (name, _), module in self.sites.items()}.items():
                layer = self.model.get_submodule(name)
                hook = layer.register_forward_pre_hook(
                    lambda _, args, kwargs, name=name, inputs=module.inputs: read(name, inputs, args, kwargs),
                    with_kwargs=True,
                )
                stack.callback(hook.remove)
                after = layer.register_forward_hook(lambda _, args, out, name=name: kept((name, "output"), out))
                stack.callback(after.remove)
            args, kwargs = independent(call, lambda t: t.clone() if t.is_inference() else t)
            output = self.model(*args, **kwargs)
        yield output, seen


def _summed_axis(module: nn.Module, name: str, x: Tensor) -> int:
    """The axis over which an op sums what it reads; of what it gives, that of the channels."""
    return -2 if isinstance(module, functional.MatMul) and name == "b" and x.dim() > 1 else input_axis(module)


def _parts(calls: Any) -> Iterator[Arguments]:
    """The first samples of all calls, a few at a time."""
    seen = 0
    for call in calls:
        size = batch_size(call)
        for start in range(0, min(size, SAMPLES - seen), _AT_ONCE):
            rows = slice(start, min(start + _AT_ONCE, SAMPLES - seen))
            yield independent(call, lambda t: t[rows] if t.dim() and t.shape[0] == size else t)  # noqa: B023
        seen += size
        if seen >= SAMPLES:
            return
