"""Block formats with a shared power-of-two scale (OCP MX)."""

from __future__ import annotations

from typing import Annotated, Any

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import register_config
from neural_compressor.config.parameter_space import one_or_more
from neural_compressor.config.words import word
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.torch.quantization.config.fields import Count, Flag

ELEMENTS = ("int8", "int4", "int2", "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4", "float16", "bfloat16")
"""What the elements of a block can be; the last two leave the tensor without a scale."""
ROUNDINGS = ("nearest", "dither", "floor", "even")


def _named(known: tuple[str, ...]) -> Any:
    """A validator that admits the types in ``known`` in any registered spelling, and keeps the one listed."""
    listed = {dtype(name).name: name for name in known}

    def check(value: Any) -> str:
        try:
            found = listed.get(dtype(value).name) if isinstance(value, str) else None
        except ConfigError:
            found = None  # the message below names what is known here, not every data type
        if found is None:
            raise ConfigError(f"got {value!r}; {close_matches(str(value), known)}")
        return found

    return check


Element = Annotated[str, one_or_more(_named(ELEMENTS))]


@register_config("torch", "mx_quant")
class MXQuantConfig(ComposableConfig):
    """Weights and activations in blocks of ``blocksize`` elements that share a scale, simulated in ``out_dtype``.

    >>> MXQuantConfig(w_dtype="fp4_e2m1").w_dtype
    'fp4'
    """

    w_dtype: Element = "int8"
    act_dtype: Element = "int8"
    out_dtype: Annotated[str, one_or_more(_named(("bfloat16", "float16", "float32")))] = "bfloat16"
    blocksize: Count = 32
    round_method: Annotated[str, one_or_more(word(ROUNDINGS))] = "nearest"
    weight_only: Flag = False
