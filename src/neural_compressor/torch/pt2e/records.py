"""What is said of the ops of a quantized graph."""

from __future__ import annotations

from torch import nn

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.torch.quantized_model import Quantization


def graph_records(model: nn.Module) -> list[OpRecord]:
    """A record for each op of a quantized graph: integers once Inductor has compiled it."""
    done = getattr(model, "quantization", None)
    if not isinstance(done, Quantization):
        return []
    records = [
        OpRecord(
            *key,
            precision=scheme.precision,
            activation=scheme.activation.dtype.name if scheme.activation else "fp32",
            mode=scheme.mode,
            kernel="Inductor int8",
        )
        for key, scheme in done.plan.items()
    ]
    return [*records, *(OpRecord(*key, precision="fp32", reason=reason) for key, reason in done.reasons.items())]
