"""Quantized linear layers of a model as checkpoint formats see them, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.algorithms import LayerResult
from neural_compressor.errors import CalibrationError, ConfigError, FormatError
from neural_compressor.formats import Layer, LinearWeight, QuantizedLinear
from neural_compressor.schemes import OpScheme, PerBlock, PerGroup, QuantizedArray, TensorScheme, is_pair_safe
from neural_compressor.torch.batches import feed_each, layer_input
from neural_compressor.torch.hooks import evaluating, forward_replaced, hooked
from neural_compressor.torch.modules import QuantModule, WeightOnlyLinear
from neural_compressor.torch.modules.activation import calibrated_qparams
from neural_compressor.torch.modules.base import finite
from neural_compressor.torch.modules.kernels.integer import kernel_pairs, safe_weight
from neural_compressor.torch.modules.linear import QuantLinear
from neural_compressor.torch.modules.matrix_stack import QuantMatrixStack
from neural_compressor.torch.structure.feeds import by_input, inputs_seen, reads_of_tensors


def checkpoint_layer(module: QuantModule, input_scale: Tensor | None = None) -> Layer:
    """A quantized linear layer for a checkpoint format; one that none can express is an error that says why.

    ``input_scale`` is that of inputs whose range is not known to the layer itself.
    """
    if getattr(module, "relu", False):
        raise FormatError(
            "it computes the ReLU behind it, and a checkpoint knows layers alone. Give it, with set_local, a configuration "
            "of weights alone, such as RTNConfig(bits=8, group_size=-1), or RTNConfig(dtype='fp32'), which is float"
        )
    if isinstance(module, WeightOnlyLinear):
        if module.weight_scheme.dtype.is_integer or isinstance(module, QuantMatrixStack):
            return module.linear_weight()  # which a stack refuses
        return QuantizedLinear(module.array_alone(), bias=module.bias)
    if not isinstance(module, QuantLinear):
        raise FormatError(
            f"a quantized {module.op_type} is none of the layers that serving engines read quantized, which are linear; "
            "leave it in float"
        )
    if module.input_change:
        raise FormatError(
            "its inputs are multiplied, turned or put in order when it runs, which engines do not; fold that into the "
            "layer before (folding=True, hadamard='folded'), or, where nothing takes it up, leave it out with set_local"
        )
    if module.scheme.activation is not None and module.scheme.activation.rounding not in ("even", "nearest"):
        raise FormatError(f"engines round inputs to nearest, and its are rounded {module.scheme.activation.rounding!r}")
    inputs = module.qparams("input")
    scale, zero_point = (input_scale, None) if inputs is None else (inputs.scale, inputs.zero_point)
    return QuantizedLinear(module.weight_array(), module.scheme.activation, scale, zero_point, module.bias)


def observed_input_scales(
    layers: Mapping[str, QuantModule], model: nn.Module, batches: Iterable[Any]
) -> dict[str, Tensor]:
    """Scales of the whole input (NVFP4) of those ``layers`` that take one from each input, over all ``batches``.

    A batch is what the model is called with: tokens, a tuple or a mapping of arguments.
    """
    wanted = {name: layer for name, layer in layers.items() if _takes_own_tensor_scale(layer.scheme)}
    if not wanted:
        raise ConfigError(
            "input_data is for layers with NVFP4 inputs that are quantized dynamically, and there is none"
        )
    largest: dict[str, Tensor] = {}

    def see(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = layer_input((args, kwargs)).detach()
        if not x.numel():  # an expert that no token came to
            return
        found = x.float().abs().amax()
        largest[name] = torch.maximum(largest.get(name, found), found)

    with torch.no_grad(), evaluating(model), hooked(wanted, before=see):
        feed_each(model, batches, "input_data")
    scales: dict[str, Tensor] = {}
    for name, module in wanted.items():
        if name not in largest or not bool(torch.isfinite(largest[name])):
            seen = "is never called by the model" if name not in largest else "is given NaN or Inf"
            raise CalibrationError(f"layer {name!r} {seen} on input_data")
        scheme = module.scheme.activation
        assert scheme is not None
        scale = calibrated_qparams((-largest[name], largest[name]), scheme, name).scale
        assert scale is not None
        scales[name] = scale
    return scales


def _takes_own_tensor_scale(scheme: OpScheme) -> bool:
    return scheme.mode == "dynamic" and scheme.activation is not None and scheme.activation.dtype.has_tensor_scale


def module_of(layer: Layer, module: nn.Module) -> QuantModule:
    """The quantized layer that takes the place of ``module``, of which only the shape is read."""
    bias = None if layer.bias is None else torch.as_tensor(layer.bias)
    if bias is not None and not bias.is_floating_point():
        raise FormatError(f"its bias is stored as {bias.dtype}; a bias is in float")
    if isinstance(layer, LinearWeight):
        return WeightOnlyLinear.from_layer(module, LayerResult(layer.to_quantized(), layer.order), bias=bias)
    if layer.activation is None:
        return WeightOnlyLinear.from_layer(module, LayerResult(in_groups(layer.weight)), bias=bias)
    bias = None if bias is None else finite(bias, "the bias")  # whatever float type: integer kernels read float32
    state = {"weight_packed": (packed := layer.weight.pack()).data, "weight_scale": packed.scale}
    state |= {"weight_tensor_scale": packed.tensor_scale, "bias": bias}
    state |= {"input_scale": layer.input_scale, "input_zero_point": layer.input_zero_point}
    scheme = OpScheme(_known_weight(layer), layer.activation, layer.mode)
    return QuantLinear.from_state(module, scheme, {name: each for name, each in state.items() if each is not None})


def _known_weight(layer: QuantizedLinear) -> TensorScheme:
    """The scheme of a weight; checkpoints do not say of theirs that it is safe in pairs, so the codes are looked at."""
    array = layer.weight
    safe = safe_weight("Linear", OpScheme(array.scheme, layer.activation, layer.mode))
    if safe is None or not safe.pair_safe:
        return array.scheme
    return safe if is_pair_safe(array.codes, kernel_pairs("Linear", array.shape)) else array.scheme


def in_groups(array: QuantizedArray) -> QuantizedArray:
    """Blocks of rows and columns as groups with the scales of their blocks: what a weight-only layer multiplies with."""
    part = array.scheme.granularity
    if not isinstance(part, PerBlock):
        return array
    assert isinstance(array.scale, Tensor)
    scale = array.scale.repeat_interleave(part.rows, 0)[: array.shape[0]].contiguous()
    scheme = TensorScheme(array.scheme.dtype, granularity=PerGroup(part.columns))
    return QuantizedArray(array.codes, scale, None, scheme, array.shape)


# -- layers that engines multiply as one ------------------------------------------------------------------------------


def layers_of_one_input(model: nn.Module) -> list[list[str]] | None:
    """Linear layers of one module that are given the same tensor: query, key and value, or the two halves of a gated layer.

    Engines multiply these as one matrix. They are found by running the model on the tokens that transformers has for this,
    with layers that only say which shape they would give. None where the model does not run so.
    """
    inputs = getattr(model, "dummy_inputs", None)
    names: dict[str, nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, WeightOnlyLinear, QuantLinear)) and hasattr(module, "out_features")
    }
    if not isinstance(inputs, dict) or not names:
        return None
    device = next(iter([*model.parameters(), *model.buffers()])).device
    try:
        with torch.no_grad(), evaluating(model), _shapes_alone(names), inputs_seen(names) as seen:
            model(**{key: value.to(device) for key, value in inputs.items()})
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError, NotImplementedError):
        return None
    found: dict[tuple[int, str], list[str]] = {}
    for number, group in enumerate(by_input([reads_of_tensors(seen)])):
        for name in group:
            found.setdefault((number, name.rpartition(".")[0]), []).append(name)
    return [together for together in found.values() if len(together) > 1]


@contextmanager
def _shapes_alone(layers: Mapping[str, nn.Module]) -> Iterator[None]:
    """Meanwhile ``layers`` give zeros, as many as they would give numbers."""

    def instead(module: Any) -> Any:
        return lambda input: input.new_zeros(*input.shape[:-1], module.out_features)

    with ExitStack() as stack:
        for module in layers.values():
            stack.enter_context(forward_replaced(module, instead(module)))
        yield
