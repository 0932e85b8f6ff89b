"""Binary floating-point formats, small (fp4 ... fp8, e8m0) and large (fp16, bf16, fp32)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from neural_compressor.errors import ConfigError

_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


@dataclass(frozen=True)
class FloatType:
    """Sign, exponent and mantissa bits, as the OCP and IEEE documents define them.

    ``specials`` says what the top exponent holds: ``"ieee"`` infinities and NaNs, ``"nan"`` one NaN a sign
    (OCP e4m3) or one in all (e8m0), ``"none"`` numbers only.

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
        if self.specials not in ("ieee", "nan", "none"):
            raise ConfigError(f"{self.name}: unknown specials {self.specials!r}; known: ieee, nan, none")
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

    @property
    def is_float(self) -> bool:
        return True

    @cached_property
    def exponent_bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1 if self.bias is None else self.bias

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

    @property
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
    def grid(self) -> tuple[float, ...]:
        """Every finite value once, ascending."""
        negative = tuple(-v for v in reversed(self.positive) if v) if self.signed else ()
        return negative + self.positive
