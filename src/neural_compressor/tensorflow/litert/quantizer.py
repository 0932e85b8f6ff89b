"""A float LiteRT file quantized op by op, by ``ai-edge-quantizer`` with our choices, ranges and scales of weights.

Its recipe names each op by a tensor name that no other has, and its calibration result holds our ranges, so that nothing
is left for it to choose: what it does is to write integers, biases and the quantizers between float and integer ops.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_quantizer import algorithm_manager, qtyping, quantizer

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import OpScheme, PerChannel, PerTensor, QParams, TensorScheme
from neural_compressor.tensorflow.litert.flatbuffer import LiteGraph, LiteOp

_NAMES = {"TRANSPOSE_CONV": "CONV_2D_TRANSPOSE"}
"""Op types that the quantizer spells otherwise than the file format."""
_MIN_MAX = algorithm_manager.AlgorithmName.MIN_MAX_UNIFORM_QUANT
_CAST = algorithm_manager.AlgorithmName.FLOAT_CASTING
_INTEGER, _FLOAT = qtyping.ComputePrecision.INTEGER, qtyping.ComputePrecision.FLOAT


@dataclass(frozen=True)
class LiteScheme:
    """How an op of a file runs: a configuration of the quantizer, and by which of its algorithms."""

    config: Any
    algorithm: Any

    @property
    def static(self) -> bool:
        """Whether activations have ranges known beforehand."""
        return self.config.activation_tensor_config is not None


def lite_scheme(kind: str, scheme: OpScheme) -> LiteScheme | str:
    """What an op of type ``kind`` is to do for ``scheme``, or why LiteRT has nothing like it."""
    name = _NAMES.get(kind, kind)
    if name not in {each.value for each in qtyping.TFLOperationName}:
        return f"the quantizer of LiteRT files knows no {kind}"
    found = _config(scheme)
    if isinstance(found, str):
        return found
    try:
        algorithm_manager.check_op_quantization_config(found.algorithm, qtyping.TFLOperationName(name), found.config)
    except ValueError:
        return f"LiteRT has no {kind} with {_in_words(scheme)}"
    return found


def _config(scheme: OpScheme) -> LiteScheme | str:
    weight = scheme.weight
    if scheme.is_float:
        if scheme.precision != "fp16":
            return f"LiteRT does not compute in {scheme.precision}"
        config = qtyping.TensorQuantizationConfig(num_bits=16, dtype=qtyping.TensorDataType.FLOAT)
        return LiteScheme(
            qtyping.OpQuantizationConfig(
                weight_tensor_config=config, compute_precision=_FLOAT, explicit_dequantize=True
            ),
            _CAST,
        )
    if weight is not None:
        if not weight.dtype.is_integer or not weight.dtype.signed or weight.dtype.bits not in (2, 4, 8):
            return f"LiteRT has no weights in {weight.dtype.name}"
        if not isinstance(weight.granularity, PerChannel | PerTensor):
            return f"scales {weight.granularity.name} are simulated; LiteRT files have them per_channel or per_tensor"
        if not weight.symmetric and scheme.mode != "weight_only":
            return "LiteRT multiplies with symmetric weights alone"
    bits = 8 if weight is None else weight.dtype.bits
    coarse = weight is not None and isinstance(weight.granularity, PerTensor)
    config = qtyping.TensorQuantizationConfig(
        num_bits=bits,
        symmetric=weight is None or weight.symmetric,
        granularity=qtyping.QuantGranularity.TENSORWISE if coarse else qtyping.QuantGranularity.CHANNELWISE,
    )
    if scheme.mode == "weight_only":
        whole = {"compute_precision": _FLOAT, "explicit_dequantize": True}
        return LiteScheme(qtyping.OpQuantizationConfig(weight_tensor_config=config, **whole), _MIN_MAX)
    if scheme.mode == "dynamic":
        return LiteScheme(
            qtyping.OpQuantizationConfig(weight_tensor_config=config, compute_precision=_INTEGER), _MIN_MAX
        )
    activation = scheme.activation
    assert activation is not None
    if why := _not_an_activation(activation):
        return why
    sixteen = activation.dtype.bits == 16
    told = qtyping.TensorQuantizationConfig(num_bits=activation.dtype.bits, symmetric=sixteen)
    return LiteScheme(
        qtyping.OpQuantizationConfig(
            activation_tensor_config=told, weight_tensor_config=config, compute_precision=_INTEGER
        ),
        _MIN_MAX,
    )


def _not_an_activation(activation: TensorScheme) -> str:
    kind = activation.dtype
    if not kind.is_integer or kind.bits not in (8, 16) or not isinstance(activation.granularity, PerTensor):
        return f"LiteRT has no activations in {kind.name} {activation.granularity.name}"
    if kind.bits == 16 and not (activation.symmetric and kind.signed):
        return "LiteRT has 16-bit activations symmetric and signed alone"
    if activation.reduce_range:
        return "LiteRT's activations use all of their bits"
    return ""


def _in_words(scheme: OpScheme) -> str:
    weight = f"{scheme.weight.dtype.name} weights" if scheme.weight is not None else "activations"
    beside = (
        f" and {scheme.activation.dtype.name} activations" if scheme.weight is not None and scheme.activation else ""
    )
    return f"{scheme.mode} {weight}{beside}"


def quantize_file(
    graph: LiteGraph,
    schemes: Mapping[int, LiteScheme],
    ranges: Mapping[int, tuple[float, float]],
    weights: Mapping[int, QParams],
) -> bytes:
    """The file with the ops ``schemes`` names (by index) quantized.

    ``ranges`` are those of the tensors of static ops, ``weights`` the scales that the weights of ops sit on; of others the
    quantizer takes them from the values.
    """
    if not schemes:
        return graph.finished(graph.content())
    seen = {graph.unique_name(tensor): _qsv(*pair) for tensor, pair in ranges.items()}
    recipe = quantizer.Quantizer(graph.content())
    for index, scheme in schemes.items():
        op = graph.ops[index]
        regex = f"^{op.outputs[0]}:"
        kind = qtyping.TFLOperationName(_NAMES.get(op.kind, op.kind))
        recipe.update_quantization_recipe(regex, kind, scheme.config, scheme.algorithm)
        if index in weights and (tensor := graph.weight(op)) is not None and scheme.algorithm == _MIN_MAX:
            seen[graph.unique_name(tensor)] = _weight_qsv(graph, op, tensor, weights[index], scheme)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the interpreter that it looks at tensors with
            result = recipe.quantize(seen or None, enable_progress_bar=False, enable_progress_report=False)
    except Exception as error:  # it raises ValueError and RuntimeError without saying which op
        raise QuantizationError(f"the LiteRT file cannot be quantized: {type(error).__name__}: {error}") from error
    assert result.quantized_model is not None
    return graph.finished(bytes(result.quantized_model))


def activation_range(qparams: QParams, scheme: TensorScheme) -> tuple[float, float]:
    """The range that gives LiteRT the same scale, and the same zero point of signed integers."""
    scale = float(np.asarray(qparams.scale))
    zero = 0 if qparams.zero_point is None else int(np.asarray(qparams.zero_point))
    if scheme.dtype.bits == 16:
        return -scale * 32767, scale * 32767
    zero -= 0 if scheme.dtype.signed else 128
    return (-128 - zero) * scale, (127 - zero) * scale


def _qsv(low: float, high: float) -> dict[str, Any]:
    return {"min": np.full((1, 1), low, np.float32), "max": np.full((1, 1), high, np.float32)}


def _weight_qsv(graph: LiteGraph, op: LiteOp, tensor: int, qparams: QParams, scheme: LiteScheme) -> dict[str, Any]:
    """A range of each channel whose scale is the one that the weight was rounded with."""
    scale = np.asarray(qparams.scale, np.float64).reshape(-1)
    bits = scheme.config.weight_tensor_config.num_bits
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    shape = [1] * len(graph.shape(tensor))
    if scale.size > 1:
        shape[-1 if op.kind == "DEPTHWISE_CONV_2D" else 0] = scale.size
    if scheme.config.weight_tensor_config.symmetric:
        top = (scale * high).reshape(shape)
        return {"min": -top, "max": top}
    zero = (
        np.zeros_like(scale) if qparams.zero_point is None else np.asarray(qparams.zero_point, np.float64).reshape(-1)
    )
    return {"min": ((low - zero) * scale).reshape(shape), "max": ((high - zero) * scale).reshape(shape)}
