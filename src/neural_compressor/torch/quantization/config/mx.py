"""Weights and activations in MX blocks, elements with a shared scale."""

from __future__ import annotations

from typing import Annotated, Any

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import one_or_more, word
from neural_compressor.dtypes import DTYPES, dtype
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import Method, OpScheme, PerGroup, TensorScheme
from neural_compressor.torch.quantization.config.fields import Count, Flag, refuse_changed, spelled


def _dtypes(*known: str) -> Any:
    return spelled(known, lambda name: dtype(name).name)


ELEMENTS = ("int8", "int4", "int2", "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4", "float16", "bfloat16")
"""What the elements of a block can be; the last two leave the tensor without a scale."""
ROUNDINGS = ("nearest", "dither", "floor", "even")


Element = Annotated[str, one_or_more(_dtypes(*ELEMENTS))]


@register_config("torch", "mx_quant")
class MXQuantConfig(ComposableConfig):
    """Weights and activations in blocks of ``blocksize`` elements that share a scale, simulated in ``out_dtype``.

    >>> MXQuantConfig(w_dtype="fp4_e2m1").w_dtype
    'fp4'
    """

    w_dtype: Element = "int8"
    act_dtype: Element = "int8"
    out_dtype: Annotated[str, one_or_more(_dtypes("bfloat16", "float16", "float32"))] = "bfloat16"
    blocksize: Count = 32
    round_method: Annotated[str, one_or_more(word(ROUNDINGS))] = "nearest"
    weight_only: Flag = False

    @property
    def quantizes(self) -> bool:
        """Whether weights or activations are rounded to blocks at all."""
        return self.w_dtype not in _WHOLE or self.act_dtype not in _WHOLE

    @property
    def wanted(self) -> OpScheme:
        """How an op computes."""
        self.require_single()
        refuse_changed(self, "out_dtype", "blocksize")
        if self.round_method not in ("nearest", "even"):
            raise ConfigError(
                f"MXQuantConfig.round_method: got {self.round_method!r}, which is not run yet; values are rounded to the "
                "nearest, ties to even"
            )
        weight, activation = self._block("w_dtype"), self._block("act_dtype")
        if weight is None:
            raise ConfigError(
                f"MXQuantConfig.w_dtype: got {self.w_dtype!r}; with weights in float nothing gets smaller: use "
                "MixedPrecisionConfig for both, or a block type for the weight"
            )
        if self.weight_only or activation is None:
            return OpScheme(weight, mode="weight_only", method=Method("rtn"))
        return OpScheme(weight, activation, "dynamic")

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The fields of :attr:`wanted` that nothing else will do for: the data types."""
        wanted = self.wanted
        tensors = {"weight": wanted.weight, "activation": wanted.activation}
        return {(name, "dtype"): tensor.dtype.name for name, tensor in tensors.items() if tensor is not None}

    def _block(self, field: str) -> TensorScheme | None:
        """The blocks of a tensor; None where it stays in float."""
        name = getattr(self, field)
        if name in _WHOLE:
            return None
        if name not in _BLOCKS:
            raise ConfigError(
                f"MXQuantConfig.{field}: got {name!r}, of which there is no block format; {close_matches(name, _BLOCKS)}"
            )
        kind = dtype(_BLOCKS[name])
        return TensorScheme(kind, granularity=PerGroup(self.blocksize))


_WHOLE = ("float16", "bfloat16")
_BLOCKS = {name: f"mx{name}" for name in ELEMENTS if f"mx{name}" in DTYPES}
"""The block format of each type of element that has one."""
