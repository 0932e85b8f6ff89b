"""Activation ranges of ops, collected on the float model; what was once collected is kept for later plans."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from neural_compressor.errors import CalibrationError
from neural_compressor.observers import Observer, make_observer
from neural_compressor.observers.minmax import MinMaxObserver
from neural_compressor.schemes import OpKey, Plan, TensorScheme
from neural_compressor.torch.hooks import hooked
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.passes.fold import Structure, added_modules, has_output_range
from neural_compressor.torch.structure.ops import FUNCTIONAL, input_axis
from neural_compressor.torch.structure.watch import Trace

logger = logging.getLogger("neural_compressor")

Range = tuple[Any, Any]
_Estimator = tuple[str, str]
"""What makes observers alike: the algorithm, and the granularity."""


class Ranges:
    """Statistics of the inputs of static ops, and of outputs that are added to something.

    They are of the float model as it came, so that folding does not change them: what a layer gives with a batch
    normalisation in it is what the normalisation gives. A plan that differs from an earlier one only in float ops costs no
    calibration. A plan whose passes change what ops receive has ranges of its own.
    """

    def __init__(self) -> None:
        self._inputs: dict[tuple[Any, ...], list[Observer]] = {}
        self._outputs: dict[tuple[Any, ...], Observer] = {}

    def missing(self, plan: Plan, source: int = 0) -> dict[OpKey, TensorScheme]:
        """The ops of ``plan`` whose ranges were not collected yet, on the data that ``source`` stands for."""
        return {key: s for key, s in _static(plan).items() if _slot(key[0], s, plan, source) not in self._inputs}

    @classmethod
    def given(cls, plan: Plan, ranges: Mapping[OpKey, Sequence[Range]]) -> Ranges:
        """Ranges of inputs that are known, from files; ops of ``plan`` that are not among them count as never reached."""
        new = cls()
        for key, scheme in _static(plan).items():
            observers = []
            for bounds in ranges.get(key, ()):
                observer = MinMaxObserver()
                observer.update(np.asarray(bounds, np.float32))
                observers.append(observer)
            new._inputs[_slot(key[0], scheme, plan, 0)] = list(observers)
        return new

    @contextmanager
    def observing(
        self,
        model: nn.Module,
        plan: Plan,
        source: int = 0,
        structure: Structure | None = None,
        every: int = 1,
        changes: Mapping[str, InputChange] | None = None,
    ) -> Iterator[Observing]:
        """Collect what is :meth:`missing` while ``model`` runs, for :meth:`keep`; what is folded left an ``Identity``.

        Of ``every`` so many runs the first is looked at. ``changes`` are what ops will do to their inputs first.
        """
        missing = self.missing(plan, source)
        seen = Observing(missing, every, changes or {})
        ops = {key: model.get_submodule(key[0]) for key in missing}
        folded = structure.folded if structure is not None else {}
        summable = {n: module for n, module in model.named_modules() if n in folded or has_output_range(module)}
        with hooked(ops, after=seen.see_inputs), hooked(summable, after=seen.see_output):
            yield seen

    def keep(self, seen: Observing, plan: Plan, source: int = 0) -> None:
        """Have what was seen for later."""
        missing = self.missing(plan, source)
        if missing and not any(seen.inputs.values()):
            raise CalibrationError(
                "calibration reached none of the ops to quantize: run the model on data that goes through them"
            )
        _warn_of_constants(seen.inputs)
        for key, scheme in missing.items():
            self._inputs[_slot(key[0], scheme, plan, source)] = seen.inputs.get(key, [])
        size = plan.calib_sampling_size
        self._outputs |= {(*place, size, source): observer for place, observer in seen.outputs.items()}

    def of(self, plan: Plan, structure: Structure, source: int = 0) -> dict[OpKey, list[Range]]:
        """The ranges of each static op of ``plan`` that data reached, one a tensor input.

        Functional ops have that of their output behind them, and so have layers whose output is added to something.
        """
        found: dict[OpKey, list[Range]] = {}
        tails = {layer: norm for norm, layer in structure.folded.items()}
        for key, scheme in _static(plan).items():
            observers = list(self._inputs.get(_slot(key[0], scheme, plan, source), ()))
            if not observers:
                continue
            if key[0] in structure.summed:
                output = self._outputs.get(_slot(tails.get(key[0], key[0]), scheme, plan, source))
                observers += [] if output is None else [output]
            try:
                found[key] = [observer.range(scheme) for observer in observers]
            except CalibrationError as error:
                raise CalibrationError(f"op {key[0]!r} ({key[1]}): {error}") from error
        functional = {cls.__name__ for cls in FUNCTIONAL}
        return found | {key: [(0.0, 0.0)] * (2 if key[1] in functional else 1) for key in _of_any_range(plan)}


class Observing:
    """What is seen in the runs of one calibration, of ops whose inputs have the ``schemes``."""

    def __init__(
        self,
        schemes: Mapping[OpKey, TensorScheme],
        every: int = 1,
        changes: Mapping[str, InputChange] | None = None,
    ) -> None:
        self._schemes, self._every, self._changes = schemes, every, changes or {}
        self._alike = {_estimator(scheme): scheme for scheme in schemes.values()}
        self.inputs: dict[OpKey, list[Observer]] = {}
        self.outputs: dict[tuple[str, str, str], Observer] = {}
        self._runs = 0

    def end_run(self, trace: Trace) -> None:
        """After a run: outputs that nothing was added to in the first are not looked at in the next ones."""
        if self._runs == 0:
            added = set(added_modules(trace))
            self.outputs = {place: observer for place, observer in self.outputs.items() if place[0] in added}
        self._runs += 1

    def see_inputs(
        self, key: OpKey, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Observe what an op is given, and what it gives where that is quantized too."""
        if self._runs % self._every:
            return
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        if not all(t.numel() for t in tensors):  # an expert that no token came to: one that never sees any has no range
            return
        if (change := self._changes.get(key[0])) is not None:
            tensors = [change.on_input(tensors[0].detach(), input_axis(module)), *tensors[1:]]
        observers = self.inputs.setdefault(key, [])
        for index, tensor in enumerate([*tensors, output] if isinstance(module, FUNCTIONAL) else tensors):
            if index == len(observers):
                observers.append(make_observer(self._schemes[key]))
            _update(observers[index], tensor, f"op {key[0]!r} ({key[1]})")

    def see_output(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Observe what the module ``name`` gives."""
        for estimator, scheme in self._alike.items():
            place = (name, *estimator)
            if self._runs == 0 and place not in self.outputs:
                self.outputs[place] = make_observer(scheme)
            if place in self.outputs and isinstance(output, torch.Tensor):
                _update(self.outputs[place], output, f"the output of {name!r}")


def _update(observer: Observer, tensor: torch.Tensor, what: str) -> None:
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return
    try:
        observer.update(tensor.detach().float())
    except CalibrationError as error:
        raise CalibrationError(f"{what}: {error}") from error


def _warn_of_constants(inputs: Mapping[OpKey, list[Observer]]) -> None:
    for (name, kind), observers in inputs.items():
        value = observers[0].constant if observers else None
        if value is not None:
            logger.warning(
                "op %r (%s): its input was %g in every sample; a range of that fits no other data", name, kind, value
            )


def _static(plan: Plan) -> Mapping[OpKey, TensorScheme]:
    found = {key: s.activation for key, s in plan.items() if s.mode == "static" and s.activation is not None}
    return {key: scheme for key, scheme in found.items() if scheme.scaling is None or scheme.scaling.value != "unit"}


def _of_any_range(plan: Plan) -> Iterator[OpKey]:
    """The static ops whose scales do not depend on the range."""
    for key, op in plan.items():
        scheme = op.activation if op.mode == "static" else None
        if scheme is not None and scheme.scaling is not None and scheme.scaling.value == "unit":
            yield key


def _estimator(scheme: TensorScheme) -> _Estimator:
    return scheme.algorithm, repr(scheme.granularity)


def _slot(name: str, scheme: TensorScheme, plan: Plan, source: int) -> tuple[Any, ...]:
    return (name, *_estimator(scheme), plan.calib_sampling_size, source)
