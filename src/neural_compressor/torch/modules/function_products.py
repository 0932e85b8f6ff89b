"""Matrix products that a forward computes by functions of torch, as modules, so that they are ops like any other.

A product is known by the place of its call in the code of the module that makes it, not by a count: a forward that takes
another way, or runs a line more often, has the same products at the same places. One at a place that no run showed is
computed in float, and a warning says so.
"""

from __future__ import annotations

import functools
import logging
import platform
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from neural_compressor.errors import FormatError
from neural_compressor.registry import first_of
from neural_compressor.torch.functional import MatMul, ScaledDotProductAttention
from neural_compressor.torch.modules.code_places import is_gone, place
from neural_compressor.torch.modules.kv_cache import is_held, mark_held
from neural_compressor.torch.modules.object_forward import ObjectForward

logger = logging.getLogger("neural_compressor")

ATTENTION = "scaled_dot_product_attention"
WHOLE_ATTENTION = "multi_head_attention_forward"
"""A function of torch, in Python, that calls products itself."""
_LIBRARY = ("torch.overrides", "torch._", "torch.utils", "torch.nn.modules.module", "neural_compressor.")
"""Modules whose frames are between a product and its call, and not where it is called."""
_SAME_VALUES = (
    *("transpose", "permute", "reshape", "view", "expand", "contiguous", "__getitem__", "__get__", "repeat_interleave"),
    *("unsqueeze", "squeeze", "flatten", "to", "swapaxes", "movedim", "repeat"),
)


@dataclass(frozen=True)
class FunctionProduct:
    """A call of the function ``kind`` at the place ``site`` of the code."""

    kind: str
    site: str

    @property
    def parts(self) -> tuple[str, ...]:
        """What the names of its ops end with, behind that of the call."""
        return (".qk", ".av") if self.kind == ATTENTION else ("",)


# -- which call it is ---------------------------------------------------------------------------------------------------


def product_kind(func: Any, kwargs: Mapping[str, Any]) -> str:
    """The name of a function whose product can be a module; empty for any other."""
    name = (resolve_name(func) or getattr(func, "__name__", "")).rpartition(".")[2]
    return name if (name in _RUN or name == ATTENTION) and kwargs.get("out") is None else ""


def call_site() -> tuple[str, Any]:
    """The site of the function that is being handled, from the forward of a module on, and that module."""
    places: list[str] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if code.co_name == "_call_impl" and module == "torch.nn.modules.module":
            return "<".join(places), frame.f_locals["self"]
        if code is ProductsForward.redirected.__code__:
            return "<".join(places), frame.f_locals["self"].module
        if not module.startswith(_LIBRARY):
            places.append(place(code, frame.f_lasti, frame.f_lineno))
        frame = frame.f_back
    return "", None


@functools.cache
def inside_of(function: FunctionType) -> Callable[..., Any]:
    """A function of ``torch.nn.functional`` that does not ask anew who handles it, so that its own calls are seen."""
    scope = {**function.__globals__, "has_torch_function": lambda *_: False}
    copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


# -- a forward in which products are modules ----------------------------------------------------------------------------


def _matmul(product: nn.Module, first: Tensor, second: Tensor) -> Any:
    return product(first, second)


def _rmatmul(product: nn.Module, second: Tensor, first: Tensor) -> Any:
    return product(first, second)


def _baddbmm(product: nn.Module, added: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    result = product(a, b)
    result = result if alpha == 1 else result * alpha
    return result + (added if beta == 1 else added * beta) if beta else result


_RUN: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("matmul", "__matmul__", "mm", "bmm", "linalg_matmul"), _matmul),
    "__rmatmul__": _rmatmul,
    "baddbmm": _baddbmm,
}
_NAMED = ("input", "other", "tensor2", "mat2", "batch1", "batch2")
"""Operands by name, in the order of their places."""


class _Redirect(TorchFunctionMode):
    """Has the products of a forward computed by the modules that stand for them."""

    def __init__(self, forward: ProductsForward) -> None:
        super().__init__()
        self.forward = forward
        self._holds = forward.module._buffers.get("k_scale") is not None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == WHOLE_ATTENTION:
            with self:
                return inside_of(func)(*args, **kwargs)
        if kind := product_kind(func, kwargs):
            site, module = call_site()
            if module is self.forward.module and (name := self.forward.child(kind, site)):
                with self:  # for what it does to operands that a cache holds
                    return _computed(kind, module.get_submodule(name), args, kwargs)
        result = func(*args, **kwargs)
        moved = self._holds and getattr(func, "__name__", "") in _SAME_VALUES
        if moved and isinstance(result, Tensor) and args and is_held(args[0]):
            mark_held(result)
        return result


