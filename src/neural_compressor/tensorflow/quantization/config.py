"""Configurations of quantized weights and activations of Keras models."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import PlainValidator

from neural_compressor.config.composition import FRAMEWORK_QUERIES, FrameworkQueries, register_config
from neural_compressor.config.tensor_fields import TensorFieldsConfig
from neural_compressor.config.validators import (
    ExcludedPrecisions,
    flag,
    names,
    one_or_more,
    registered_dtype,
    smoothing_alpha,
    word,
)
from neural_compressor.dtypes import DType
from neural_compressor.observers import OBSERVERS
from neural_compressor.schemes import Pass

Dtype = Annotated[str, one_or_more(registered_dtype)]
Flag = Annotated[bool, one_or_more(flag)]
Granularity = Annotated[str, one_or_more(word(("per_tensor", "per_channel")))]
ActivationGranularity = Annotated[str, one_or_more(word(("per_tensor", "per_token")))]
Algorithm = Annotated[str, one_or_more(word(OBSERVERS))]


class ActivationConfig(TensorFieldsConfig):
    """What the configurations share that quantize weights and activations."""

    weight_dtype: Dtype = "int8"
    weight_sym: Flag = True
    weight_granularity: Granularity = "per_channel"
    weight_algorithm: Algorithm = "minmax"
    act_dtype: Dtype = "int8"
    act_sym: Flag = False
    act_granularity: ActivationGranularity = "per_tensor"
    act_algorithm: Algorithm = "minmax"

    @staticmethod
    def _is_symmetric(kind: DType) -> bool:
        return not kind.is_integer or kind.name == "int16"  # kernels of 16 bits have no zero point


@register_config("tensorflow", "static_quant")
class StaticQuantConfig(ActivationConfig):
    """Weights and activations quantized with ranges known beforehand, from calibration data.

    >>> StaticQuantConfig(act_algorithm="kl").wanted.activation.algorithm
    'kl'
    """

    excluded_precisions: ExcludedPrecisions = ()

    @property
    def needs_calibration(self) -> bool:
        """Always."""
        return True


@register_config("tensorflow", "dynamic_quant")
class DynamicQuantConfig(ActivationConfig):
    """Weights quantized beforehand, the range of activations taken from each batch. Needs no data.

    >>> DynamicQuantConfig().wanted.mode
    'dynamic'
    """

    _mode: ClassVar[str] = "dynamic"


@register_config("tensorflow", "smooth_quant")
class SmoothQuantConfig(StaticQuantConfig):
    """Static quantization after moving the outliers of activations into the weights.

    It goes first in a list with a :class:`StaticQuantConfig`, whose types count then; alone it has those of its own.
    ``alpha`` says how far outliers move, from 0 to 1, or "auto". ``op_types`` are the ops that are smoothed, by default
    ``Dense``, ``Conv1D`` and ``Conv2D``, of SavedModels ``MatMul`` and ``Conv2D``. ``scales_per_op`` gives ops
    that share an input scales of their own, ``folding`` lets the op before take them up.

    >>> SmoothQuantConfig(alpha=0.7).passes[0].options["alpha"]
    0.7
    """

    alpha: Annotated[float | str, one_or_more(smoothing_alpha)] = 0.5
    folding: Flag = True
    op_types: Annotated[tuple[str, ...], PlainValidator(lambda value: tuple(names(value)))] = ()
    scales_per_op: Flag = True

    @property
    def passes(self) -> tuple[Pass, ...]:
        """What is done to the whole model."""
        self.require_single()
        fields = ("alpha", "folding", "op_types", "scales_per_op")
        return (Pass("smooth", {name: getattr(self, name) for name in fields}),)


def get_default_static_quant_config() -> StaticQuantConfig:
    """Static int8, as the class has it."""
    return StaticQuantConfig()


def get_default_sq_config() -> SmoothQuantConfig:
    """Smoothed static int8, as the class has it."""
    return SmoothQuantConfig()


def get_all_config_set() -> list[ActivationConfig]:
    """Static int8 with ranges as they are and searched, smoothed, and dynamic int8."""
    return [
        StaticQuantConfig(),
        *(StaticQuantConfig(act_algorithm=name) for name in ("mse", "kl")),
        SmoothQuantConfig(),
        DynamicQuantConfig(),
    ]


def _ops(model: Any) -> dict[str, str]:
    from neural_compressor.tensorflow.quantization.model import ready_model

    adaptor, model = ready_model(model)
    return dict(adaptor.query_fw_capability(model)["opwise"].keys())


FRAMEWORK_QUERIES.add("tensorflow", FrameworkQueries(_ops, get_all_config_set))
