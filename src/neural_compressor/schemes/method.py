"""Named steps of a plan with their options, as plain data: the method that finds a weight, a pass over the whole model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neural_compressor.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class _Step:
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"a {type(self).__name__.lower()} is known by its name, got {self.name!r}")
        try:
            # A trip through JSON makes equal what is written differently (tuples, order) and refuses what is no data.
            object.__setattr__(self, "options", json.loads(json.dumps(dict(self.options), sort_keys=True)))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the options of {self.name!r} are {self.options!r}; expected a dict of plain data (numbers, strings, "
                f"lists, dicts): {error}"
            ) from None

    def __hash__(self) -> int:
        return hash((type(self), self.name, json.dumps(self.options, sort_keys=True)))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    def with_options(self, **options: Any) -> Self:
        """The same step with some options changed."""
        return type(self)(self.name, {**self.options, **options})

    def to_dict(self) -> dict[str, Any]:
        """The form in journals and files."""
        return {"name": self.name, "options": dict(self.options)}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Read what :meth:`to_dict` writes, or a name alone."""
        if isinstance(data, str):
            return cls(data)
        if not isinstance(data, Mapping) or "name" not in data or set(data) - {"name", "options"}:
            raise ConfigError(f"got {data!r}, expected {{'name': ..., 'options': {{...}}}}")
        return cls(data["name"], data.get("options") or {})


class Method(_Step):
    """How the weight of an op is found, such as ``Method("gptq", {"act_order": True})``.

    >>> Method.from_dict({"name": "gptq", "options": {"act_order": True}}) == Method("gptq", {"act_order": True})
    True
    """


class Pass(_Step):
    """What is done to the whole model before or after its ops are quantized, such as ``Pass("smooth", {"alpha": 0.5})``.

    >>> str(Pass("smooth", {"alpha": 0.5}))
    'smooth(alpha=0.5)'
    """
