"""What a user asks of quantization-aware training."""

from __future__ import annotations

from pydantic import Field

from neural_compressor.config.base import ConfigModel
from neural_compressor.config.criteria import AccuracyCriterion, TuningCriterion
from neural_compressor.config.fields import (
    Backend,
    Device,
    ExcludedPrecisions,
    Names,
    OpNameRules,
    OpTypeRules,
    QuantLevel,
    ReduceRange,
    Text,
)


class QuantizationAwareTrainingConfig(ConfigModel):
    """How to quantize a model while it is trained.

    >>> QuantizationAwareTrainingConfig(reduce_range=True).reduce_range
    True
    """

    device: Device = "cpu"
    backend: Backend = "default"
    inputs: Names = Field(default_factory=list)
    outputs: Names = Field(default_factory=list)
    op_type_dict: OpTypeRules = Field(default_factory=dict)
    op_name_dict: OpNameRules = Field(default_factory=dict)
    reduce_range: ReduceRange = False
    model_name: Text = ""
    excluded_precisions: ExcludedPrecisions = ()
    quant_level: QuantLevel = "auto"
    accuracy_criterion: AccuracyCriterion = Field(default_factory=AccuracyCriterion)
    tuning_criterion: TuningCriterion = Field(default_factory=TuningCriterion)
