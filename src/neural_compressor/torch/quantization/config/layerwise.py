"""Configurations of weight-only algorithms that work layer by layer: RTN, GPTQ (beside fp8 inputs too), AWQ, TEQ, HQQ."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from neural_compressor.algorithms import AWQOptions, GPTQOptions, RTNOptions, TEQOptions
from neural_compressor.config.composition import register_config
from neural_compressor.config.validators import one_or_more
from neural_compressor.dtypes import dtype as registered
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PER_TOKEN, OpScheme, TensorScheme, in_groups
from neural_compressor.torch.quantization.config.fields import (
    FLOAT,
    Bits,
    Count,
    Flag,
    FoldedHadamard,
    Fraction,
    GroupDim,
    GroupSize,
    Hadamard,
    LayerMap,
    Path,
    ScaleSearch,
    WeightDtype,
    dtype_of,
    spelled,
)
from neural_compressor.torch.quantization.config.weight_only import (
    DoubleQuantConfig,
    WeightOnlyConfig,
    has_exponent_scales,
)

_GPTQ, _AWQ, _TEQ = GPTQOptions(), AWQOptions(), TEQOptions()


class RoundingConfig(DoubleQuantConfig):
    """The parameters that RTN, AWQ and TEQ share.

    ``use_full_range`` lets the scale of a symmetric signed integer be negative: the largest weight of a group, whatever its
    sign, gets the code that the negative side has more. Steps are finer and nothing is stored in addition, so it is on
    wherever there is such a code; a grid without one (asymmetric, nf4, ...) has nothing to switch.
    """

    group_dim: GroupDim = 1
    use_full_range: Flag = True
    use_mse_search: Flag = False
    use_layer_wise: Flag = True
    model_path: Path = ""
    use_double_quant: Flag = False
    double_quant_dtype: WeightDtype = "int"
    double_quant_bits: Bits = 8
    double_quant_use_sym: Flag = False
    double_quant_group_size: GroupSize = 256
    quant_lm_head: Flag = False


@register_config("torch", "rtn")
class RTNConfig(RoundingConfig):
    """Round to nearest: each weight goes to the closest value of its grid. Needs no data.

    ``scale_search`` narrows the range of each group to where the error is least: ``"mse"`` (``use_mse_search=True`` is
    the same), or ``"importance"``, which weighs inputs by calibration data. ``hadamard`` rotates the input side of the
    weight first: ``True`` turns inputs as the model runs; ``"folded"`` turns the residual stream and the values of heads
    once, by changing weights alone, and needs a batch of data on which that is proven.

    >>> config = RTNConfig(bits=[4, 8], group_size=128).set_local("lm_head", RTNConfig(dtype="fp32"))
    >>> [each.weight_scheme().dtype.name for each in config.expand()]
    ['int4', 'int8']
    """

    scale_search: ScaleSearch = "none"
    hadamard: Hadamard = RTNOptions().hadamard


@register_config("torch", "gptq")
class GPTQConfig(DoubleQuantConfig):
    """GPTQ: weights not yet rounded make up for the error of those that are.

    ``act_order`` takes the inputs with the largest activations first, ``hybrid_order`` does so group by group without
    moving weights between groups. ``block_size`` changes the speed only. Models are always worked on block by block:
    ``use_block_wise`` is another word for ``use_layer_wise``.

    Two additions to the published algorithm are on, because language models lose less with each: ``correct_upstream``
    makes a layer aim at the outputs of the float model, not at its own on inputs that already carry an error, and
    ``scale_search`` looks for the scales with the least loss. ``correct_upstream=False, scale_search="none"`` gives the
    algorithm as published. The scales of MX formats are powers of two, of which the largest weight of a block says which:
    others did worse, so they are not searched unless asked for. ``hadamard`` and ``use_full_range`` are those of
    :class:`RTNConfig`.

    Calibration data runs through the model in the type of its weights, as it does on ONNX models, which become the same
    codes. With ``amp`` it runs through blocks of float32 in bfloat16 where the device is fast at it.
    """

    use_mse_search: Flag = False
    use_layer_wise: Flag = False
    use_block_wise: Flag = False
    model_path: Path = ""
    use_double_quant: Flag = False
    double_quant_dtype: WeightDtype = "int"
    double_quant_bits: Bits = 8
    double_quant_use_sym: Flag = False
    double_quant_group_size: GroupSize = 256
    act_order: Flag = _GPTQ.act_order
    hybrid_order: Flag = _GPTQ.hybrid_order
    percdamp: Fraction = _GPTQ.percdamp
    block_size: Count = 2048
    static_groups: Flag = _GPTQ.static_groups
    true_sequential: Flag = _GPTQ.true_sequential
    quant_lm_head: Flag = False
    correct_upstream: Flag = _GPTQ.upstream
    scale_search: ScaleSearch = _GPTQ.search or "none"
    hadamard: Hadamard = _GPTQ.hadamard
    use_full_range: Flag = True
    amp: Flag = _GPTQ.amp

    def __init__(self, *args: Any, **values: Any) -> None:
        if values.pop("fp8_aware", False):
            raise ConfigError(
                f"{type(self).__name__}.fp8_aware: 4-bit weights beside fp8 inputs are HybridGPTQConfig()"
            )
        super().__init__(*args, **values)

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        values = super()._settled(values, given)
        if (
            values["dtype"] != FLOAT
            and "scale_search" not in given
            and has_exponent_scales(values["dtype"], values["bits"])
        ):
            values = {**values, "scale_search": "none"}
        if not (values["act_order"] and values["hybrid_order"]):
            return values
        if {"act_order", "hybrid_order"} <= given:
            raise ConfigError(
                f"{cls.__name__}: act_order and hybrid_order are two orders of the same inputs; choose one"
            )
        return {**values, "hybrid_order": False}


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
        activation = TensorScheme(registered(f"fp8_{self.fp8_config.lower()}"), granularity=PER_TOKEN)
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


@register_config("torch", "awq")
class AWQConfig(RoundingConfig):
    """AWQ: inputs that carry large activations are scaled up before rounding, and the layer before them scaled down.

    ``use_auto_scale`` searches the scales, ``use_auto_clip`` (or ``use_mse_search``) then the ranges. ``folding`` lets the
    normalisation before take the scales in, and leaves them out where there is none; without it they are applied to the
    input at run time. ``absorb_layer_dict`` lists layers by the normalisation that takes in their scale, where watching
    the model run does not find it; without ``folding`` another layer may stand there, and scales are applied at run time.
    ``amp`` is that of :class:`GPTQConfig`. ``hadamard="folded"`` is that of :class:`RTNConfig`, for every algorithm.
    """

    use_layer_wise: Flag = False
    double_quant_use_sym: Flag = True
    use_auto_scale: Flag = _AWQ.auto_scale
    use_auto_clip: Flag = _AWQ.auto_clip
    folding: Flag = _AWQ.folding
    absorb_layer_dict: LayerMap = Field(default_factory=dict)
    amp: Flag = _AWQ.amp
    hadamard: FoldedHadamard = False


@register_config("torch", "teq")
class TEQConfig(RoundingConfig):
    """TEQ: scales of the inputs as in AWQ, trained by gradient descent.

    ``absorb_to_layer`` and ``folding`` are the ``absorb_layer_dict`` and ``folding`` of :class:`AWQConfig`;
    ``use_mse_search`` searches the ranges too. ``amp`` is that of :class:`GPTQConfig`, and on.
    """

    use_layer_wise: Flag = False
    double_quant_use_sym: Flag = True
    absorb_to_layer: LayerMap = Field(default_factory=dict)
    folding: Flag = True
    amp: Flag = _TEQ.amp
    hadamard: FoldedHadamard = False


@register_config("torch", "hqq")
class HQQConfig(WeightOnlyConfig):
    """HQQ: zero points are fitted so that a few weights far off cost little. Needs no data; always asymmetric.

    ``quant_zero`` and ``quant_scale`` store the zero points and the scales in 8 bits, the scales in groups of
    ``scale_quant_group_size``.
    """

    group_size: GroupSize = 64
    quant_zero: Flag = True
    quant_scale: Flag = False
    scale_quant_group_size: GroupSize = 128
    quant_lm_head: Flag = False
    hadamard: FoldedHadamard = False

    def _parameters(self) -> tuple[TensorScheme | None, TensorScheme | None]:
        in_runs = TensorScheme(registered("uint8"), False, in_groups(self.scale_quant_group_size))
        return in_runs if self.quant_scale else None, in_runs if self.quant_zero else None

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        values = super()._settled(values, given)
        if values["dtype"] != FLOAT and not dtype_of(values["dtype"], values["bits"]).is_integer:
            raise ConfigError(
                f"{cls.__name__}.dtype: got {values['dtype']!r}, expected an integer type: HQQ fits zero points, and only "
                "integers have them"
            )
        return values
