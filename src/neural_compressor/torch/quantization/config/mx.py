"""The configuration of weights and activations in blocks of elements with a shared scale: OCP MX, and NVFP4."""

from __future__ import annotations

from typing import Annotated, Any

from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import one_or_more, word
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import Method, OpScheme, PerGroup, TensorScheme, float_op
from neural_compressor.torch.quantization.config.fields import (
    Count,
    Flag,
    FoldedHadamard,
    TorchConfig,
    spelled,
)


def _dtypes(*known: str) -> Any:
    return spelled(known, lambda name: dtype(name).name)


_WHOLE = ("float16", "bfloat16")
_NVFP4 = "nvfp4"
ELEMENTS = ("int8", "int4", "int2", "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4", _NVFP4, *_WHOLE)
"""What the elements of a block can be. With ``nvfp4`` 16 share a scale in fp8, and all of a tensor one in float32; float16
and bfloat16 leave a tensor without scales."""

_METHODS = {
    "minmax": Method("rtn"),
    "mse": Method("rtn", {"search": "mse"}),
    "gptq": Method("gptq"),
    "autoround": Method("autoround"),
}

Element = Annotated[str, one_or_more(_dtypes(*ELEMENTS))]


@register_config("torch", "mx_quant")
class MXQuantConfig(TorchConfig):
    """Weights and activations of linear layers in blocks of ``blocksize`` elements that share a scale, simulated.

    The scale is the power of two that OCP MX v1.0 has for the largest element (``"nvfp4"``, an addition, has fp8 scales, and
    for activations a float32 scale of each input). ``round_method`` says how elements are rounded: ``"even"`` and
    ``"nearest"`` differ in ties, which go to even digits or away from zero, ``"floor"`` cuts digits off, ``"dither"`` is
    stochastic and depends on nothing but the value and its place. Results are rounded to ``out_dtype`` and handed on in the
    type of the model. ``weight_only`` leaves activations as they are. A float16 or bfloat16 tensor is rounded to that type;
    with both, the layer computes in it.

    ``w_algo`` says how weights are found: ``"minmax"`` is the definition, ``"mse"`` searches the scales for the least error,
    ``"gptq"`` and ``"autoround"`` see calibration data, with their usual options. ``hadamard="folded"`` is that of
    :class:`RTNConfig`.

    >>> MXQuantConfig(w_dtype="fp4_e2m1").w_dtype, MXQuantConfig(w_dtype="nvfp4", act_dtype="nvfp4").blocksize
    ('fp4', 16)
    """

    w_dtype: Element = "int8"
    act_dtype: Element = "int8"
    out_dtype: Annotated[str, one_or_more(_dtypes("bfloat16", "float16", "float32"))] = "bfloat16"
    blocksize: Count = 32
    round_method: Annotated[str, one_or_more(word(("nearest", "dither", "floor", "even")))] = "nearest"
    weight_only: Flag = False
    w_algo: Annotated[str, one_or_more(word(tuple(_METHODS)))] = "minmax"
    hadamard: FoldedHadamard = False

    @property
    def quantizes(self) -> bool:
        """Always: 16-bit floats are a type of lower precision too."""
        return True

    @property
    def needs_calibration(self) -> bool:
        """Whether weights are found with data, or the model is changed as data shows it can be."""
        return any(each.w_algo in ("gptq", "autoround") or each.passes for each in self.alone().expand())

    @property
    def wanted(self) -> OpScheme:
        """How an op computes."""
        self.require_single()
        if self.w_dtype in _WHOLE and self.act_dtype in _WHOLE and not self.weight_only:
            return float_op(dtype(self.w_dtype).name)
        weight, activation = self._tensor(self.w_dtype), self._tensor(self.act_dtype)
        output = TensorScheme(dtype(self.out_dtype))
        method = _METHODS[self.w_algo]
        if self.w_algo == "gptq" and self.w_dtype != _NVFP4:
            method = Method("gptq", {"search": None})  # as GPTQConfig has it for powers of two
        if self.weight_only:
            return OpScheme(weight, mode="weight_only", method=method, output=output)
        return OpScheme(weight, activation, "dynamic", None if self.w_algo == "minmax" else method, output)

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The fields of :attr:`wanted` that nothing else will do for: the data types, and the method of a weight alone."""
        wanted = self.wanted
        tensors = {"weight": wanted.weight, "activation": wanted.activation}
        said = {(name, "dtype"): tensor.dtype.name for name, tensor in tensors.items() if tensor is not None}
        return said | ({("weight", "algorithm"): _METHODS[self.w_algo].name} if self.weight_only else {})

    def _tensor(self, element: str) -> TensorScheme:
        if element in _WHOLE:
            return TensorScheme(dtype(element))
        name = {"fp4": "mxfp4", _NVFP4: _NVFP4}.get(element, f"mx{element}")
        kind = dtype(name)
        kind = kind if kind.block_size == self.blocksize else dtype(f"{name}_b{self.blocksize}")
        return TensorScheme(kind, granularity=PerGroup(self.blocksize), rounding=self.round_method)

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        values = super()._settled(values, given)
        weight, activation = values["w_dtype"], values["act_dtype"]
        if values["weight_only"]:
            if weight in _WHOLE:
                raise ConfigError(
                    f"{cls.__name__}.w_dtype: got {weight!r}, and with weight_only nothing else would get smaller; use a "
                    "block type for the weight, or MixedPrecisionConfig"
                )
            if "act_dtype" in given and activation != cls.model_fields["act_dtype"].default:
                raise ConfigError(
                    f"{cls.__name__}.act_dtype: got {activation!r}, and weight_only leaves activations as they are; leave "
                    "one out"
                )
        elif weight in _WHOLE and activation in _WHOLE:
            if weight != activation:
                raise ConfigError(
                    f"{cls.__name__}.act_dtype: got {activation!r} beside w_dtype {weight!r}; a layer in float has one type"
                )
            return cls._with(values, {"out_dtype": weight}, given, f"a layer in {weight}")
        if _NVFP4 in (weight, None if values["weight_only"] else activation):
            values = cls._with(values, {"blocksize": 16}, given, _NVFP4)
        if values["w_algo"] != "minmax" and weight in _WHOLE:
            raise ConfigError(
                f"{cls.__name__}.w_algo: got {values['w_algo']!r}, and weights in {weight} have no scales"
            )
        if values["w_algo"] in ("gptq", "autoround"):
            values = cls._with(values, {"round_method": "even"}, given, f"w_algo {values['w_algo']!r}")
        return values
