"""The state of a prepared model until it is converted, and the end of its calibration."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.torch.checks import PREPARED, require_module
from neural_compressor.torch.executor import Execution
from neural_compressor.torch.modules.function_products import close_products
from neural_compressor.torch.quantization.autoround_runs import Export
from neural_compressor.torch.quantization.fp8_runs import FP8Run


@dataclass
class Prepared:
    """What is about to be done to a model: by ``execution``, of an eager model or of a graph, or by a training.

    ``config`` is the configuration it is from, ``run`` what that asks of files of statistics, ``export`` of files of the
    quantized model.
    """

    execution: Any
    config: Any
    run: FP8Run | None = None
    export: Export | None = None

    @classmethod
    def of(cls, model: nn.Module) -> Prepared | None:
        """That of ``model``; None where it is not prepared."""
        return getattr(model, PREPARED, None)

    def put_on(self, model: nn.Module) -> nn.Module:
        """``model``, which is prepared now."""
        setattr(model, PREPARED, self)
        return model

    @property
    def sees_data(self) -> bool:
        """Whether what runs through the model is looked at."""
        return self.execution.is_listening or (self.run is not None and self.run.sees_data)

    @property
    def runs(self) -> int:
        """How often the model ran meanwhile."""
        runs: int = self.execution.runs
        return runs if self.run is None else max(runs, self.run.runs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Prepared:
        if isinstance(self.execution, Execution) and self.execution.is_listening:
            raise ConfigError(
                "a model that is being calibrated cannot be copied: hooks on it feed the calibration of this model alone; "
                "copy the float model and prepare that, or call finalize_calibration first"
            )
        held = {each.name: copy.deepcopy(getattr(self, each.name), memo) for each in fields(self)}
        return Prepared(**held)

    def stop(self) -> None:
        """End of calibration; statistics are written."""
        try:
            if self.run is not None:
                self.run.stop()
        finally:
            self.execution.stop()

    def abandon(self) -> None:
        """End of a calibration that failed."""
        if self.run is not None:
            self.run.abandon()
        self.execution.abandon()


def check_parts(model: nn.Module) -> None:
    """Refuse a module around a prepared model, such as the wrappers of torch.nn.parallel."""
    for name, part in model.named_modules():
        if name and Prepared.of(part) is not None:
            raise ConfigError(
                f"what is prepared is model.{name}, a {type(part).__name__} inside of this {type(model).__name__}: pass "
                f"model.{name}"
            )


def made_float(model: nn.Module) -> nn.Module:
    """A prepared model as the float model that it was."""
    delattr(model, PREPARED)
    close_products(model)
    return model


@contextmanager
def abandoned_on_failure(model: nn.Module) -> Iterator[None]:
    """Give up the calibration of a prepared model, which is a float model again, where what is done meanwhile fails."""
    try:
        yield
    except BaseException:
        if (prepared := Prepared.of(model)) is not None:
            prepared.abandon()
            made_float(model)
        raise


def finalize_calibration(model: nn.Module) -> nn.Module:
    """Stop collecting calibration data; a model in training keeps the ranges it has seen."""
    require_module(model, "finalize_calibration")
    prepared = Prepared.of(model)
    if prepared is None:
        check_parts(model)
        raise ConfigError("the model is not prepared: call prepare(model, quant_config) first")
    prepared.stop()
    if prepared.run is not None and not prepared.run.config.quantize:  # it was only measured
        made_float(model)
    return model
