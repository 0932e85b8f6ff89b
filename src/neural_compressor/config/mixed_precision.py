"""What a user asks of mixed precision."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

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
    mixed_precisions,
)


class MixedPrecisionConfig(ConfigModel):
    """How to run parts of a model in bf16 or fp16.

    >>> MixedPrecisionConfig(precisions=["fp16", "bf16"]).precisions
    ('fp16', 'bf16')
    """

    device: Device = "cpu"
    backend: Backend = "default"
    precisions: Annotated[tuple[str, ...], BeforeValidator(mixed_precisions)] = ("bf16",)
    inputs: Names = Field(default_factory=list)
    outputs: Names = Field(default_factory=list)
    quant_level: QuantLevel = "auto"
    tuning_criterion: TuningCriterion = Field(default_factory=TuningCriterion)
    accuracy_criterion: AccuracyCriterion = Field(default_factory=AccuracyCriterion)
    excluded_precisions: ExcludedPrecisions = ()
    op_type_dict: OpTypeRules = Field(default_factory=dict)
    op_name_dict: OpNameRules = Field(default_factory=dict)
    example_inputs: Any = None
