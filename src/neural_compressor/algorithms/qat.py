"""Weights found in training: the options of the method, which only executors of frameworks with gradients run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from neural_compressor.errors import ConfigError
from neural_compressor.schemes import Method, OpScheme, Plan, TensorScheme
from neural_compressor.validation import explain

NAME = "qat"


class QatOptions(BaseModel):
    """The options of the method ``qat``.

    ``learned_step_size`` trains the scales with the weights (LSQ). From epoch ``freeze_after`` on, counted from 0, the
    ranges of activations stay as they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    learned_step_size: bool = False
    freeze_after: PositiveInt | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> QatOptions:
        """``given``, validated."""
        try:
            return cls(**given)
        except ValidationError as error:
            raise ConfigError(f"method {NAME}: {explain(error, 'QatOptions', 'option', cls.model_fields)}") from None


def trained(plan: Plan, **options: Any) -> Plan:
    """``plan`` with weights that are found in training.

    >>> op = OpScheme.from_dict({"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8", "scheme": "asym"}})
    >>> trained(Plan({("fc", "Linear"): op}), learned_step_size=True)["fc", "Linear"].method
    Method(name='qat', options={'learned_step_size': True})
    """
    method = Method(NAME, QatOptions.of(options).model_dump(exclude_defaults=True))
    return replace(plan, ops={key: replace(op, method=method) if _has_codes(op) else op for key, op in plan.items()})


def untrained(plan: Plan) -> Plan:
    """``plan`` without what :func:`trained` says of its ops, to be checked like any other."""
    method = Method("rtn")
    ops = {
        key: replace(op, method=method if op.mode == "weight_only" else None) if _is_trained(op) else op
        for key, op in plan.items()
    }
    return replace(plan, ops=ops)


def _has_codes(op: OpScheme) -> bool:
    return op.weight is not None and not op.is_float


def _is_trained(op: OpScheme) -> bool:
    return op.method is not None and op.method.name == NAME


def _is_plain(op: OpScheme) -> bool:
    """Whether its weight is rounded to nearest, as a training does; beside integer activations scales are positive."""
    return op.method == Method("rtn") or (
        op.mode != "weight_only" and op.method == Method("rtn", {"full_range": False})
    )


def qat_options(plan: Plan) -> QatOptions:
    """What a plan says of training, which is one for the whole model."""
    methods = {op.method for op in plan.values() if op.method is not None and not _is_plain(op)}
    if other := next((method for method in methods if method.name != NAME), None):
        raise ConfigError(f"method {other} finds weights without training: leave it out, or quantize after training")
    if len(methods) > 1:
        raise ConfigError(
            f"ops of one model are trained alike, and the plan has {', '.join(sorted(map(str, methods)))}"
        )
    return QatOptions.of(next(iter(methods)).options if methods else {})


def check_learnable(scheme: TensorScheme | None) -> None:
    """Refuse scales that are to be among a few: what is learned would be rounded away."""
    if scheme is not None and scheme.scaling is not None and scheme.scaling.admits_few:
        raise ConfigError(
            "learned_step_size trains scales of any size, and those of this configuration are powers of two, of a device, "
            "or 1: leave it out, or take scale_method='maxabs_arbitrary'"
        )
