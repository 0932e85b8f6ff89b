"""Rebuild a traced graph so that quint8 tensors go from op to op, and compile it to a plain function.

What a kernel needs is bound once, in closures; a call of the function costs a call of each kernel and little else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from neural_compressor.torch.modules import QuantConv2d, QuantLinear, QuantModule, QuantMul
from neural_compressor.torch.modules.conv import QuantConv
from neural_compressor.torch.modules.kernels import fbgemm, onednn
from neural_compressor.torch.modules.kernels.quint8 import U8, codes_of, to_quint8, with_qparams
from neural_compressor.torch.modules.relay.emission import Emission, Kind, Op, Shape
from neural_compressor.torch.modules.relay.tracing import Traced, compiled


class Builder:
    """Translates node by node; a value is built as codes, as floats, or as both where readers differ."""

    def __init__(
        self, traced: Traced, emission: Emission, shapes: Mapping[fx.Node, Shape], contiguous: set[fx.Node]
    ) -> None:
        self.traced, self.emission, self.shapes, self.contiguous = traced, emission, shapes, contiguous
        self.graph = fx.Graph()
        self._floats: dict[fx.Node, fx.Node] = {}
        self._codes: dict[tuple[fx.Node, U8], fx.Node] = {}

    def build(self) -> Callable[..., Any]:
        """The compiled function; its first argument is the module it stands for."""
        for node in self.traced.graph.nodes:
            if node.op == "output":
                self._output(node)
            else:
                self._translate(node)
        return compiled(self.graph, "relayed forward")

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _translate(self, node: fx.Node) -> None:
        op, qparams = self.emission.ops[node], self.emission.qparams[node]
        if node.op == "placeholder":
            self._floats[node] = self.graph.placeholder(node.name)
        elif op.kind is Kind.INT8:
            self._int8(node, op, qparams)
        elif qparams is None or op.kind is Kind.FLOAT:
            self._float(node)
        elif op.kind is Kind.ADD:
            operands = [self._emitted(source) for source, _ in op.inputs]
            run = _pointwise("add", self._relu_follows(node, qparams), qparams)
            self._codes[node, qparams] = self._call(run, "add", *operands)
        elif op.kind is Kind.CLAMP:
            self._codes[node, qparams] = self._clamp(node, op, qparams)
        else:
            self._codes[node, qparams] = self._move(node, op, qparams)

    def _call(self, run: Callable[..., Any], name: str, *args: fx.Node) -> fx.Node:
        run.__name__ = name
        return self.graph.call_function(run, args)

    def as_float(self, node: fx.Node) -> fx.Node:
        """The node that gives a value in float."""
        if node not in self._floats:
            (codes,) = [new for (old, _), new in self._codes.items() if old is node]
            self._floats[node] = self.graph.call_method("dequantize", (codes,))
        return self._floats[node]

    def as_codes(self, node: fx.Node, qparams: U8) -> fx.Node:
        """The node that gives a value as quint8, channels last."""
        if (node, qparams) not in self._codes:
            run = _quantizer(qparams, len(self.shapes[node]))
            self._codes[node, qparams] = self._call(run, "quantize", self.as_float(node))
        return self._codes[node, qparams]

    def _emitted(self, node: fx.Node) -> fx.Node:
        qparams = self.emission.qparams[node]
        assert qparams is not None
        return self.as_codes(node, qparams)

    def _float(self, node: fx.Node) -> None:
        module = self.traced.module(node)
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), self.as_float)
        if node.target in (operator.add, torch.relu) and (own := self._own_memory(node)) is not None:
            # Into memory that nothing else reads: a large result costs more to allocate than to compute.
            in_place = operator.iadd if node.target is operator.add else torch.relu_
            args = (self.as_float(own), *(self.as_float(n) for n in node.all_input_nodes if n is not own))
            self._floats[node] = self.graph.call_function(in_place, args)
        elif module is not None:
            run = _caller(module, own=type(module).__module__.startswith("torch.nn"))
            run.__name__ = f"call_{type(module).__name__}"
            self._floats[node] = self.graph.call_function(run, args, kwargs)
        elif node.op == "call_method" and node.target == "view" and not _is_dtype(node):
            # Channels last cannot be viewed as everything that contiguous values can.
            self._floats[node] = self.graph.call_method("reshape", args, kwargs)
        else:
            self._floats[node] = self.graph.create_node(node.op, node.target, args, kwargs)

    def _own_memory(self, node: fx.Node) -> fx.Node | None:
        """An operand of the result's shape that an op before made for this one alone."""
        if len(node.all_input_nodes) != len(node.args):
            return None
        for source in node.all_input_nodes:
            made = self.emission.ops[source].kind is Kind.INT8 or source.target is operator.add
            alone = len(source.users) == 1 and self.emission.qparams[source] is None
            if made and alone and self.shapes[source] == self.shapes[node]:
                return source
        return None

    def _output(self, node: fx.Node) -> None:
        def laid_out(value: fx.Node) -> fx.Node:
            new = self.as_float(value)
            return self.graph.call_method("contiguous", (new,)) if value in self.contiguous else new

        self.graph.output(fx.map_arg(node.args[0], laid_out))

    def _int8(self, node: fx.Node, op: Op, qparams: U8 | None) -> None:
        module = op.module
        if isinstance(module, QuantLinear) and qparams is None:
            # Its kernel quantizes floats itself, and returns floats only for those.
            run = _linear_to_float(module)
            self._floats[node] = self._call(run, "linear", self.as_float(op.inputs[0][0]))
            return
        inputs = [self.as_codes(source, wanted) for source, wanted in op.inputs if wanted is not None]
        assert module is not None
        if qparams is not None:
            relu = module.relu or self._relu_follows(node, qparams)
            run = _to_codes(module, self.shapes[op.inputs[0][0]], relu, qparams)
            self._codes[node, qparams] = self._call(run, "to_codes", *inputs)
        elif isinstance(module, QuantConv) and module.output_qparams is None:
            packed = _packed(module, self.shapes[op.inputs[0][0]])
            run = onednn.conv_to_float(packed, op.inputs[0][1] or (1.0, 0), module.relu)
            self._floats[node] = self._call(run, "conv_to_float", *inputs)
        else:
            shape = self.shapes[op.inputs[0][0]]
            run = _to_codes(module, shape, module.relu, module._u8("output"))
            codes = self._call(run, "to_codes", *inputs)
            self._floats[node] = self.graph.call_method("dequantize", (codes,))

    def _relu_follows(self, node: fx.Node, qparams: U8) -> bool:
        """Whether the kernel should clip at zero; codes cannot be negative, so a zero-point of 0 does it for nothing."""
        reader = next(iter(node.users))
        clips = self.emission.ops[reader].kind is Kind.CLAMP and self.emission.ops[reader].bounds[0] == 0.0
        return qparams[1] != 0 and len(node.users) == 1 and clips

    def _clamp(self, node: fx.Node, op: Op, qparams: U8) -> fx.Node:
        ((source, _),) = op.inputs
        codes = self.as_codes(source, qparams)
        low, high = (None if bound is None else _code(bound, qparams) for bound in op.bounds)
        clipped = self.emission.ops[source].kind in (Kind.INT8, Kind.ADD) and self._relu_follows(source, qparams)
        if low == qparams[1] and clipped:
            low = None
        if not low and (high is None or high == 255):
            return codes
        return self._call(_clipped(low, high, qparams), "clip", codes)

    def _move(self, node: fx.Node, op: Op, qparams: U8) -> fx.Node:
        module = self.traced.module(node)
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: self.as_codes(n, qparams))
        source = self.as_codes(op.inputs[0][0], qparams)
        if module is not None:
            new = self._call(_caller(module, own=True), "move", source)
        elif node.target is F.pad:
            padding = node.args[1] if len(node.args) > 1 else node.kwargs["pad"]
            new = self._call(_padded(padding, qparams), "pad", source)
        elif node.target == "view":
            new = self.graph.call_method("reshape", args, kwargs)
        else:
            new = self.graph.create_node(node.op, node.target, args, kwargs)
        return new


