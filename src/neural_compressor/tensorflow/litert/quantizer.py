"""A float LiteRT file quantized op by op, with our choices, ranges and codes.

Ops with integer activations are written by ``ai-edge-quantizer``: its recipe names each op by a tensor name that no other
has, and its calibration result holds our ranges, so that nothing is left for it to choose. It writes integers, biases and
the quantizers between float and integer ops. Weights of other ops are written by :mod:`stored_weights`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_quantizer import algorithm_manager, qtyping, quantizer

from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import OpScheme, PerChannel, PerTensor, QParams, TensorScheme
from neural_compressor.tensorflow.litert.flatbuffer import LiteGraph, LiteOp
from neural_compressor.tensorflow.litert.stored_weights import StoredWeight, reason_not_stored, store_weights

_NAMES = {"TRANSPOSE_CONV": "CONV_2D_TRANSPOSE"}
"""Op types that the quantizer spells otherwise than the file format."""
_MIN_MAX = algorithm_manager.AlgorithmName.MIN_MAX_UNIFORM_QUANT


@dataclass(frozen=True)
class LiteScheme:
    """How an op of a file runs: ``config`` of the quantizer where its activations are integers, else its weight alone is
    stored, for kernels that multiply ``integer`` codes or for float ones."""

    config: Any = None
    integer: bool = True

    @property
    def static(self) -> bool:
        """Whether activations have ranges known beforehand."""
        return self.config is not None


def lite_scheme(kind: str, scheme: OpScheme) -> LiteScheme | str:
    """What an op of type ``kind`` is to do for ``scheme``, or why LiteRT has nothing like it and what there is."""
    if scheme.is_float or scheme.mode != "static":
        why = reason_not_stored(kind, scheme)
        return why or LiteScheme(integer=scheme.mode == "dynamic")
    name = _NAMES.get(kind, kind)
    if name not in {each.value for each in qtyping.TFLOperationName}:
        return f"the quantizer of LiteRT files writes no {kind} in integers{_remedy(scheme)}"
    found = _config(scheme)
    if isinstance(found, str):
        return found
    if kind == "BATCH_MATMUL" and scheme.weight is not None and not isinstance(scheme.weight.granularity, PerTensor):
        return "BATCH_MATMUL has one scale for all of its weight; use per_tensor, or weight-only"
    try:
        algorithm_manager.check_op_quantization_config(_MIN_MAX, qtyping.TFLOperationName(name), found.config)
    except ValueError:
        return f"LiteRT has no {kind} with {_in_words(scheme)}{_remedy(scheme)}"
    return found


def _remedy(scheme: OpScheme) -> str:
    return "; weight-only stores its weight in integers" if scheme.weight is not None else ""


def _config(scheme: OpScheme) -> LiteScheme | str:
    weight = scheme.weight
    if weight is not None:
        if not weight.dtype.is_integer or not weight.dtype.signed or weight.dtype.bits not in (2, 4, 8):
            return f"LiteRT has no weights in {weight.dtype.name}"
        if not isinstance(weight.granularity, PerChannel | PerTensor):
            return f"kernels have scales per_channel or per_tensor, not {weight.granularity.name}; use weight-only for these"
        if not weight.symmetric:
            return "LiteRT multiplies with symmetric weights alone"
    bits = 8 if weight is None else weight.dtype.bits
    coarse = weight is not None and isinstance(weight.granularity, PerTensor)
    config = qtyping.TensorQuantizationConfig(
        num_bits=bits,
        symmetric=True,
        granularity=qtyping.QuantGranularity.TENSORWISE if coarse else qtyping.QuantGranularity.CHANNELWISE,
    )
    activation = scheme.activation
    assert activation is not None
    if why := _not_an_activation(activation):
        return why
    sixteen = activation.dtype.bits == 16
    told = qtyping.TensorQuantizationConfig(num_bits=activation.dtype.bits, symmetric=sixteen)
    return LiteScheme(
        qtyping.OpQuantizationConfig(
            activation_tensor_config=told,
            weight_tensor_config=config,
            compute_precision=qtyping.ComputePrecision.INTEGER,
        )
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
    stored: Sequence[StoredWeight] = (),
) -> bytes:
    """The file with the static ops of ``schemes`` (by index) in integers, and the weights ``stored`` of others.

    ``ranges`` are those of the tensors of static ops, ``weights`` the scales that their weights sit on.
    """
    content = graph.content()
    static = {index: scheme for index, scheme in schemes.items() if scheme.static}
    if static:
        content = _in_integers(graph, content, static, ranges, weights)
    return graph.finished(store_weights(content, stored))


def _in_integers(
    graph: LiteGraph,
    content: bytes,
    schemes: Mapping[int, LiteScheme],
    ranges: Mapping[int, tuple[float, float]],
    weights: Mapping[int, QParams],
) -> bytes:
    seen = {graph.unique_name(tensor): _qsv(*pair) for tensor, pair in ranges.items()}
    recipe = quantizer.Quantizer(content)
    for index, scheme in schemes.items():
        op = graph.ops[index]
        regex = f"^{op.outputs[0]}:"
        kind = qtyping.TFLOperationName(_NAMES.get(op.kind, op.kind))
        recipe.update_quantization_recipe(regex, kind, scheme.config, _MIN_MAX)
        if index in weights and (tensor := graph.weight(op)) is not None:
            seen[graph.unique_name(tensor)] = _weight_qsv(graph, op, tensor, weights[index], scheme)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the interpreter that it looks at tensors with
            result = recipe.quantize(seen or None, enable_progress_bar=False, enable_progress_report=False)
    except Exception as error:  # it raises ValueError and RuntimeError without saying which op
        raise QuantizationError(f"the LiteRT file cannot be quantized: {type(error).__name__}: {error}") from error
    assert result.quantized_model is not None
    return bytes(result.quantized_model)


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
    shape = [1] * len(graph.shape(tensor))
    if scale.size > 1:
        shape[-1 if op.kind == "DEPTHWISE_CONV_2D" else 0] = scale.size
    top = (scale * (2 ** (bits - 1) - 1)).reshape(shape)
    return {"min": -top, "max": top}
