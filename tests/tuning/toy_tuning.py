"""A framework in pure Python, and a scripted strategy: what the tuning tests run on.

A toy model is ``{op name: accuracy lost when the op is quantized}``; a quantized one also says which ops are in int8.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from neural_compressor.adaptor.contract import Adaptor
from neural_compressor.adaptor.records import OpRecord
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import OpScheme, Plan, TensorScheme, float_op
from neural_compressor.strategy.base import Proposal, Proposals, Strategy
from neural_compressor.strategy.space import OpSpace, TuningSpace

INT8 = OpScheme(weight=TensorScheme(dtype("int8")), activation=TensorScheme(dtype("uint8")), mode="static")
FLOAT = float_op()
COSTS = {"a": 0.002, "b": 0.004, "c": 0.008, "d": 0.02}


class ToyModel:
    def __init__(self, costs: Mapping[str, float], quantized: Iterable[str] = ()) -> None:
        self.costs = dict(costs)
        self.quantized = frozenset(quantized)


class ToyAdaptor(Adaptor):
    def __init__(self, example: Any = None) -> None:
        super().__init__({})
        self.example = example
        self.quantized: list[str] = []
        self.saved: list[frozenset[str]] = []
        self.fail: Callable[[ToyModel], None] = lambda model: None

    @classmethod
    def handles(cls, model: Any) -> bool:
        return isinstance(model, ToyModel)

    def query_fw_capability(self, model: ToyModel) -> dict[str, Any]:
        raise NotImplementedError

    def quantize(self, tune_cfg: Any, model: ToyModel, dataloader: Any = None, q_func: Any = None) -> ToyModel:
        plan = Plan.from_tune_cfg(tune_cfg)
        quantized = ToyModel(model.costs, (name for (name, _), scheme in plan.items() if not scheme.is_float))
        self.fail(quantized)
        self.quantized.append(plan.digest)
        return quantized

    def predict(self, model: ToyModel, inputs: Any) -> Any:
        return inputs

    def save(self, model: ToyModel, path: str | Path) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "model.json").write_text(json.dumps(sorted(model.quantized)))
        self.saved.append(model.quantized)

    def load(self, path: str | Path, model: ToyModel) -> ToyModel:
        return ToyModel(model.costs, json.loads((Path(path) / "model.json").read_text()))

    def model_size(self, model: ToyModel) -> int:
        return 400 * len(model.costs) - 300 * len(model.quantized)

    def summary(self, model: ToyModel) -> list[OpRecord]:
        return [OpRecord(name, "Toy", "int8" if name in model.quantized else "fp32") for name in model.costs]

    def fingerprint(self, model: ToyModel) -> str:
        return json.dumps(model.costs)


class Acts:
    """What happens at the n-th call: an object, so that it is no part of what a journal knows an evaluation by."""

    def __init__(self) -> None:
        self._at: dict[int, Callable[[], Any]] = {}

    def __setitem__(self, call: int, act: Callable[[], Any]) -> None:
        self._at[call] = act

    def __call__(self, call: int) -> Any:
        return self._at[call]() if call in self._at else None


class Accuracy:
    """``eval_func`` of a toy model that counts its calls and can act on the n-th."""

    def __init__(self, baseline: float = 0.9, sign: int = -1) -> None:
        self.baseline = baseline
        self.sign = sign
        self.calls = 0
        self.at = Acts()

    def __call__(self, model: ToyModel) -> Any:
        self.calls += 1
        if (acted := self.at(self.calls)) is not None:
            return acted
        return self.baseline + self.sign * sum(model.costs[name] for name in model.quantized)


class Scripted(Strategy):
    """Proposes the sets of ops in ``options['sets']`` one after the other."""

    def proposals(self) -> Proposals:
        for number, names in enumerate(self.options["sets"]):
            yield Proposal(plan_of(names, self.space), f"step {number}")


class Narrowing(Strategy):
    """Takes one op after the other back to float, the one that helped most first: depends on what it is told."""

    def proposals(self) -> Proposals:
        names = {name for name, _ in self.space.ops}
        outcome = yield Proposal(plan_of(names, self.space), "all")
        while names and not outcome.passed:
            tried = {}
            for name in sorted(names):
                outcome = yield Proposal(plan_of(names - {name}, self.space), f"without {name}")
                tried[name] = outcome.loss
            names.discard(min(sorted(tried), key=tried.__getitem__))


def toy_space(costs: Mapping[str, float] = COSTS) -> TuningSpace:
    return TuningSpace({(name, "Toy"): OpSpace((INT8,), (FLOAT,)) for name in costs})


def plan_of(names: Iterable[str], space: TuningSpace | None = None) -> Plan:
    space = space or toy_space()
    return Plan({key: INT8 if key[0] in set(names) else FLOAT for key in space.ops})


def toy_conf(
    *,
    tolerable_loss: float = 0.01,
    higher_is_better: bool = True,
    criterion: str = "relative",
    timeout: float = 0,
    max_trials: int = 100,
    objective: Any = "modelsize",
) -> SimpleNamespace:
    return SimpleNamespace(
        accuracy_criterion=SimpleNamespace(
            higher_is_better=higher_is_better, criterion=criterion, tolerable_loss=tolerable_loss
        ),
        tuning_criterion=SimpleNamespace(timeout=timeout, max_trials=max_trials, objective=objective),
    )
