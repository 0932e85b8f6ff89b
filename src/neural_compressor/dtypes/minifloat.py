"""Binary floating-point formats, small (fp4 ... fp8, e8m0) and large (fp16, bf16, fp32)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from neural_compressor.dtypes.base import Binades, DType
from neural_compressor.errors import ConfigError

_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


@dataclass(frozen=True)
class FloatType(DType):
    """Sign, exponent and mantissa bits, as the OCP and IEEE documents define them.

    ``specials`` says what the top exponent holds: ``"ieee"`` infinities and NaNs, ``"nan"`` one NaN a sign
    (OCP e4m3) or one in all (e8m0), ``"none"`` numbers only, and so does ``"fnuz"``, whose one NaN has the code of the
    negative zero, which it lacks (its bias is one more than usual).

    >>> FloatType("fp4_e2m1", 2, 1, specials="none").grid[-3:]
    (3.0, 4.0, 6.0)
    """

    name: str
    exponent: int
    mantissa: int
    bias: int | None = None
    specials: str = "ieee"
    signed: bool = True
    subnormals: bool = True

    def __post_init__(self) -> None:
        if self.specials not in ("ieee", "nan", "none", "fnuz"):
            raise ConfigError(f"{self.name}: unknown specials {self.specials!r}; known: ieee, nan, none, fnuz")
        fewest = 2 if self.specials == "ieee" else 1
        if not fewest <= self.exponent <= 8 or not 0 <= self.mantissa <= 23:
            raise ConfigError(
                f"{self.name}: a float has {fewest} to 8 exponent bits and 0 to 23 mantissa bits, "
                f"not {self.exponent} and {self.mantissa}"
            )
        if self.max > _FLOAT32_MAX:
            raise ConfigError(f"{self.name} reaches {self.max:g}, beyond what a float32 can be; raise its bias")

    @property
    def bits(self) -> int:
        return int(self.signed) + self.exponent + self.mantissa

    @cached_property
    def needs_scale(self) -> bool:
        return self.bits < 16

    @cached_property
    def is_float32(self) -> bool:
        return (self.exponent, self.mantissa, self.signed) == (8, 23, True)

    @cached_property
    def exponent_bias(self) -> int:
        return (1 << (self.exponent - 1)) - (self.specials != "fnuz") if self.bias is None else self.bias

    @cached_property
    def max(self) -> float:
        """The largest finite value."""
        top = (1 << self.exponent) - 1
        fraction = 2.0 - 2.0**-self.mantissa
        if self.specials == "ieee":
            top -= 1
        elif self.specials == "nan":
            if self.mantissa == 0:
                top -= 1
            else:
                fraction -= 2.0**-self.mantissa
        return float(math.ldexp(fraction, top - self.exponent_bias))

    @cached_property
    def min(self) -> float:
        return -self.max if self.signed else self.positive[0]

    @cached_property
    def positive(self) -> tuple[float, ...]:
        """The values of the codes with sign bit 0 in code order, up to the largest finite one."""
        if self.bits > 16:
            raise ConfigError(f"{self.name} has too many values to list")
        values: list[float] = []
        for code in range(1 << (self.exponent + self.mantissa)):
            e, m = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
            if e == 0 and self.subnormals:
                value = math.ldexp(m / (1 << self.mantissa), 1 - self.exponent_bias)
            else:
                value = math.ldexp(1 + m / (1 << self.mantissa), e - self.exponent_bias)
            if value > self.max:
                break
            values.append(value)
        return tuple(values)

    @cached_property
    def code_values(self) -> tuple[float, ...]:
        half = 1 << (self.exponent + self.mantissa)
        positive = self.positive + (math.nan,) * (half - len(self.positive))
        negative = tuple(-value for value in positive)
        if self.specials == "fnuz":
            negative = (math.nan, *negative[1:])
        return positive + negative if self.signed else positive

    @cached_property
    def sign_magnitude(self) -> bool:
        return self.signed and self.specials != "fnuz"

    @cached_property
    def binades(self) -> Binades | None:
        lowest = 1 - self.exponent_bias
        # With less than two values to a power of two, or none below, even values do not have even codes.
        regular = self.sign_magnitude and self.mantissa > 0 and self.subnormals and lowest >= -126
        return Binades(lowest, self.mantissa) if regular else None

    @cached_property
    def unit(self) -> float:
        return math.ldexp(1.0, int(self.subnormals) - self.exponent_bias - self.mantissa)
