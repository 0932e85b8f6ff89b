"""The identity of a tuning job, so that a journal is resumed only by the run that wrote it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from neural_compressor.strategy.base import Strategy
from neural_compressor.strategy.space import TuningSpace
from neural_compressor.tuning.bench import Bench
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.identity import identity
from neural_compressor.tuning.objective import Scoring


def space_digest(space: TuningSpace) -> str:
    """Short identity of everything a plan can vary."""
    content = {
        "ops": sorted([*key, [scheme.to_dict() for scheme in op.options]] for key, op in space.ops.items()),
        "calibration_sizes": list(space.calibration_sizes),
        "recipes": {name: list(values) for name, values in space.recipes.items()},
        "passes": [each.to_dict() for each in space.passes],
    }
    return _digest(content)


def job_inputs(
    *,
    bench: Bench,
    model: Any,
    strategy: Strategy,
    criterion: Criterion,
    scoring: Scoring,
    calib_data: Any,
    calib_func: Any,
) -> dict[str, str]:
    """What decides the course of a run. The budget (time, trials) is left out: more of it continues the same job.
    See :mod:`neural_compressor.tuning.identity` for how data and functions are known."""
    return {
        "model": bench.adaptor.fingerprint(model),
        "adaptor": type(bench.adaptor).__qualname__,
        "space": space_digest(strategy.space),
        "strategy": f"{type(strategy).__qualname__} seed={strategy.seed} options={_canonical(strategy.options)}",
        "criterion": repr(criterion),
        "objective": _canonical(dict(scoring.weights)),
        "evaluation": bench.evaluator.identity if bench.evaluator else "none",
        "measured": bench.identity,
        "calibration": " ".join(map(identity, (calib_data, calib_func, *bench.adaptor.calibration_data))),
    }


def fingerprint(inputs: Mapping[str, str]) -> str:
    """Twelve hex digits that stand for ``inputs``."""
    return _digest(dict(inputs))[:12]


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, default=repr)


def _digest(content: Any) -> str:
    return hashlib.sha256(_canonical(content).encode()).hexdigest()[:16]
