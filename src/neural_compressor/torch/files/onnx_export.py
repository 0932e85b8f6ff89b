"""A PyTorch model as an ONNX model: static ops as float ops between QuantizeLinear and DequantizeLinear, dynamic products in
DynamicQuantizeLinear and MatMulInteger."""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.config.exporting import Torch2ONNXConfig
from neural_compressor.errors import ConfigError, MissingDependencyError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import PerTensor
from neural_compressor.torch.batches import feed, tensors_in
from neural_compressor.torch.hooks import forward_replaced
from neural_compressor.torch.modules import QuantModule, WeightOnlyLinear
from neural_compressor.torch.modules.kernels.integer import takes_int8
from neural_compressor.torch.modules.linear import QuantLinear
from neural_compressor.torch.modules.portable import as_type, constant


def to_onnx(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    opset_version: int | None = None,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    dynamic_axes: Mapping[str, Any] | None = None,
) -> Any:
    """``model`` as an ``onnx.ModelProto``, traced with ``args`` and ``kwargs``.

    Its first dimension may have any size where ``dynamic_axes`` say nothing else; inputs and outputs have the names of
    ``forward`` and ``output`` where none are given.

    Runtimes fuse the float ops with what is around them to integer kernels. Linear layers that take the range of their input
    at run time are products of integers; convolutions and recurrent layers that do are float ops, with weights in int8.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingDependencyError("converting to ONNX needs the package onnx: pip install onnx") from error
    for name, module in model.named_modules():
        if isinstance(module, WeightOnlyLinear):
            raise ConfigError(
                f"layer {name!r} ({module.scheme.precision}): weights that are quantized alone are not written to ONNX from "
                "here, a trace would hold one result in their place; export the float model, and quantize that with "
                "neural_compressor.onnx"
            )
        if isinstance(module, QuantModule) and (kind := _not_integer(module)):
            raise ConfigError(
                f"layer {name!r} is quantized to {kind}, and integers alone are written to ONNX from here; export the float "
                "model, or quantize to integers, with StaticQuantConfig for example"
            )
    parameters = list(inspect.signature(model.forward).parameters)
    names = [*parameters[: len(args)], *(name for name in parameters if name in kwargs)]
    names = _named("input", input_names, names)
    if not all(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())):
        raise ConfigError(
            "the inputs of a model that is converted to ONNX are tensors; wrap it in a module that takes some"
        )
    with torch.no_grad():
        found = feed(model, kwargs) if kwargs else feed(model, tuple(args))
    count = sum(1 for _ in tensors_in(found))
    outputs = ["output"] if count == 1 else [f"output_{index}" for index in range(count)]
    outputs = _named("output", output_names, outputs)
    if dynamic_axes is None:
        dynamic_axes = {name: {0: "batch"} for name in [*names, *outputs]}
    for name in dynamic_axes:
        if name not in (known := [*names, *outputs]):
            raise ConfigError(f"dynamic_axes: the model has no input or output {name!r}; {close_matches(name, known)}")
    file = io.BytesIO()
    with warnings.catch_warnings(), _dynamic_products(model):
        warnings.simplefilter("ignore")  # of the exporter's end, and of shapes that are constants by design
        torch.onnx.export(
            model,
            tuple(args),
            file,  # type: ignore[arg-type]
            kwargs=dict(kwargs),
            input_names=names,
            output_names=outputs,
            dynamic_axes=dict(dynamic_axes),
            opset_version=opset_version,
            dynamo=False,
        )
    model_of_file = onnx.load_model_from_string(file.getvalue())
    _share_codes(model_of_file.graph)
    return model_of_file


def export_model(model: nn.Module, conf: Torch2ONNXConfig, example: Any) -> Any:
    """``model`` as ``conf`` asks for it; ``example`` shows how it is called where ``conf`` does not."""
    quantized = any(isinstance(module, QuantModule) for module in model.modules())
    if quantized != (conf.dtype == "int8"):
        what = "is quantized" if quantized else "has no quantized op"
        raise ConfigError(
            f"Torch2ONNXConfig.dtype: got {conf.dtype!r}, and the model {what}; "
            f"{'export the float model itself' if quantized else 'quantize it first'}, or take dtype="
            f"{'int8' if quantized else 'fp32'!r}"
        )
    args, kwargs = call_arguments(example if conf.example_inputs is None else conf.example_inputs)
    return to_onnx(
        model,
        args,
        kwargs,
        opset_version=conf.opset_version,
        input_names=conf.input_names,
        output_names=conf.output_names,
        dynamic_axes=conf.dynamic_axes,
    )


def call_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as those of a call."""
    if example is None:
        raise ConfigError("exporting needs example_inputs or a dataloader")
    if isinstance(example, Mapping):
        return (), dict(example)
    return tuple(example) if isinstance(example, tuple | list) else (example,), {}


