"""Schemes: how tensors and ops are mapped to data types, as plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from neural_compressor.dtypes import DType, dtype, fp32
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes.granularity import (
    GRANULARITIES,
    PER_CHANNEL,
    PER_TENSOR,
    PER_TOKEN,
    Granularity,
    PerBlock,
    PerChannel,
    PerGroup,
    PerTensor,
)
from neural_compressor.schemes.method import Method
from neural_compressor.schemes.rounding import ROUNDINGS
from neural_compressor.schemes.scaling import Scaling

MODES = ("static", "dynamic", "weight_only", "float")
RTN = Method("rtn")
"""Round to nearest: how a weight is quantized where nothing else is said."""
RANGES = ("minmax", "moving_average", "percentile", "kl", "mse")
"""Estimators of ranges; any other algorithm of a weight that is quantized alone is a method."""
_TENSOR_FIELDS = (
    "dtype",
    "scheme",
    "granularity",
    "algorithm",
    "group_size",
    "block_size",
    "axis",
    "bits",
    "reduce_range",
    "pair_safe",
    "scales",
    "zeros",
    "rounding",
    "scaling",
    "quant_mode",
)


@dataclass(frozen=True)
class TensorScheme:
    """A data type with the way values are mapped to it; ``algorithm`` is how their range is estimated.

    ``scales`` says how the scales themselves are stored, ``zeros`` how zero points that are no integers are: as codes in
    one long row. Where they are None that is as floats. ``pair_safe`` int8 weights give the same on every x86 CPU: where
    kernels add two products in 16 bits, no two neighbours of the same sign are so large that these overflow. ``rounding`` is
    one of :data:`~neural_compressor.schemes.rounding.ROUNDINGS`; other than ties to even is for block formats.
    ``scaling`` says how scales of types that are no integers follow from magnitudes; None is the largest over that of the
    type.

    >>> TensorScheme.from_dict({"dtype": "int4", "scheme": "sym", "granularity": "per_channel"}).dtype.name
    'int4'
    """

    dtype: DType
    symmetric: bool = True
    granularity: Granularity = PER_TENSOR
    algorithm: str = "minmax"
    reduce_range: bool = False
    pair_safe: bool = False
    scales: TensorScheme | None = None
    zeros: TensorScheme | None = None
    rounding: str = "even"
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        if self.rounding not in ROUNDINGS:
            raise ConfigError(f"unknown rounding {self.rounding!r}; {close_matches(str(self.rounding), ROUNDINGS)}")
        element = self.dtype.element_type
        regular = element.is_integer or element.binades is not None
        if self.rounding != "even" and (self.dtype.scale_type is None or not regular):
            raise ConfigError(
                f"rounding {self.rounding!r} is for block formats of integers and floats (mxint8, mxfp4, nvfp4, ...); "
                f"{self.dtype.name} is rounded to the nearest value, ties to even"
            )
        if self.scaling is not None and (self.dtype.is_integer or self.dtype.scale_type is not None or self.is_float):
            raise ConfigError(f"{self.dtype.name} has scales of its own kind; a scaling is for floats and codebooks")

    def __str__(self) -> str:
        """A line for people: what differs from the usual is named, and ``repr`` has all of it.

        >>> print(TensorScheme(dtype("int4"), symmetric=False, granularity=PerGroup(32)))
        int4 asym per_group 32
        """
        data = self.to_dict()
        if not self.dtype.is_integer:
            data.pop("scheme", None)
        if self.algorithm == "minmax":
            data.pop("algorithm", None)
        words = [data.pop(name, "") for name in ("dtype", "scheme", "granularity", "group_size", "block_size")]
        words += [f"{name}={_in_brief(value)}" for name, value in data.items()]
        return " ".join(str(word) for word in words if word != "")

    @property
    def is_float(self) -> bool:
        """Whether values stay floating point without a scale (fp32, bf16, fp16)."""
        return not self.dtype.needs_scale

    @property
    def has_zero_point(self) -> bool:
        """Whether zero points are stored: those of symmetric signed integers are zero, and other types have none."""
        return self.dtype.is_integer and not (self.symmetric and self.dtype.signed)

    def to_dict(self) -> dict[str, Any]:
        """The form used in framework YAML, rule dicts and journals."""
        if self.is_float:
            return {"dtype": self.dtype.name}
        out: dict[str, Any] = {
            "dtype": self.dtype.name,
            "scheme": "sym" if self.symmetric else "asym",
            "granularity": self.granularity.name,
            "algorithm": self.algorithm,
        }
        if isinstance(self.granularity, PerGroup):
            out["group_size"] = self.granularity.size
        if isinstance(self.granularity, PerBlock):
            out["block_size"] = [self.granularity.rows, self.granularity.columns]
        if isinstance(self.granularity, PerChannel) and self.granularity.axis:
            out["axis"] = self.granularity.axis
        if self.reduce_range:
            out["reduce_range"] = True
        if self.pair_safe:
            out["pair_safe"] = True
        if self.rounding != "even":
            out["rounding"] = self.rounding
        nested = {"scales": self.scales, "zeros": self.zeros, "scaling": self.scaling}
        return out | {name: scheme.to_dict() for name, scheme in nested.items() if scheme is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TensorScheme:
        """Read what :meth:`to_dict` writes; unknown fields and values are errors."""
        for field in data:
            if field not in _TENSOR_FIELDS:
                raise ConfigError(f"unknown field {field!r} of a tensor scheme; {close_matches(field, _TENSOR_FIELDS)}")
        name = data.get("dtype", "fp32")
        kind = dtype(f"{name}{data['bits']}" if name in ("int", "uint") and "bits" in data else name)
        scheme = data.get("scheme", "sym")
        if scheme not in ("sym", "asym"):
            raise ConfigError(f"unknown scheme {scheme!r}; known: sym, asym")
        return cls(
            dtype=kind,
            symmetric=scheme == "sym",
            granularity=_granularity(data),
            algorithm=data.get("algorithm", "minmax"),
            reduce_range=bool(data.get("reduce_range", False)),
            pair_safe=bool(data.get("pair_safe", False)),
            rounding=data.get("rounding", "even"),
            **{name: cls.from_dict(data[name]) for name in ("scales", "zeros") if name in data},
            scaling=Scaling.from_dict(data["scaling"]) if "scaling" in data else None,
        )


def _in_brief(value: Any) -> str:
    return f"({', '.join(map(str, value.values()))})" if isinstance(value, Mapping) else str(value)


def _granularity(data: Mapping[str, Any]) -> Granularity:
    size = data.get("group_size")
    name = data.get("granularity", "per_tensor" if size is None else "per_group")
    if name == "per_tensor":
        return PER_TENSOR
    if name == "per_channel" or (name == "per_group" and size == -1):
        return PerChannel(data["axis"]) if data.get("axis") else PER_CHANNEL
    if name == "per_group":
        if not isinstance(size, int) or size < 1:
            raise ConfigError(
                f"granularity per_group needs a positive group_size (or -1 for per channel), got {size!r}"
            )
        return PerGroup(size)
    if name == "per_token":
        return PER_TOKEN
    if name == "per_block":
        sizes = data.get("block_size", [PerBlock.rows, PerBlock.columns])
        if not isinstance(sizes, (list, tuple)) or len(sizes) != 2 or not all(type(n) is int and n > 0 for n in sizes):
            raise ConfigError(f"granularity per_block has a block_size of [rows, columns], got {sizes!r}")
        return PerBlock(*sizes)
    raise ConfigError(f"unknown granularity {name!r}; {close_matches(str(name), GRANULARITIES)}")


@dataclass(frozen=True)
class OpScheme:
    """How one op computes: the scheme of its weight, of its activation input, and when ranges are known.

    ``weight`` is None for an op without a weight; ``activation`` is None where the input stays in float. ``method`` says how
    the weight is found; None is rounding to nearest over its range. Where a weight-only scheme is given without one, a
    weight whose ``algorithm`` names a method instead of a range says it.
    ``output`` is the float type that results are rounded to; None leaves them as they are computed.

    >>> OpScheme(TensorScheme(dtype("int4"), algorithm="gptq"), mode="weight_only").method.name
    'gptq'
    """

    weight: TensorScheme | None = None
    activation: TensorScheme | None = None
    mode: str = "float"
    method: Method | None = None
    output: TensorScheme | None = None

    def __post_init__(self) -> None:
        if self.output is not None and not self.output.is_float:
            raise ConfigError(f"the output of an op is rounded to a float type, not to {self.output.dtype.name}")
        if self.mode not in MODES:
            raise ConfigError(f"unknown quantization mode {self.mode!r}; {close_matches(self.mode, MODES)}")
        if self.method is not None and (self.mode == "float" or (self.weight is None and self.mode != "weight_only")):
            raise ConfigError(
                f"the method {self.method} finds a quantized weight, and the op has none (mode {self.mode!r})"
            )
        if self.mode != "weight_only":
            self._check_rounding()
            return
        if self.weight is not None and self.weight.algorithm not in RANGES:
            named = self.weight.algorithm.lower()
            object.__setattr__(self, "weight", replace(self.weight, algorithm="minmax"))
            object.__setattr__(self, "method", self.method or Method(named))
        object.__setattr__(self, "method", self.method or RTN)
        self._check_rounding()

    def _check_rounding(self) -> None:
        special = self.weight is not None and self.weight.rounding != "even"
        if (
            self.weight is not None
            and special
            and self.method is not None
            and self.method.name not in (RTN.name, "qat")
        ):
            raise ConfigError(
                f"the method {self.method} chooses codes itself, and the weight is to be rounded {self.weight.rounding!r}; "
                "use rtn, or ties to even"
            )

    def __str__(self) -> str:
        """A line for people.

        >>> print(OpScheme(TensorScheme(dtype("int8")), TensorScheme(dtype("uint8"), symmetric=False), "static"))
        static, weight int8 sym per_tensor, input uint8 asym per_tensor
        """
        if self.is_float:
            return self.precision
        parts = {"weight": self.weight, "input": self.activation, "output": self.output}
        words = [f"{name} {tensor}" for name, tensor in parts.items() if tensor is not None]
        return ", ".join([self.mode, *words, *([f"by {self.method}"] if self.method is not None else [])])

    @property
    def is_float(self) -> bool:
        """Whether the op stays in a floating-point precision (fp32, bf16 or fp16)."""
        return self.mode == "float"

    @property
    def precision(self) -> str:
        """The name a table shows: the weight's data type, or the activation's where there is no weight."""
        tensor = self.weight or self.activation
        return tensor.dtype.name if tensor else "fp32"

    def to_dict(self) -> dict[str, Any]:
        """The seed form: ``{'weight': {...}, 'activation': {..., 'quant_mode': 'static'}}``, and the ``'method'`` if any."""
        out: dict[str, Any] = {}
        if self.weight is not None:
            out["weight"] = self.weight.to_dict()
        activation = self.activation or TensorScheme(fp32)
        out["activation"] = activation.to_dict()
        if not self.is_float:
            out["activation"]["quant_mode"] = self.mode
        if self.method is not None:
            out["method"] = self.method.to_dict()
        if self.output is not None:
            out["output"] = self.output.to_dict()
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OpScheme:
        """Read what :meth:`to_dict` writes (and the dicts the framework YAML yields, once scalar).

        A method may also be named as the ``algorithm`` of a weight that is quantized alone.
        """
        weight = TensorScheme.from_dict(data["weight"]) if data.get("weight") else None
        act_data = dict(data.get("activation") or {})
        mode = act_data.pop("quant_mode", None)
        activation = TensorScheme.from_dict(act_data) if act_data else None
        all_float = all(t is None or t.is_float for t in (weight, activation))
        if mode is None:
            mode = "float" if all_float else "weight_only" if activation is None or activation.is_float else "static"
        if mode != "float" and activation is not None and activation.is_float:
            # In 16 bits beside a quantized weight inputs are rounded when the op runs.
            activation = None if mode == "weight_only" or activation.dtype.is_float32 else activation
        method = Method.from_dict(data["method"]) if data.get("method") else None
        output = TensorScheme.from_dict(data["output"]) if data.get("output") else None
        return cls(weight=weight, activation=activation, mode=mode, method=method, output=output)


def float_op(name: str = "fp32", has_weight: bool = True) -> OpScheme:
    """An op kept in the floating-point precision ``name``."""
    scheme = TensorScheme(dtype(name))
    return OpScheme(weight=scheme if has_weight else None, activation=scheme, mode="float")


def reduced(scheme: TensorScheme) -> TensorScheme:
    """The same scheme on one bit less of its integer type."""
    return replace(scheme, reduce_range=True, pair_safe=False) if scheme.dtype.is_integer else scheme


def any_cpu_weight(scheme: TensorScheme) -> TensorScheme:
    """The scheme of a weight that no x86 kernel saturates on: 8 bits safe in pairs where it is symmetric, else 7 bits.

    Other types, which are not multiplied as 8-bit integers, are left as they are.

    >>> any_cpu_weight(TensorScheme(dtype("int8"))).pair_safe
    True
    """
    if not scheme.dtype.is_integer or scheme.dtype.bits != 8 or scheme.reduce_range:
        return scheme
    if scheme.symmetric and scheme.dtype.signed and isinstance(scheme.granularity, (PerTensor, PerChannel)):
        return replace(scheme, pair_safe=True)
    return reduced(scheme)


def any_cpu_op(scheme: OpScheme) -> OpScheme:
    """``scheme`` with a weight on which no x86 kernel that adds products of 8-bit integers in pairs overflows.

    >>> any_cpu_op(OpScheme(TensorScheme(dtype("int8")), TensorScheme(dtype("uint8")), "static")).weight.pair_safe
    True
    """
    weight, activation = scheme.weight, scheme.activation
    if weight is None or weight.dtype.name != "int8" or activation is None:
        return scheme
    return replace(scheme, weight=any_cpu_weight(weight)) if activation.dtype.name in ("uint8", "int8") else scheme
