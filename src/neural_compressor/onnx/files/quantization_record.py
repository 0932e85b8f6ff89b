"""The quantization record of a model, in its metadata: the scheme of each op, and why ops compute in float."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from neural_compressor.errors import FormatError
from neural_compressor.schemes import OpKey, OpScheme

KEY = "neural_compressor.quantization"
_VERSION = 1


@dataclass(frozen=True)
class QuantizationRecord:
    """The scheme of each op of the plan, why ops stayed in float or are simulated, and the passes that made the float model
    (``origin``).

    ``target_cpu`` says which x86 CPUs the model gives the same on: ``any``, or ``vnni`` where integers overflow on CPUs
    without it; it is empty where no integer product runs on a CPU.

    >>> from neural_compressor.schemes import float_op
    >>> record = QuantizationRecord({("conv", "Conv"): float_op()}, {("conv", "Conv"): "kept"})
    >>> QuantizationRecord.from_json(record.to_json()) == record
    True
    """

    ops: Mapping[OpKey, OpScheme]
    reasons: Mapping[OpKey, str] = field(default_factory=dict)
    origin: str = ""
    target_cpu: str = ""

    def to_json(self) -> str:
        """Compact: each scheme and each reason is written once."""
        schemes = list(dict.fromkeys(self.ops.values()))
        reasons = list(dict.fromkeys(self.reasons.values()))
        return json.dumps(
            {
                "version": _VERSION,
                "schemes": [scheme.to_dict() for scheme in schemes],
                "reasons": reasons,
                "ops": [[*key, schemes.index(scheme)] for key, scheme in self.ops.items()],
                "origin": self.origin,
                "target_cpu": self.target_cpu,
                "why": [[*key, reasons.index(reason)] for key, reason in self.reasons.items()],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> QuantizationRecord:
        """Read what :meth:`to_json` writes."""
        try:
            data = json.loads(text)
            schemes = [OpScheme.from_dict(scheme) for scheme in data["schemes"]]
            ops = {(str(name), str(kind)): schemes[place] for name, kind, place in data["ops"]}
            reasons = {(str(name), str(kind)): str(data["reasons"][place]) for name, kind, place in data["why"]}
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise FormatError(f"the model's metadata {KEY!r} is damaged: {error}") from error
        return cls(ops, reasons, str(data.get("origin", "")), str(data.get("target_cpu", "")))


def write_record(model: ir.Model, record: QuantizationRecord) -> None:
    """Put ``record`` into the metadata of ``model``."""
    model.metadata_props[KEY] = record.to_json()


def read_record(model: ir.Model) -> QuantizationRecord | None:
    """The record a model carries; None where it was not quantized here."""
    text = model.metadata_props.get(KEY)
    return None if text is None else QuantizationRecord.from_json(text)