def _not_integer(module: QuantModule) -> str:
    """The type of numbers a module rounds to, where ONNX has no rounding for it; empty where it has."""
    sides = [
        side for side in (module.scheme.weight, module.scheme.activation) if side is not None and not side.is_float
    ]
    other = [side.dtype for side in sides if side.dtype.scale_type is not None or not side.dtype.is_integer]
    return other[0].name if other else ""


def _named(what: str, given: Sequence[str], usual: Sequence[str]) -> list[str]:
    """The names that were given, which are as many as there are of them."""
    if given and (len(given) != len(usual) or len(set(given)) != len(given)):
        raise ConfigError(
            f"{what}_names: got {list(given)}, and the model has {len(usual)} {what}s; give each a name of its own"
        )
    return list(given or usual)


@contextmanager
def _dynamic_products(model: nn.Module) -> Iterator[None]:
    """Meanwhile dynamic linear layers whose operands ONNX can multiply as integers are traced as such products."""
    with ExitStack() as stack:
        for layer in model.modules():
            if isinstance(layer, QuantLinear) and _multiplies_integers(layer):
                stack.enter_context(forward_replaced(layer, partial(_integer_product, layer)))
        yield


def _multiplies_integers(layer: QuantLinear) -> bool:
    activation = layer.scheme.activation
    if layer.scheme.mode != "dynamic" or activation is None or not takes_int8(layer.weight_scheme):
        return False
    kind = (activation.dtype.name, activation.symmetric, activation.reduce_range)
    return kind == ("uint8", False, False) and isinstance(activation.granularity, PerTensor)


def _integer_product(layer: QuantLinear, x: Tensor) -> Tensor:
    codes, scale, zero = layer._int8_weight()
    given = as_type(layer.turned(x), torch.float32)
    operands = [constant(codes.T), constant(scale.reshape(-1).float())]
    operands += [] if zero is None else [constant(zero.reshape(-1).to(torch.int8))]
    y: Tensor = _IntegerProduct.apply(given, *operands)  # type: ignore[no-untyped-call]
    y = y if layer.bias is None else y + layer.bias.float()
    return as_type(y.relu() if layer.relu else y, x.dtype)


class _IntegerProduct(torch.autograd.Function):
    """DynamicQuantizeLinear and MatMulInteger; here the same in floats."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scale: Tensor, *zero: Tensor) -> Tensor:
        low, high = x.min().clamp(max=0), x.max().clamp(min=0)
        step = ((high - low) / 255).clamp(min=torch.finfo(torch.float32).tiny)
        middle = (-low / step).round()
        rounded = ((x / step).round() + middle).clamp(0, 255) - middle
        return rounded @ (codes.float() - (zero[0].float() if zero else 0.0)) * (step * scale)

    @staticmethod
    def symbolic(g: Any, x: Any, codes: Any, scale: Any, *zero: Any) -> Any:
        rounded, step, middle = g.op("DynamicQuantizeLinear", x, outputs=3)
        sums = g.op("Cast", g.op("MatMulInteger", rounded, codes, middle, *zero), to_i=1)
        y = g.op("Mul", sums, g.op("Mul", step, scale))
        y.setType(x.type())
        return y


def _share_codes(graph: Any) -> None:
    """Let all that reads a value read the same codes of it, where these are all that is made of it.

    Each op rounds its input, so that a value with two readers is rounded twice. A runtime takes the op that makes the value
    for an integer kernel only if nothing reads it in float; additions do, and read the codes as those of PyTorch do.
    """
    from onnx.numpy_helper import to_array

    constants = {tensor.name: to_array(tensor).tobytes() for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = to_array(node.attribute[0].t).tobytes()
    made_by = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def grid(node: Any) -> tuple[bytes | str, ...]:
        return tuple(constants.get(name, name) for name in node.input[1:])

    outputs = {value.name for value in graph.output}
    place = {name: number for number, node in enumerate(graph.node) for name in node.output}
    for value in list(readers):
        rounding = [node for node in readers[value] if node.op_type == "QuantizeLinear" and node.input[0] == value]
        if not rounding or len({grid(node) for node in rounding}) != 1 or value in outputs or value in constants:
            continue
        backs = [back for node in rounding for back in readers.get(node.output[0], [])]
        if not backs or any(back.op_type != "DequantizeLinear" for back in backs):
            continue
        backs.sort(key=lambda back: place[back.output[0]])
        rounding.sort(key=lambda node: node.output[0] != backs[0].input[0])
        first = backs[0].output[0]
        for back in backs[1:]:
            for reader in readers.get(back.output[0], []):
                _reads_instead(reader, back.output[0], first)
        for reader in readers[value]:
            others = [made_by.get(name) for name in reader.input if name != value]
            later = place[reader.output[0]] > place[first]
            if (
                later
                and reader.op_type == "Add"
                and all(other is not None and other.op_type == "DequantizeLinear" for other in others)
            ):
                _reads_instead(reader, value, first)
        for node in (*rounding[1:], *backs[1:]):
            graph.node.remove(node)


def _reads_instead(node: Any, old: str, new: str) -> None:
    for index, name in enumerate(node.input):
        if name == old:
            node.input[index] = new
