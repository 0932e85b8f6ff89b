"""SmoothQuant of a float model alone, by the name that programs call; the algorithm is ``torch/passes/smooth.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import OpScheme, Pass, Plan
from neural_compressor.torch.batches import run_batches
from neural_compressor.torch.checks import require_module
from neural_compressor.torch.executor import Execution
from neural_compressor.torch.hooks import evaluating
from neural_compressor.torch.modules.build import replace_module
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.passes.model_pass import read_pass
from neural_compressor.torch.passes.scaling import parameters_of, restore_parameters, scale_inputs
from neural_compressor.torch.structure.ops import find_ops
from neural_compressor.torch.utils.utility import move_input_to_device

__all__ = ["SQLinearWrapper", "TorchSmoothQuant", "move_input_to_device"]

_INT8 = OpScheme.from_dict(
    {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8", "scheme": "asym"}, "mode": "dynamic"}
)
"""What the layers are smoothed for."""


class SQLinearWrapper(nn.Module):
    """A layer whose input is multiplied first, and whose weight makes up for it."""

    input_scale: Tensor

    def __init__(self, layer: nn.Module, change: InputChange) -> None:
        super().__init__()
        assert change.multiplier is not None
        scale_inputs(layer, 1 / change.multiplier)
        self.sq_linear = layer
        self.register_buffer("input_scale", change.multiplier)

    def forward(self, x: Tensor) -> Tensor:
        """The layer on the input it was smoothed for."""
        weight = self.sq_linear.weight
        assert isinstance(weight, Tensor)
        given = InputChange(multiplier=self.input_scale.to(x.dtype)).on_input(x, axis=min(-1, 1 - weight.dim()))
        found: Tensor = self.sq_linear(given)
        return found


class TorchSmoothQuant:
    """Moves outliers of activations into the weights that read them, in the model itself, so that both can be rounded.

    Data comes from ``dataloader``, from ``q_func(model)``, which runs the model, or from ``example_inputs`` alone.

    >>> model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4)).eval()
    >>> x = torch.randn(2, 8)
    >>> before = model(x)
    >>> bool(torch.allclose(TorchSmoothQuant(model, [x]).transform(alpha=0.7, folding=True)(x), before, atol=1e-5))
    True
    """

    def __init__(
        self,
        model: nn.Module,
        dataloader: Iterable[Any] | None = None,
        example_inputs: Any = None,
        q_func: Callable[[nn.Module], Any] | None = None,
        traced_model: Any = None,
        scale_sharing: bool = True,
        record_max_info: bool = False,
    ) -> None:
        require_module(model, "TorchSmoothQuant")
        if traced_model is not None or record_max_info:
            name = "record_max_info" if record_max_info else "traced_model"
            raise ConfigError(
                f"TorchSmoothQuant.{name}: the model is watched as it runs, and nothing is recorded; leave it out"
            )
        if (dataloader is None) == (q_func is None) and (dataloader is not None or example_inputs is None):
            raise ConfigError("TorchSmoothQuant runs the model on data: give dataloader, q_func or example_inputs")
        self.model = model
        self._data = [example_inputs] if dataloader is None and q_func is None else dataloader
        self._q_func, self._sharing = q_func, scale_sharing
        self._kept: Mapping[str, Mapping[str, nn.Parameter | None]] = {}
        self._wrapped: dict[str, nn.Module] = {}

    def transform(
        self,
        alpha: Any = 0.5,
        folding: bool = False,
        percentile: float = 100,
        op_types: Sequence[str] = ("Linear", "Conv1D"),
        scales_per_op: bool | None = None,
        calib_iter: int = 100,
        auto_alpha_args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> nn.Module:
        """The model, smoothed; it computes what it did. ``auto_alpha_args`` are the options of ``alpha="auto"``.

        With ``folding`` scales go into the layer before where that is exact, and inputs of other layers stay as they are;
        without, a layer becomes a :class:`SQLinearWrapper`, which multiplies its input.
        """
        if percentile != 100:
            raise ConfigError(
                f"TorchSmoothQuant.transform: got percentile={percentile}; the largest value counts: take 100"
            )
        if options:
            raise ConfigError(f"TorchSmoothQuant.transform does not know {', '.join(options)}")
        self.recover()
        sharing = self._sharing if scales_per_op is None else not scales_per_op
        chosen = list(alpha) if isinstance(alpha, tuple | list) else alpha
        asked = {"alpha": chosen, "folding": folding, "scale_sharing": sharing, "op_types": list(op_types)}
        step = Pass("smooth", {**asked, **(auto_alpha_args or {})})
        plan = Plan({key: _INT8 for key in find_ops(self.model)[0] if key[1] in op_types}, passes=(step,))
        read_pass(step).check(self.model, plan)
        with evaluating(self.model):
            execution = Execution(self.model, plan)
            with execution.listening():
                self._run(execution, calib_iter)
            self._kept = {name: parameters_of(module) for name, module in self.model.named_modules()}
            try:
                changes = execution.passed_over().changes
            except BaseException:
                self.recover()
                raise
            for name, change in {} if folding else changes.items():
                self._wrapped[name] = self.model.get_submodule(name)
                replace_module(self.model, name, SQLinearWrapper(self._wrapped[name], change))
        return self.model

    def recover(self) -> None:
        """Undo :meth:`transform`."""
        for name, layer in self._wrapped.items():
            replace_module(self.model, name, layer)
        for name, parameters in self._kept.items():
            restore_parameters(self.model.get_submodule(name), parameters)
        self._wrapped, self._kept = {}, {}

    @torch.no_grad()
    def _run(self, execution: Execution, calib_iter: int) -> None:
        if self._q_func is not None:
            with calibrating(self._q_func, "q_func", lambda: execution.runs):
                self._q_func(self.model)
        else:
            assert self._data is not None
            run_batches(self.model, islice(self._data, calib_iter), 2**62)
