"""The configuration of ops in half precision."""

from __future__ import annotations

from typing import Annotated, Any

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import one_or_more, word
from neural_compressor.schemes import OpScheme, float_op


@register_config("torch", "mixed_precision")
class MixedPrecisionConfig(ComposableConfig):
    """Ops in fp16 or bf16; ``fp32`` leaves them as they are.

    >>> [each.dtype for each in MixedPrecisionConfig(dtype=["fp16", "bf16"]).expand()]
    ['fp16', 'bf16']
    """

    dtype: Annotated[str, one_or_more(word(("fp16", "bf16", "fp32")))] = "fp16"

    @property
    def quantizes(self) -> bool:
        """Whether ops change at all."""
        return self.dtype != "fp32"

    @property
    def wanted(self) -> OpScheme:
        """How an op computes."""
        self.require_single()
        return float_op(self.dtype)

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The precision is all there is to say."""
        return {}