# -- what the nodes call ------------------------------------------------------------------------------------------------


def _quantizer(qparams: U8, rank: int) -> Callable[[Tensor], Tensor]:
    scale, zero = qparams
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(rank, torch.contiguous_format)
    quantize, quint8 = torch.quantize_per_tensor, torch.quint8

    def run(x: Tensor) -> Tensor:
        return quantize(x, scale, zero, quint8).contiguous(memory_format=layout)

    return run


def _caller(module: nn.Module, own: bool) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    def run_contiguous(*args: Any, **kwargs: Any) -> Any:
        return module(*(a.contiguous() if isinstance(a, Tensor) else a for a in args), **kwargs)

    # What code of the user's does with a tensor may ask for the layout that the float op gives.
    return run if own else run_contiguous


def _packed(module: Any, shape: Sequence[int]) -> onednn.PackedConv:
    codes, scale, _ = module._int8_weight()
    return onednn.pack_conv(codes, scale, module.bias, module.geometry, module._u8("input"), shape)


def _to_codes(module: QuantModule, shape: Sequence[int], relu: bool, output: U8) -> Callable[..., Tensor]:
    if isinstance(module, QuantConv2d):
        return onednn.conv2d(lambda: module._int8_weight()[:2], module.bias, module.geometry, relu, output)
    if isinstance(module, QuantConv):
        return onednn.conv_nd(_packed(module, shape), module._u8("input"), relu, output)
    if isinstance(module, QuantLinear):
        packed = module.prepacked()

        def linear(x: Tensor) -> Tensor:
            return fbgemm.linear_quint8(x.contiguous(), packed, relu, *output)

        return linear
    return _pointwise("mul" if isinstance(module, QuantMul) else "add", relu, output)


def _linear_to_float(module: QuantLinear) -> Callable[[Tensor], Tensor]:
    packed, qparams, relu = module.prepacked(), module._u8("input"), module.relu

    def run(x: Tensor) -> Tensor:
        return fbgemm.linear_static(x, *qparams, packed, relu)

    return run


def _pointwise(name: str, relu: bool, output: U8) -> Callable[[Tensor, Tensor], Tensor]:
    """The sum (``add``) or product (``mul``) of two tensors of codes."""
    op = getattr(torch.ops.quantized, f"{name}_relu" if relu else name).default
    in_floats = getattr(operator, name)

    def run(a: Tensor, b: Tensor) -> Tensor:
        if a.shape != b.shape:
            found = in_floats(a.dequantize(), b.dequantize())
            return to_quint8(found.relu_() if relu else found, *output)
        y: Tensor = op(a, b, *output)
        return y

    return run


def _padded(padding: Any, qparams: U8) -> Callable[[Tensor], Tensor]:
    """Zeros around codes; torch's own padding of quint8 tensors takes five times as long."""

    def run(x: Tensor) -> Tensor:
        return with_qparams(F.pad(codes_of(x), padding, value=qparams[1]), *qparams)

    return run


def _clipped(low: int | None, high: int | None, qparams: U8) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        return with_qparams(codes_of(x).clamp(low, high), *qparams)

    return run


def _code(value: float, qparams: U8) -> int:
    return int(to_quint8(torch.tensor(float(value)), *qparams).int_repr())


def _is_dtype(node: fx.Node) -> bool:
    return any(isinstance(a, torch.dtype) for a in (*node.args, *node.kwargs.values()))
