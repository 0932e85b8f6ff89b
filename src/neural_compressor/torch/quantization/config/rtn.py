"""Round to nearest."""

from __future__ import annotations

from neural_compressor.config.composition import register_config
from neural_compressor.torch.quantization.config.double_quant import DoubleQuantConfig
from neural_compressor.torch.quantization.config.fields import (
    Bits,
    Flag,
    GroupDim,
    GroupSize,
    Path,
    ScaleSearch,
    WeightDtype,
)


class RoundingConfig(DoubleQuantConfig):
    """The parameters that RTN, AWQ and TEQ share.

    ``use_full_range`` lets the scale of a symmetric signed integer be negative: the largest weight of a group, whatever its
    sign, gets the code that the negative side has more. Steps are finer and nothing is stored in addition, so it is on
    wherever there is such a code; a grid without one (asymmetric, nf4, ...) has nothing to switch.
    """

    dtype: WeightDtype = "int"
    bits: Bits = 4
    use_sym: Flag = True
    group_size: GroupSize = 32
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
    weight first, which helps at 2 and 3 bits.

    >>> config = RTNConfig(bits=[4, 8], group_size=128).set_local("lm_head", RTNConfig(dtype="fp32"))
    >>> [each.weight_scheme().dtype.name for each in config.expand()]
    ['int4', 'int8']
    """

    scale_search: ScaleSearch = "none"
    hadamard: Flag = False

    @property
    def needs_calibration(self) -> bool:
        """Only where inputs are weighed by data."""
        return self.scale_search == "importance"