def _computed(kind: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kind == ATTENTION:
        return module(*args, **kwargs)
    operands = [kwargs[name] for name in _NAMED if name in kwargs]
    rest = {name: value for name, value in kwargs.items() if name not in (*_NAMED, "out")}
    return _RUN[kind](module, *args, *operands, **rest)


class ProductsForward(ObjectForward):
    """The attribute ``forward`` of a module some of whose products are modules below it; ``products`` are these by name.

    ``closed`` are others that were seen and stay functions, of which nothing needs to be said.
    """

    def __init__(self, module: nn.Module, products: Mapping[str, FunctionProduct]) -> None:
        super().__init__(module)
        self.products = dict(products)
        self.closed: dict[str, FunctionProduct] = {}
        self._told = False

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "products": self.products, "closed": self.closed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["module"], state["products"])  # type: ignore[misc]
        self.closed = state["closed"]

    def child(self, kind: str, site: str) -> str:
        """The module for a product; empty for one that stays a function."""
        for name, product in self.products.items():
            if product.site == site:
                return name
        if not self._told and all(product.site != site for product in self.closed.values()):
            self._told = True
            logger.warning(
                "a %s of %s, at %s, was not seen when its products were looked for: it is computed in float",
                kind,
                type(self.module).__name__,
                site,
            )
        return ""

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # places in the code are those of the frames that run
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.redirected(*args, **kwargs)

    def redirected(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of the class, with modules for its products."""
        with _Redirect(self):
            return self.own(*args, **kwargs)


def open_products(model: nn.Module, products: Mapping[str, FunctionProduct]) -> None:
    """Make modules of ``products``, by name, below the modules whose forwards compute them: of all of them or of none."""
    owners: dict[str, dict[str, FunctionProduct]] = {}
    for name, product in products.items():
        owner, _, own = name.rpartition(".")
        owners.setdefault(owner, {})[own] = product
    for owner, own_products in owners.items():
        module = model.get_submodule(owner)
        if not can_open(module) or any(hasattr(module, own) for own in own_products):
            raise FormatError(
                f"products of {owner!r} cannot be made modules: its forward was set on the object, or it has attributes "
                f"of the names {sorted(own_products)}"
            )
    for owner, own_products in owners.items():
        module = model.get_submodule(owner)
        for own, product in own_products.items():
            module.add_module(own, _opened(product).train(module.training))
        ProductsForward(module, own_products).install()


def _opened(product: FunctionProduct) -> nn.Module:
    new = ScaledDotProductAttention() if product.kind == ATTENTION else MatMul()
    for each in new.modules():
        if isinstance(each, MatMul):
            each.by_function = True
    return new


def can_open(module: nn.Module) -> bool:
    """Whether the products of a module can be made modules: not where its forward was set on the object."""
    return "forward" not in vars(module)


def opened_products(model: nn.Module) -> dict[str, FunctionProduct]:
    """The products of ``model`` that are modules now, by name."""
    return {name: product for name, product, is_open in _products(model) if is_open}


def product_ops(products: Mapping[str, FunctionProduct]) -> set[str]:
    """The names of the ops that ``products`` are."""
    return {name + part for name, product in products.items() for part in product.parts}


def seen_products(model: nn.Module) -> dict[str, FunctionProduct]:
    """The products of ``model`` that are modules now, and those closed beside them."""
    return {name: product for name, product, _ in _products(model)}


def _products(model: nn.Module) -> Iterator[tuple[str, FunctionProduct, bool]]:
    for name, module in model.named_modules():
        forward = vars(module).get("forward")
        if isinstance(forward, ProductsForward):
            for own, product in [*forward.products.items(), *forward.closed.items()]:
                yield f"{name}.{own}" if name else own, product, own in forward.products


def close_products(model: nn.Module, kept: Collection[str] = ()) -> None:
    """Let products be functions again, but those of which an op is among the names ``kept``."""
    for name, product in opened_products(model).items():
        if any(name + part in kept for part in product.parts):
            continue
        owner, _, own = name.rpartition(".")
        module = model.get_submodule(owner)
        forward = vars(module)["forward"]
        del module._modules[own]
        forward.closed[own] = forward.products.pop(own)
        if not forward.products:
            forward.remove()


def check_sites(model: nn.Module, products: Mapping[str, FunctionProduct]) -> None:
    """Refuse products that the code of ``model`` computes at other places than it did when they were found."""
    places = {name: (each.site, type(model.get_submodule(name.rpartition(".")[0]))) for name, each in products.items()}
    missing = {each for each in set(places.values()) if is_gone(*each)}
    gone = [name for name, each in places.items() if each in missing]
    if gone:
        some = first_of(gone, 4)
        raise FormatError(
            f"{len(gone)} products ({some}) were quantized at places where the code of the model has none, so they would "
            f"run in float: it was another version of that code, or of Python (this is {platform.python_version()}). Load "
            "with the versions that the model was saved with, or quantize it again"
        )
