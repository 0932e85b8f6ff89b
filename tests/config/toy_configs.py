"""Two configuration classes of an imaginary framework."""

from __future__ import annotations

from typing import Annotated, Any

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import flag, group_size, one_or_more, whole_between, word
from neural_compressor.errors import ConfigError

Bits = Annotated[int, one_or_more(whole_between(1, 8, "bits"))]
Flag = Annotated[bool, one_or_more(flag)]


@register_config("toy", "alpha")
class Alpha(ComposableConfig):
    """``kind`` "byte" has 8 bits, whatever else is said."""

    kind: Annotated[str, one_or_more(word(("int", "byte")))] = "int"
    bits: Bits = 4
    sym: Flag = True
    size: Annotated[int, one_or_more(group_size)] = 32

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        if values["kind"] == "int":
            return values
        if "bits" in given and values["bits"] != 8:
            raise ConfigError("Alpha.bits: a byte has 8 bits")
        return {**values, "bits": 8}


@register_config("toy", "beta")
class Beta(ComposableConfig):
    bits: Bits = 4
    fast: Flag = False


@register_config("other", "beta")
class OtherBeta(ComposableConfig):
    bits: Bits = 4
