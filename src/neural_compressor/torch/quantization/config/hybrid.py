"""Weights in few bits beside activations in 8-bit floats."""

from __future__ import annotations

from typing import Annotated, Any

from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import one_or_more
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_TOKEN, OpScheme, TensorScheme
from neural_compressor.torch.quantization.config.fields import Flag, spelled
from neural_compressor.torch.quantization.config.layerwise import GPTQConfig


@register_config("torch", "hybrid_gptq")
class HybridGPTQConfig(GPTQConfig):
    """GPTQ weights that are multiplied with inputs in fp8, each token with a scale of its own; simulated.

    The fields are those of :class:`GPTQConfig`; ``fp8_config`` is the type of inputs. Scales of weights are
    floats above zero: ``use_double_quant`` and ``use_full_range`` are for weights alone.

    >>> HybridGPTQConfig(bits=4, fp8_config="e5m2").wanted.activation.dtype.name
    'fp8_e5m2'
    """

    fp8_config: Annotated[str, one_or_more(spelled(("E4M3", "E5M2"), str.upper))] = "E4M3"
    use_full_range: Flag = False

    @property
    def algorithm(self) -> str:
        """The registered algorithm that finds the weights."""
        return "gptq"

    @property
    def wanted(self) -> OpScheme:
        """How an op computes."""
        if not self.quantizes:
            return super().wanted
        activation = TensorScheme(dtype(f"fp8_{self.fp8_config.lower()}"), granularity=PER_TOKEN)
        return self._beside(activation, "dynamic")

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The fields of :attr:`wanted` that nothing else will do for: all but the method, which the framework runs."""
        said = {place: value for place, value in super().said.items() if place != ("weight", "algorithm")}
        activation = self.wanted.activation
        return said if activation is None else {**said, ("activation", "dtype"): activation.dtype.name}

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        fixed = {"use_full_range": False, "use_double_quant": False}
        return cls._with(super()._settled(values, given), fixed, given, "a layer with fp8 inputs")
