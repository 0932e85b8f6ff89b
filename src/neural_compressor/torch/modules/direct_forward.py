"""A forward that calls the kernels of its weight-only layers itself, for products of few rows.

In a step of decoding, a product takes about as long as what Python does around it: the call of a module, finding out that
another layer has read the same input, that nothing is to be exported. Where a module can be traced (the feed-forward part of
a language model), all of that is settled once: layers that read one value have one product, and the rest is the module's
own code. The bits are those of the module's own forward.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from neural_compressor.torch.modules.attention_forward import AttentionForward, may_be_attention
from neural_compressor.torch.modules.base import QuantModule
from neural_compressor.torch.modules.direct_product import finishing, is_watched, plain_product, split_products
from neural_compressor.torch.modules.norm_forward import NormForward, may_be_norm
from neural_compressor.torch.modules.object_forward import ObjectForward
from neural_compressor.torch.modules.relay.traced_forward import (
    Seen,
    TracedForward,
    drop_identities,
    equal,
    plain_tensors,
)
from neural_compressor.torch.modules.relay.tracing import Traced, TraceError, compiled
from neural_compressor.torch.modules.weight_only import WeightOnlyLinear


class DirectForward(TracedForward):
    """The attribute ``forward`` of a module with several weight-only layers; one that cannot be traced gets rid of it."""

    does = "call the kernels of its layers directly"

    def _reset(self) -> None:
        super()._reset()
        self._most_values = self._rank = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The usual call first, with what is asked in general spelt out: it is part of every step of decoding.
        if self._rank and len(args) == 1 and not kwargs and not is_watched():
            (x,) = args
            if (
                type(x) is Tensor
                and 0 < x.numel() <= self._most_values
                and x.dtype is torch.float32
                and x.dim() == self._rank
                and x.is_cpu
                and not x.requires_grad
                and self._still_holds()
            ):
                assert self._run is not None
                try:
                    return self._run(self.module, x)
                except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                    pass  # which is looked into below
        return super().__call__(*args, **kwargs)

    def _still_holds(self) -> bool:
        guards = self._guards
        assert guards is not None
        return guards.unhooked() and guards.hold() and not (self._trainable and torch.is_grad_enabled())

    def _fits(self, args: Sequence[Any]) -> bool:
        if not all(isinstance(x, (Tensor, fx.Proxy)) for x in args):
            self._refuse("it is called with something else than tensors")
            return False
        if is_watched() or not plain_tensors(args):
            return False
        most = self._most_values or self._most_rows() * args[0].shape[-1]
        return all(x.numel() <= most for x in args)

    def _most_rows(self) -> int:
        return min((layer.most_rows for layer in _layers(self.module)), default=0)

    def _refuse(self, *args: Any, **kwargs: Any) -> None:
        super()._refuse(*args, **kwargs)
        self.remove()

    def _expected(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # Layers that read one input find each other in the first two calls, and may then differ in the last digits.
        for _ in range(2):
            super()._expected(args, kwargs)
        return super()._expected(args, kwargs)

    def _compile(self, traced: Traced, tensors: Sequence[Tensor], expected: Any) -> tuple[Callable[..., Any], Any]:
        seen = Seen.checked(traced, tensors, expected)
        drop_identities(traced)
        rows = {seen.shapes[node][:-1] for node in _layer_nodes(traced)} | {tensors[0].shape[:-1]}
        if len(rows) != 1:
            raise TraceError("its layers are not given one row for each of its inputs")
        try:
            run = _program(traced)
            result = run(self.module, *tensors)
        except Exception as error:
            raise TraceError(f"its kernels cannot be called directly: {error}") from error
        if not equal(result, expected):
            raise TraceError("kernels that are called directly compute something else than its forward")
        if len(tensors) == 1:
            self._most_values, self._rank = self._most_rows() * tensors[0].shape[-1], tensors[0].dim()
        return run, result


def _layers(module: nn.Module) -> list[WeightOnlyLinear]:
    return [child for child in module.modules() if type(child) is WeightOnlyLinear]


def _layer_nodes(traced: Traced) -> list[fx.Node]:
    return [node for node in traced.graph.nodes if type(traced.module(node)) is WeightOnlyLinear]


# -- the program -------------------------------------------------------------------------------------------------------


def _program(traced: Traced) -> Callable[..., Any]:
    """The graph as a function of the module and its inputs, in which layers are calls of their kernels."""
    groups: dict[Any, list[WeightOnlyLinear]] = {}
    for node in _layer_nodes(traced):
        layer = traced.module(node)
        assert isinstance(layer, WeightOnlyLinear)
        if len(node.args) != 1 or node.kwargs or layer.low_bit_kernel is None:
            raise TraceError("one of its layers has no low-bit kernel")
        groups.setdefault(node.args[0], []).append(layer)
    if sum(map(len, groups.values())) < 2:
        raise TraceError("it has fewer than two layers")
    for layers in groups.values():
        products = [layer.shared_input.product for layer in layers]
        if any(layer not in layers for product in products if product is not None for layer in product.layers()):
            raise TraceError("its layers share their input with others")
    new, made = fx.Graph(), dict[fx.Node, fx.Node]()
    shared: dict[tuple[Any, Any], fx.Node] = {}
    for node in traced.graph.nodes:
        module = traced.module(node)
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), made.__getitem__)
        if isinstance(module, WeightOnlyLinear) and type(module) is WeightOnlyLinear:
            made[node] = _product(new, module, node.args[0], args[0], shared)
        elif module is not None:
            run = module.forward if type(module).__module__.startswith("torch.nn") else module.__call__
            made[node] = new.call_function(_named(run, type(module).__name__), args, kwargs)
        else:
            made[node] = new.node_copy(node, made.__getitem__)
    return compiled(new, "direct forward")


def _product(
    graph: fx.Graph, layer: WeightOnlyLinear, source: Any, x: fx.Node, shared: dict[tuple[Any, Any], fx.Node]
) -> fx.Node:
    product = layer.shared_input.product
    if product is None:
        return _finished(graph, layer, graph.call_function(plain_product(layer), (x,)))
    if (source, product) not in shared:
        shared[source, product] = graph.call_function(split_products(product, layer), (x,))
    place = product.layers().index(layer)
    return _finished(graph, layer, graph.call_function(operator.getitem, (shared[source, product], place)))


def _finished(graph: fx.Graph, layer: WeightOnlyLinear, y: fx.Node) -> fx.Node:
    finish = finishing(layer)
    return y if finish is None else graph.call_function(finish, (y,))


def _named(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    call.__name__ = name
    return call


# -- a whole model -----------------------------------------------------------------------------------------------------


def run_directly(model: nn.Module) -> None:
    """Let the modules of a model with weight-only layers do few rows with little Python, from their first such call on.

    These are modules with several such layers (feed-forward parts, attention), and normalisations. What is set here is no
    part of what the model is: its state, its files and the classes of its modules are the same, and a module that does not
    fit gets rid of it.
    """
    if not any(type(module) is WeightOnlyLinear for module in model.modules()):
        return
    for module in model.modules():
        if isinstance(module, (QuantModule, nn.ModuleList, nn.ModuleDict)) or "forward" in vars(module):
            continue
        if sum(type(child) is WeightOnlyLinear for child in module.children()) > 1:
            (AttentionForward if may_be_attention(module) else DirectForward)(module).install()
        elif may_be_norm(module):
            NormForward(module).install()


def run_as_written(model: nn.Module) -> None:
    """Undo :func:`run_directly`."""
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, (AttentionForward, DirectForward, NormForward)):
            assert isinstance(forward, ObjectForward)
            forward.remove()
