"""Configurations whose fields describe the weight and the activation of an op, each by itself."""

from __future__ import annotations

from typing import Any, ClassVar

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.dtypes import DType, dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import OpScheme, TensorScheme

_GROUP = 128
"""The size of groups of activations, which are what blocks of weights are multiplied with."""


class TensorFieldsConfig(ComposableConfig):
    """Schemes from fields such as ``act_dtype`` and ``weight_sym``, which a framework lists and may call otherwise."""

    _weight: ClassVar[str] = "weight"
    _algorithm: ClassVar[str] = "algorithm"
    _mode: ClassVar[str] = "static"
    _weights_alone: ClassVar[str] = "give both, or neither, in a float type"
    """What to do in place of quantizing weights alone."""

    @classmethod
    def _fields(cls) -> dict[str, dict[str, str]]:
        """By tensor the parameters about it, each with the field of a scheme that it is."""
        names = {"dtype": "dtype", "sym": "scheme", "granularity": "granularity", cls._algorithm: "algorithm"}
        prefixes = {"weight": cls._weight, "activation": "act"}
        return {tensor: {f"{prefix}_{name}": names[name] for name in names} for tensor, prefix in prefixes.items()}

    def tensor_schemes(self) -> tuple[TensorScheme, TensorScheme]:
        """The schemes of the weight and of the activation."""
        self.require_single()
        found = []
        for names in self._fields().values():
            given = {field: getattr(self, name) for name, field in names.items()}
            sized = {"group_size": _GROUP} if given["granularity"] == "per_group" else {}
            found.append(TensorScheme.from_dict({**given, **sized, "scheme": _sign(given["scheme"])}))
        weight, activation = found
        return weight, activation

    def op_scheme(self) -> OpScheme:
        """How an op with a weight computes."""
        weight, activation = self.tensor_schemes()
        if weight.is_float and activation.is_float:
            return OpScheme(weight, activation, "float")
        return OpScheme(weight, None if activation.is_float else activation, self._mode)

    @property
    def wanted(self) -> OpScheme:
        """How an op computes, as near as the framework comes to it."""
        scheme = self.op_scheme()
        if not scheme.is_float and scheme.activation is None:
            given, beside = (getattr(self, f"{prefix}_dtype") for prefix in ("act", self._weight))
            raise ConfigError(
                f"{type(self).__name__}.act_dtype: got {given!r} beside weights in {beside!r}; {self._weights_alone}"
            )
        return scheme

    @property
    def said(self) -> dict[tuple[str, str], Any]:
        """The fields of a scheme that nothing else will do for: those that are not at their default.

        Who speaks of a tensor means the data type it has by default.
        """
        found: dict[tuple[str, str], Any] = {}
        for tensor, names in self._fields().items():
            for name, (value, _) in self.changed(*names).items():
                found[tensor, "dtype"] = getattr(self, next(iter(names)))
                found[tensor, names[name]] = _sign(value) if names[name] == "scheme" else value
        return found

    @staticmethod
    def _is_symmetric(kind: DType) -> bool:
        """Whether tensors of a data type have no zero point."""
        return not kind.is_integer

    @classmethod
    def _settled(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        for prefix in (cls._weight, "act"):
            kind = dtype(values[f"{prefix}_dtype"])
            if cls._is_symmetric(kind):
                values = cls._with(values, {f"{prefix}_sym": True}, given, f"{prefix}_dtype {kind.name!r}")
        return super()._settled(values, given)


def _sign(symmetric: bool) -> str:
    return "sym" if symmetric else "asym"
