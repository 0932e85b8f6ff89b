"""Activation ranges of ops, collected on the float model; what was once collected is kept for later plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.errors import CalibrationError
from neural_compressor.observers import Observer, make_observer
from neural_compressor.observers.input_check import CalibrationInputs
from neural_compressor.schemes import OpKey, Plan, TensorScheme
from neural_compressor.torch.batches import note_inputs, run_batches
from neural_compressor.torch.structure.ops import FUNCTIONAL
from neural_compressor.torch.structure.watch import Trace, watched

Range = tuple[Any, Any]


class Calibrator:
    """Collects and caches statistics: a plan that differs from an earlier one only in float ops costs no calibration."""

    def __init__(self, model: nn.Module, summed: Collection[str] = ()) -> None:
        self.model, self.summed = model, summed
        #: The different ways through the model that calibration went, by what identifies each.
        self.paths: dict[Any, Trace] = {}
        self._inputs = CalibrationInputs()
        self._known: dict[tuple[str, str, str, int, int], list[Observer]] = {}

    def collect(
        self,
        plan: Plan,
        dataloader: Iterable[Any] | None,
        calib_func: Callable[[nn.Module], Any] | None,
    ) -> dict[OpKey, list[Range]]:
        """The activation ranges each static op of ``plan`` needs, one a tensor input.

        Functional ops, and those of ``summed``, have that of their output behind them.
        """
        source = id(calib_func if calib_func is not None else dataloader)
        needed = {key: s.activation for key, s in plan.items() if s.mode == "static" and s.activation is not None}
        missing = {k: s for k, s in needed.items() if self._slot(k, s, plan, source) not in self._known}
        if missing:
            self._run(missing, plan, dataloader, calib_func, source)
        return {
            key: [observer.range(scheme) for observer in self._known[self._slot(key, scheme, plan, source)]]
            for key, scheme in needed.items()
            if self._known[self._slot(key, scheme, plan, source)]
        }

    def _slot(self, key: OpKey, scheme: TensorScheme, plan: Plan, source: int) -> tuple[str, str, str, int, int]:
        return key[0], scheme.algorithm, repr(scheme.granularity), plan.calib_sampling_size, source

    def _run(
        self,
        missing: dict[OpKey, TensorScheme],
        plan: Plan,
        dataloader: Iterable[Any] | None,
        calib_func: Callable[[nn.Module], Any] | None,
        source: int,
    ) -> None:
        if dataloader is None and calib_func is None:
            raise CalibrationError(
                f"static quantization of {len(missing)} ops needs calibration data: pass calib_dataloader or calib_func"
            )
        collected: dict[OpKey, list[Observer]] = {key: [] for key in missing}
        with ExitStack() as stack:
            stack.enter_context(watched(self.model, lambda trace: self.paths.setdefault(trace.path, trace)))
            for key, scheme in missing.items():
                module = self.model.get_submodule(key[0])
                with_output = isinstance(module, FUNCTIONAL) or key[0] in self.summed
                handle = module.register_forward_hook(
                    _observe(key, scheme, collected[key], with_output), with_kwargs=True
                )
                stack.callback(handle.remove)
            calls = 0

            def note(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                nonlocal calls
                calls += 1
                note_inputs(self._inputs, model, args, kwargs)

            stack.callback(self.model.register_forward_pre_hook(note, with_kwargs=True).remove)
            if calib_func is not None:
                with torch.no_grad(), calibrating(calib_func, "calib_func", lambda: calls):
                    calib_func(self.model)
            elif dataloader is not None:
                run_batches(self.model, dataloader, plan.calib_sampling_size)
        self._inputs.warn()
        if not any(collected.values()):
            raise CalibrationError(
                "calibration reached none of the ops to quantize: does calib_func run the model it is given?"
            )
        for key, scheme in missing.items():
            self._known[self._slot(key, scheme, plan, source)] = collected[key]


def _observe(key: OpKey, scheme: TensorScheme, observers: list[Observer], with_output: bool) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        if with_output:
            tensors.append(output)
        while len(observers) < len(tensors):
            observers.append(make_observer(scheme))
        for observer, tensor in zip(observers, tensors, strict=False):
            if tensor.numel() == 0 or not tensor.is_floating_point():
                continue
            try:
                observer.update(tensor.detach().float())
            except CalibrationError as error:
                raise CalibrationError(f"op {key[0]!r} ({key[1]}): {error}") from error

    return hook
