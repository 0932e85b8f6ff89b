"""A tuning configuration in the terms a framework's quantizer takes: only the ops that are to be quantized."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.schemes import OpKey, OpScheme, PerTensor, Plan

OpWiseConfig = tuple[bool, str, bool, int]
"""Whether the weight is per channel, the algorithm and asymmetry of the activation, and the bits of the weight."""


def to_framework_config(tune_cfg: Mapping[str, Any], info: Mapping[str, Any]) -> tuple[dict[str, Any], list[OpKey]]:
    """``quantize_config`` of the dispatched ops, and the ops that are to run in bf16.

    ``info`` gives the ``device`` (CPU) and the ``batch_size`` (1) of the calibration data. Ops kept in float are not
    dispatched.

    >>> scheme = {"weight": {"dtype": "int4"}, "activation": {"dtype": "uint8", "scheme": "asym"}}
    >>> to_framework_config({"op": {("fc", "Linear"): scheme}}, {"batch_size": 32})[0]["op_wise_config"]
    {'fc': (False, 'minmax', True, 4)}
    """
    plan = Plan.from_tune_cfg(tune_cfg)
    batch_size = info.get("batch_size") or 1
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"batch_size in framework_specific_info is {batch_size!r}; it has to be a positive integer")
    config = {
        "device": str(info.get("device") or "cpu").upper(),
        "calib_iteration": max(1, math.ceil(plan.calib_sampling_size / batch_size)),
        "advance": {},
        "op_wise_config": {name: _op_wise(scheme) for (name, _), scheme in plan.items() if not scheme.is_float},
    }
    return config, [key for key, scheme in plan.items() if scheme.is_float and scheme.precision == "bf16"]


def _op_wise(scheme: OpScheme) -> OpWiseConfig:
    # An op without a weight is described by its activation, and a weight-only one by its weight.
    weight, activation = scheme.weight or scheme.activation, scheme.activation or scheme.weight
    if weight is None or activation is None:
        raise ConfigError(
            f"an op is to be quantized ({scheme.mode}) but neither its weight nor its activation has a scheme"
        )
    return (
        not isinstance(weight.granularity, PerTensor),
        activation.algorithm,
        not activation.symmetric,
        weight.dtype.bits,
    )
