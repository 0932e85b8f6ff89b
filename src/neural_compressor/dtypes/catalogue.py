"""The registry of data types and everything that is in it from the start."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import NormalDist

from neural_compressor.dtypes.base import DType
from neural_compressor.dtypes.block import BlockType
from neural_compressor.dtypes.codebook import CodebookType
from neural_compressor.dtypes.integer import IntType
from neural_compressor.dtypes.minifloat import FloatType
from neural_compressor.errors import ConfigError
from neural_compressor.registry import Registry

_OTHER_BLOCKS = re.compile(r"(\w+)_b([1-9]\d{0,5})")


class _DataTypes(Registry[DType]):
    """Data types by name. Of each block format there are those with other blocks: ``mxfp4_b16`` has 16 values to a scale."""

    def __getitem__(self, name: str) -> DType:
        return self._in_other_blocks(name) or super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self._in_other_blocks(name) is not None

    def _in_other_blocks(self, name: object) -> DType | None:
        found = _OTHER_BLOCKS.fullmatch(name) if isinstance(name, str) and not super().__contains__(name) else None
        kind = super().__getitem__(found[1]) if found is not None and super().__contains__(found[1]) else None
        return None if found is None or not isinstance(kind, BlockType) else in_blocks_of(kind, int(found[2]))


def in_blocks_of(kind: BlockType, size: int) -> BlockType:
    """The format ``kind`` with ``size`` values to a scale."""
    return kind if size == kind.block else replace(kind, name=f"{kind.name}_b{size}", block=size)


DTYPES: Registry[DType] = _DataTypes("data type", entry_point_group="neural_compressor.dtypes")


def register_dtype(dtype: DType, *aliases: str, replace: bool = False) -> DType:
    """Make ``dtype`` known by its name everywhere: configs, framework YAML, algorithms, reports.

    >>> register_dtype(CodebookType("doc_ternary", (-1.0, 0.0, 1.0))).bits
    2
    """
    if not isinstance(dtype, DType):
        raise ConfigError(f"got {dtype!r}, expected a value of a class derived from neural_compressor.dtypes.DType")
    if type(dtype).code_values is DType.code_values:
        raise ConfigError(
            f"data type {dtype.name!r}: its class {type(dtype).__name__} does not say what codes stand for; give it "
            "the property code_values"
        )
    return DTYPES.add(dtype.name, dtype, aliases, replace=replace)


def dtype(name: str | DType) -> DType:
    """The data type called ``name``.

    >>> dtype("uint3")
    IntType(bits=3, signed=False)
    >>> dtype("mxfp4").block_size, dtype("mxfp4_b16").block_size
    (32, 16)
    """
    return DTYPES[name] if isinstance(name, str) else name


def _normal_float(bits: int) -> tuple[float, ...]:
    """NormalFloat (QLoRA, appendix E): quantiles of N(0, 1), an exact zero, one more value on the positive side."""
    offset = 0.5 * (1 / (2 * (1 << bits)) + 1 / (2 * ((1 << bits) - 1)))
    quantile, half = NormalDist().inv_cdf, 1 << (bits - 1)

    def side(count: int) -> list[float]:
        step = (0.5 - offset) / count
        return [quantile(1 - offset - i * step) for i in range(count)]

    top = side(half)
    values = [-v for v in side(half - 1)] + [0.0] + top[::-1]
    peak = max(abs(v) for v in values)
    return tuple(sorted(v / peak for v in values))


for _bits in range(1, 17):
    register_dtype(IntType(_bits))
    register_dtype(IntType(_bits, signed=False))

fp32 = FloatType("fp32", 8, 23)
bf16 = FloatType("bf16", 8, 7)
fp16 = FloatType("fp16", 5, 10)
fp8_e4m3 = FloatType("fp8_e4m3", 4, 3, specials="nan")
fp8_e5m2 = FloatType("fp8_e5m2", 5, 2)
fp8_e4m3fnuz = FloatType("fp8_e4m3fnuz", 4, 3, specials="fnuz")
fp8_e5m2fnuz = FloatType("fp8_e5m2fnuz", 5, 2, specials="fnuz")
fp6_e3m2 = FloatType("fp6_e3m2", 3, 2, specials="none")
fp6_e2m3 = FloatType("fp6_e2m3", 2, 3, specials="none")
fp4_e2m1 = FloatType("fp4_e2m1", 2, 1, specials="none")
e8m0 = FloatType("e8m0", 8, 0, bias=127, specials="nan", signed=False, subnormals=False)
nf4 = CodebookType("nf4", _normal_float(4))
# bitsandbytes' FP4: sign bit and eight magnitudes k/12 (the sub-normal 0.0625/12 is its own).
fp4_e2m1_bnb = CodebookType(
    "fp4_e2m1_bnb",
    tuple(sorted({s * m / 12 + 0.0 for s in (-1, 1) for m in (0.0, 0.0625, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)})),
)

register_dtype(fp32, "float32", "float")
register_dtype(bf16, "bfloat16")
register_dtype(fp16, "float16")
register_dtype(fp8_e4m3, "fp8", "fp8_e4m3fn")
register_dtype(fp8_e5m2)
register_dtype(fp8_e4m3fnuz)
register_dtype(fp8_e5m2fnuz)
register_dtype(fp6_e3m2, "fp6")
register_dtype(fp6_e2m3)
register_dtype(fp4_e2m1, "fp4")
register_dtype(e8m0)
register_dtype(nf4)
register_dtype(fp4_e2m1_bnb)
for _element, _aliases in (
    (fp8_e4m3, ("mxfp8",)),
    (fp8_e5m2, ()),
    (fp6_e3m2, ("mxfp6",)),
    (fp6_e2m3, ()),
):
    register_dtype(BlockType(f"mx{_element.name}", _element, 32, e8m0), *_aliases)
register_dtype(BlockType("mxfp4", fp4_e2m1, 32, e8m0), "mxfp4_e2m1")
for _bits in (8, 4, 2):
    # OCP MX takes these integers for fixed-point numbers below 2, and a stored scale is that of them: steps are smaller.
    _steps = replace(e8m0, name=f"e8m0_int{_bits}", bias=127 + _bits - 2)
    register_dtype(BlockType(f"mxint{_bits}", IntType(_bits), 32, _steps))
register_dtype(BlockType("nvfp4", fp4_e2m1, 16, fp8_e4m3, tensor_scale=True))
