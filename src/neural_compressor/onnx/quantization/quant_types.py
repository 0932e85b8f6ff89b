"""Names for data types, graph formats and calibration methods, those of ONNX Runtime's own quantization."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import onnx

from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches

E = TypeVar("E", bound="NamedChoice")


class NamedChoice(Enum):
    """A choice known by its name; values are those of the enumeration of the same name in ``onnxruntime.quantization``."""

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    @classmethod
    def from_string(cls: type[E], name: str) -> E:
        """The member called ``name``."""
        return choice(cls)(name)


class QuantType(NamedChoice):
    """The data type of a quantized tensor.

    >>> QuantType.QUInt8.dtype, QuantType.from_string("QInt4").dtype
    ('uint8', 'int4')
    """

    QInt8 = 0
    QUInt8 = 1
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6

    @property
    def dtype(self) -> str:
        """The name of the data type in :mod:`neural_compressor.dtypes`."""
        return self.name[1:].lower()

    @property
    def signed(self) -> bool:
        """Whether it has negative values."""
        return not self.dtype.startswith("u")

    @property
    def tensor_type(self) -> int:
        """The number ONNX has for it."""
        return int(getattr(onnx.TensorProto, self.dtype.upper()))


class QuantFormat(NamedChoice):
    """Quantized operators, or float operators between QuantizeLinear and DequantizeLinear."""

    QOperator = 0
    QDQ = 1


class CalibrationMethod(NamedChoice):
    """How the range of an activation is taken from what calibration saw."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    MSE = 4

    @property
    def observer(self) -> str:
        """The name of the range estimator in :mod:`neural_compressor.observers`."""
        return {"Entropy": "kl"}.get(self.name, self.name.lower())


_SPELLINGS = {"kl": "entropy"}
_DTYPES = {member.dtype: member.name for member in QuantType}


def choice(kind: type[E]) -> Callable[[Any], E]:
    """A validator that admits members of ``kind``, ONNX Runtime's of the same name, and names in any case.

    >>> choice(CalibrationMethod)("kl"), choice(QuantType)("uint8")
    (CalibrationMethod.Entropy, QuantType.QUInt8)
    """
    by_name = {member.name.lower(): member for member in kind}

    def check(value: Any) -> E:
        if isinstance(value, kind):
            return value
        same_enum = isinstance(value, Enum) and type(value).__name__ == kind.__name__
        name = value.name if same_enum else value
        if isinstance(name, str):
            low = name.lower()
            spelled = _DTYPES.get(low, low) if kind is QuantType else _SPELLINGS.get(low, low)
            if spelled.lower() in by_name:
                return by_name[spelled.lower()]
        known = [member.name for member in kind]
        raise ConfigError(f"got {value!r}; {close_matches(str(name), known)}")

    return check
