"""What an adaptor tells about the ops of a quantized model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class OpRecord:
    """One op of a quantized model, as tables and reports show it.

    ``kernel`` names what runs the op; ``simulated`` says that it is float arithmetic on quantized values.
    ``reason`` is filled where the op stays in float, and where it is simulated: why, and what would help; also where an
    optimisation of it was given up. SQNR values are in dB; None where nothing was quantized.
    """

    name: str
    op_type: str
    precision: str
    activation: str = "fp32"
    mode: str = "float"
    kernel: str = "float"
    simulated: bool = False
    reason: str = ""
    weight_sqnr: float | None = None
    output_sqnr: float | None = None
    size_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)
