"""A float model that plans are tried on: how it runs, what may be folded, what calibration saw."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import nn

from neural_compressor.config.op_rule import OpRule, named_alone
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import OpKey, Plan
from neural_compressor.torch.batches import batch_size, feed, first_inputs, fitting, run_batches
from neural_compressor.torch.checks import PREPARED, check_finite, require_module, require_values
from neural_compressor.torch.hooks import evaluating
from neural_compressor.torch.methods.ranges import Ranges
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.function_products import (
    close_products,
    open_products,
    opened_products,
    product_ops,
)
from neural_compressor.torch.passes.fold import Structure, fold
from neural_compressor.torch.passes.survey import Survey, sharing_weights
from neural_compressor.torch.structure.ops import find_ops
from neural_compressor.torch.structure.replay import Arguments

logger = logging.getLogger("neural_compressor")


class FloatModel:
    """``model`` as it runs on ``data``, as far as calibration will read that, and on the example inputs of ``info``.

    ``info`` is that of the adaptor: without ``example_inputs`` the first batch is the :attr:`example`, whose size is noted
    there, or what ``calib_func`` gives the model first.
    """

    def __init__(self, model: nn.Module, info: dict[str, Any], data: Iterable[Any] | None = None) -> None:
        require_module(model, "quantization")
        if hasattr(model, PREPARED):
            raise ConfigError("the model is prepared already: calibrate and convert it, or give the float model")
        if done := next((name for name, module in model.named_modules() if isinstance(module, QuantModule)), None):
            raise ConfigError(f"the model is quantized already: {done!r} is; give the float model it was made from")
        require_values(model)
        check_finite(model)
        self.model, self._info = model, info
        self.example: Any = info.get("example_inputs")
        self.survey = self._watched(data)
        #: What calibration saw of it, for plans that want the same: ranges, and calls by what they were remembered for.
        self.ranges = Ranges()
        self.calls: dict[Any, list[Arguments]] = {}
        self._sources: list[Any] = []
        self._folded: tuple[Structure, nn.Module] | None = None
        self._outputs: Any = None

    def _watched(self, data: Iterable[Any] | None) -> Survey:
        survey = Survey(self.model)
        if self.example is not None:
            with fitting("example_inputs", self.example):
                survey.see(self.example)

        def see(inputs: Any) -> None:
            if self.example is None:
                self.example = inputs
                self._info.setdefault("batch_size", batch_size(inputs))
            survey.see(inputs)

        if isinstance(data, Iterator):  # what can be read only once is left to calibration
            data = None if self.example is not None else islice(data, 1)
        if data is not None:
            samples = self._info.get("calibration_sampling_size", Plan({}).calib_sampling_size)
            run_batches(self.model, data, samples, see)
        elif self.example is None and (function := self._info.get("calib_func")) is not None:
            inputs = first_inputs(self.model, function)
            try:
                if inputs is not None:
                    see(inputs)
            except Exception as error:  # noqa: BLE001 - if the inputs are at fault, calibration says so
                logger.debug("the first inputs of calib_func cannot be run alone: %s", error)
                self.example, survey = None, Survey(self.model)
        return survey

    @property
    def folded(self) -> nn.Module:
        """The model with its batch norms folded, as far as all that was seen of it allows."""
        structure = self.survey.structure
        if self._folded is None or self._folded[0] != structure:
            self._folded = structure, fold(sharing_weights(self.survey.model), structure)
        return self._folded[1]

    @property
    def outputs(self) -> Any:
        """What it gives for the example; kept, as every trial is compared with it."""
        if self._outputs is None:
            with evaluating(self.model), torch.no_grad():
                self._outputs = feed(self.model, self.example)
        return self._outputs

    def with_products(self) -> nn.Module:
        """A copy with the same weights in which products by functions are modules, as far as these are known."""
        new = sharing_weights(self.model)
        open_products(new, self.survey.products or {})
        return new

    def with_named_products(self, *rules: Sequence[OpRule]) -> tuple[nn.Module, set[str]]:
        """The folded model with modules for the products by functions that ``rules`` speak of alone, and their names."""
        new = sharing_weights(self.folded)
        close_products(new)  # those of the plan that was run last
        if not any(rules) or not self.survey.products:
            return new, set()
        open_products(new, self.survey.products)
        named = {name for name, _ in named_alone(find_ops(new)[0], *rules)} & product_ops(self.survey.products)
        close_products(new, named)
        return new, named

    def opened(self, plan: Plan, copy: nn.Module) -> tuple[Plan, dict[OpKey, str]]:
        """Make modules in a ``copy`` of the products by functions that ``plan`` quantizes.

        Those that it keeps in fp32 stay functions, which are faster than modules: the plan without them comes back, with the
        reason.
        """
        known = {name for name, _ in (*copy.named_modules(), *copy.named_parameters(remove_duplicate=False))}
        if all(name in known for name, _ in plan):
            return plan, {}
        names = product_ops(self.survey.products or {})
        left = [key for key, op in plan.items() if op.precision == "fp32" and key[0] in names]
        plan = replace(plan, ops={key: op for key, op in plan.items() if key not in left})
        if self.survey.open_products(copy, plan):
            self._folded = None
        return plan, dict.fromkeys(left, "the plan keeps it in fp32")

    def number_of(self, data: Any, copy: nn.Module) -> int:
        """What the source of calibration data is called in caches: it is kept, since ids of what is gone are used again.

        An attention whose products are ops gives other last digits than the fused kernel, so what is seen behind it is not
        shared with plans that leave it whole.
        """
        opened = frozenset(opened_products(copy))
        for number, (known, products) in enumerate(self._sources):
            if known is data and products == opened:
                return number
        self._sources.append((data, opened))
        return len(self._sources) - 1
