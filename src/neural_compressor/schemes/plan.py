"""A plan: for each op of a model, the scheme it is to run with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neural_compressor.schemes.method import Pass
from neural_compressor.schemes.scheme import OpScheme

OpKey = tuple[str, str]
"""The name of an op and its type, as in ``("conv1", "Conv2d")``."""


@dataclass(frozen=True)
class Plan(Mapping[OpKey, OpScheme]):
    """Op schemes by op, with what else a trial varies: calibration size and passes over the whole model.

    ``passes`` are carried out in their order.

    >>> plan = Plan({("fc", "Linear"): OpScheme()}, passes=[Pass("smooth", {"alpha": 0.5})])
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    ops: Mapping[OpKey, OpScheme] = field(default_factory=dict)
    calib_sampling_size: int = 100
    passes: Sequence[Pass] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", tuple(self.passes))

    def __getitem__(self, key: OpKey) -> OpScheme:
        return self.ops[key]

    def __iter__(self) -> Iterator[OpKey]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.to_json() == other.to_json()

    def __str__(self) -> str:
        return self.table()

    def table(self, reasons: Mapping[OpKey, str] | None = None) -> str:
        """A line for each op, then for each that stays in float with the reason why, and one for the passes.

        >>> print(Plan({("fc", "Linear"): OpScheme()}, passes=[Pass("fold")]).table({("conv1", "Conv2d"): "no kernel"}))
        fc     Linear  fp32
        conv1  Conv2d  float: no kernel
        passes: fold()
        """
        texts = {key: str(scheme) for key, scheme in self.ops.items()}
        texts |= {key: f"float: {why}" for key, why in (reasons or {}).items()}
        names, types = (max((len(key[part]) for key in texts), default=0) for part in (0, 1))
        lines = [f"{name:{names}}  {kind:{types}}  {text}" for (name, kind), text in texts.items()]
        if self.passes:
            lines.append(f"passes: {', '.join(map(str, self.passes))}")
        return "\n".join(lines)

    @property
    def digest(self) -> str:
        """Short stable identity of the plan."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @property
    def modes(self) -> set[str]:
        """How its ops compute: ``"static"``, for which data is seen, ``"dynamic"``, ``"weight_only"``, ``"float"``."""
        return {scheme.mode for scheme in self.ops.values()}

    def with_ops(self, changes: Mapping[OpKey, OpScheme]) -> Plan:
        """The plan with some ops changed."""
        return replace(self, ops={**self.ops, **changes})

    def step(self, name: str) -> Pass | None:
        """The pass called ``name``, where the plan has one."""
        return next((each for each in self.passes if each.name == name), None)

    def to_tune_cfg(self) -> dict[str, Any]:
        """The dict an adaptor's ``quantize`` takes: ``{'op': {(name, type): {...}}, ...}``."""
        return {
            "op": {key: scheme.to_dict() for key, scheme in self.ops.items()},
            "calib_sampling_size": self.calib_sampling_size,
            **({"passes": [each.to_dict() for each in self.passes]} if self.passes else {}),
        }

    @classmethod
    def from_tune_cfg(cls, cfg: Mapping[str, Any]) -> Plan:
        """Read a tune_cfg, hand-written ones included: only ``op`` is required.

        Its ``recipe_cfgs``, if any, are for the adaptor, which knows the passes they stand for.
        """
        ops = {tuple(key): OpScheme.from_dict(value) for key, value in cfg["op"].items()}
        passes = tuple(Pass.from_dict(each) for each in cfg.get("passes", ()))
        return cls(ops, cfg.get("calib_sampling_size", 100), passes)

    def to_json(self) -> str:
        """Canonical JSON (sorted keys), the form in the journal."""
        cfg = self.to_tune_cfg()
        cfg["op"] = sorted([*key, value] for key, value in cfg["op"].items())
        return json.dumps(cfg, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what :meth:`to_json` writes."""
        cfg = json.loads(text)
        cfg["op"] = {(name, kind): value for name, kind, value in cfg["op"]}
        return cls.from_tune_cfg(cfg)
