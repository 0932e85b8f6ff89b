"""The executor of plans: ``prepare`` a float model, let data run through it, ``apply`` what was seen.

Everything that quantizes a PyTorch model comes here: the adaptor under ``fit``, ``prepare`` and ``convert``, ``autotune``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import nn

from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.observers.input_check import CalibrationInputs
from neural_compressor.registry import first_of
from neural_compressor.schemes import OpKey, OpScheme, Pass, Plan
from neural_compressor.schemes.scheme import RTN
from neural_compressor.torch.batches import batch_size, note_inputs, run_batches
from neural_compressor.torch.files.streaming import WeightSource, is_empty
from neural_compressor.torch.hooks import calling_layers, evaluating, forward_replaced, uncompiled
from neural_compressor.torch.methods.ranges import Observing, Ranges
from neural_compressor.torch.methods.weight_only.methods import limit_of
from neural_compressor.torch.methods.weight_only.quantizer import WeightOnlyQuantizer, sees_data
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.passes.model_pass import PassState, read_pass
from neural_compressor.torch.passes.survey import Survey, sharing_weights, traced_functions
from neural_compressor.torch.plan_check import check, has_method
from neural_compressor.torch.quantized_model import build, computes_in_float32, hand_on_integers
from neural_compressor.torch.structure.ops import find_functions, is_linear
from neural_compressor.torch.structure.replay import Arguments, CalibrationLimit, Deferred, is_plain, remembered
from neural_compressor.torch.structure.watch import Run, watched

logger = logging.getLogger("neural_compressor")

FOLD = Pass("fold")
"""Batch normalisation goes into the layers before it, and ReLUs into kernels, as far as the runs seen prove it right."""
CORRECT_BIASES = Pass("correct_biases")
"""The mean error of static convolutions, in exported graphs of all static layers, is taken out through their biases, where
the data admits that."""
USUAL_PASSES = (FOLD, CORRECT_BIASES)
"""The passes of a plan that names none; they do nothing to a plan that has no ops for them."""


def prepare(model: nn.Module, plan: Plan, **more: Any) -> Execution:
    """A plan about to be carried out on ``model``, in place; what the executor does not run is refused.

    ``more`` is what :class:`Execution` takes beside these.
    """
    check(model, plan)
    return Execution(model, plan, **more)


class Execution:
    """A plan on its way: between :meth:`listen` and :meth:`stop` data runs through :attr:`model`, then :meth:`apply`.

    Calls are remembered for methods that work block by block and for passes that look at data; the ranges of static ops are
    observed as they run, or, where a pass changes what ops receive, when the calls are made again of the changed model.
    ``survey`` and ``ranges`` are what earlier plans for the same model have seen already, of the data that ``source`` stands
    for. ``reasons`` say why ops that are not in the plan stay in float, ``weights`` is where those of an empty model come
    from, and ``example`` are inputs to check the result on. With ``keeps_floats`` the weights that passes made are kept
    beside the quantized ones; of ``every`` so many runs one counts for ranges.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        *,
        reasons: Mapping[OpKey, str] | None = None,
        survey: Survey | None = None,
        ranges: Ranges | None = None,
        source: int = 0,
        weights: WeightSource | None = None,
        example: Any = None,
        keeps_floats: bool = False,
        every: int = 1,
    ) -> None:
        self.model, self.plan = model, _with_methods(model, plan)
        self.reasons = dict(reasons or {})
        self.passes = [read_pass(step) for step in plan.passes]
        # What ops receive in a model that a pass has changed is nothing to other plans, nor theirs to this one.
        self._keeps_floats = keeps_floats
        self._moved = any(step.moves_ranges for step in self.passes)
        self.ranges = ranges if ranges is not None and not self._moved else Ranges()
        self.weights, self.example = weights, example
        self.survey = survey
        self.calls: list[Arguments] = []
        #: The float model that was quantized, where passes made it another one than folding does.
        self.floats: nn.Module | None = None
        self.runs = self.samples_seen = 0
        self._source, self._every = source, every
        self._samples = 0
        self._inputs = CalibrationInputs()
        self._listening: ExitStack | None = None
        self._seen: Observing | None = None
        self._applied = False

    @property
    def weight_only(self) -> dict[str, OpScheme]:
        """The ops of which a method finds the weight."""
        return {key[0]: op for key, op in self.plan.items() if has_method(self.model, key, op)}

    @property
    def seeing_data(self) -> list[str]:
        """The ops for which the model has to run on data before :meth:`apply`."""
        if self._replays and not self.calls:
            return [name for name, _ in self.plan]
        seeing = [name for name, op in self.weight_only.items() if sees_data(op)]
        return [*seeing, *(name for name, _ in self._unobserved)]

    @property
    def needs_data(self) -> bool:
        """Whether the model has to run on data before :meth:`apply`."""
        return bool(self.seeing_data)

    @property
    def _unobserved(self) -> Mapping[OpKey, Any]:
        """The static ops whose ranges are observed as data runs through the model, and were not yet."""
        return {} if self._moved else self.ranges.missing(self.plan, self._source)

    @property
    def _replays(self) -> bool:
        """Whether calls are made again before :meth:`apply` is done, for a pass or for ranges of the changed model."""
        return self._moves_static or any(step.wants_data(self.plan) for step in self.passes)

    @property
    def _surveys(self) -> bool:
        """Whether a pass looks at how the model ran on all of the data."""
        return self._moves_static or any(step.wants_data(self.plan) and not step.calls_alone for step in self.passes)

    @property
    def _moves_static(self) -> bool:
        """Whether ranges are those of the changed model."""
        return self._moved and "static" in self.plan.modes

    @property
    def is_listening(self) -> bool:
        """Whether what runs through the model is taken into account."""
        return self._listening is not None

    # -- what is observed -------------------------------------------------------------------------------------------

    @property
    def limit(self) -> CalibrationLimit | None:
        """What is remembered of the data; None where that is nothing."""
        limits = [limit_of(op) for op in self.weight_only.values() if sees_data(op)]
        limits += [step.limit for step in self.passes if step.wants_data(self.plan)]
        if self._moves_static:
            limits += [step.limit for step in self.passes if step.moves_ranges]
        return CalibrationLimit.covering(limits) if limits else None

    def listen(self) -> None:
        """Take all further calls of the model into account.

        Where calls are only remembered, the first one runs, so that data that does not fit the model is seen at once. Later
        ones run when their output is looked at, which calibration loops seldom do.
        """
        self._applied = False
        limit = self.limit
        # A survey that was made without data has seen nothing yet.
        watching = self._surveys and (self.survey is None or not self.survey.traces)
        observing = bool(self._unobserved)
        empty = is_empty(self.model)
        with ExitStack() as stack:
            if observing or watching:
                if empty:
                    what = "static quantization" if observing else f"a plan with {self._passes_named}"
                    raise ConfigError(f"{what} runs the model, and it has no values (meta device): load them")
                stack.enter_context(evaluating(self.model))
                self.survey = self.survey or Survey(self.model)
                if observing:
                    observing_ops = self.ranges.observing(self.model, self.plan, self._source, every=self._every)
                    self._seen = stack.enter_context(observing_ops)
                stack.enter_context(watched(self.model, self._note))
            elif limit is not None:
                # A model without weights has no outputs to give: calls are remembered and return None.
                forward = (lambda *args, **kwargs: None) if empty else self._deferring(self.model.forward)
                stack.enter_context(forward_replaced(self.model, forward))

            def remember(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                self._remember(args, kwargs, limit)

            stack.callback(self.model.register_forward_pre_hook(remember, with_kwargs=True).remove)
            self._listening = stack.pop_all()

    def stop(self) -> None:
        """End of calibration."""
        if self._listening is not None:
            listening, self._listening = self._listening, None
            listening.close()
            self._inputs.warn()
            if self._seen is not None and self.runs:
                self.ranges.keep(self._seen, self.plan, self._source)

    def calibrate(self, data: Iterable[Any] | None, function: Callable[[nn.Module], Any] | None) -> None:
        """Run the model on ``data``, or have the user's ``function`` do so."""
        if function is not None:
            with torch.no_grad(), calibrating(function, "calib_func", lambda: self.runs):
                function(self.model)
            if not self.runs:
                raise CalibrationError(
                    "calibration reached none of the ops to quantize: does calib_func run the model it is given?"
                )
        elif data is not None:
            run_batches(self.model, data, self.plan.calib_sampling_size)
        else:
            raise CalibrationError(
                f"quantization of {len(self.seeing_data)} ops needs calibration data: pass calib_dataloader or calib_func"
            )

    def abandon(self) -> None:
        """End of a calibration that failed: nothing of it counts."""
        self._seen = None
        self.stop()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take what runs meanwhile into account, unless it ends with an error."""
        self.listen()
        try:
            yield
        except BaseException:
            self.abandon()
            raise
        self.stop()

    @property
    def _passes_named(self) -> str:
        *others, last = (step.name for step in self.plan.passes)
        return f"the passes {', '.join(others)} and {last}" if others else f"the pass {last}"

    def _note(self, run: Run) -> None:
        assert self.survey is not None
        if self._seen is not None:
            self._seen.end_run(run.trace)
        self.survey.note(run)
        if self.example is None:
            self.example = _as_inputs(run)

    def _remember(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: CalibrationLimit | None) -> None:
        self.runs += 1
        note_inputs(self._inputs, self.model, args, kwargs)
        size = batch_size((args, kwargs))
        self.samples_seen += size
        if size == 0 or limit is None:
            return
        used = limit.cut(remembered(self.model, args, kwargs), self._samples)
        if used is not None:
            self.calls.append(used)
        counts = self._moves_static or bool(self.weight_only)  # and not corrections alone, which take a few
        if self._samples <= limit.samples < self._samples + size and counts:
            logger.warning("calibration data behind the first %d samples is not used (nsamples)", limit.samples)
        self._samples += size

    def _deferring(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        tried = False

        def run_or_defer(*args: Any, **kwargs: Any) -> Any:
            nonlocal tried
            if not tried or not is_plain((args, kwargs)):
                tried = True
                return forward(*args, **kwargs)
            gradients = torch.is_grad_enabled()

            def run() -> Any:
                if self._applied:
                    raise CalibrationError(
                        "the output of a calibration run was looked at after convert, when the float model was gone; "
                        "look at it before"
                    )
                with torch.set_grad_enabled(gradients):
                    return forward(*args, **kwargs)

            return Deferred(run)

        return wraps(forward)(run_or_defer)

    # -- what is done -----------------------------------------------------------------------------------------------

    def apply(self, on_block: Callable[[str, int, int], None] | None = None) -> nn.Module:
        """The quantized model: :attr:`model` itself, unless that is an op.

        Passes come first, then the methods that find weights, block by block while other ops are float, then the ops whose
        ranges are known or need none. Passes that measure the quantized model come last.
        """
        self.stop()
        if self._unobserved:
            raise CalibrationError(
                f"{len(self._unobserved)} static ops need calibration: run the prepared model on data before convert"
            )
        if self._replays and not self.calls:
            need = "needs" if len(self.plan.passes) == 1 else "need"
            raise CalibrationError(
                f"{self._passes_named} {need} calibration: run the prepared model on data before convert"
            )
        self._applied = True
        modes = [(module, module.training) for module in self.model.modules()]
        # Tensors that are made in inference mode could be neither trained on nor used with gradients.
        normal = torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
        try:
            with normal, uncompiled(self.model):
                return self._quantized(on_block).train(modes[0][1])
        finally:  # what is not new has its own mode, such as a normalisation that was frozen
            for module, training in modes:
                module.training = training

    def _quantized(self, on_block: Callable[[str, int, int], None] | None) -> nn.Module:
        self.reasons |= self._functions()
        ops = self.weight_only
        with calling_layers(self.model):
            state = self._passed_over()
            ranges, single = self._ranges_of(state), computes_in_float32(state.model)
            kinds = {name: kind for name, kind in self.plan if name in ops}
            seen = {name: found for (name, _), found in ranges.items()}
            quantizer = WeightOnlyQuantizer(state.model, ops, self.weights, on_block, seen)
            missed = quantizer.run(self.calls) if ops else {}
        left = {(name, kinds[name]): why for name, why in missed.items()}
        new = build(quantizer.model, self.plan, ranges, state.structure, self.reasons, left, changes=state.changes)
        for step in self.passes:
            step.after(replace(state, model=new))
        if self.example is not None and single:
            new = hand_on_integers(new, self.example)
        return new

    def _functions(self) -> dict[OpKey, str]:
        """Why products by functions stay in float: of those that ran where data did, else of those that forwards name."""
        listed = [*self.plan, *self.reasons]
        if self.survey is not None and self.survey.traces:
            return find_functions(self.model, self.survey.traces, listed)
        trace, opaque = traced_functions(self.model)
        found = find_functions(self.model, [trace], listed)
        if opaque:
            found["functions", "function"] = f"not looked for in {first_of(opaque)}: their forwards cannot be traced"
        return found

    def passed_over(self) -> PassState:
        """The float model when the passes have changed it, for those who want no more: nothing is quantized."""
        self.stop()
        self._applied = True
        with calling_layers(self.model):
            return self._passed_over()

    def _passed_over(self) -> PassState:
        """The float model when the passes have changed it."""
        state = PassState(self.model.eval(), self.plan, self.survey, Structure(), self.calls)
        for step in self.passes:
            state = replace(state, structure=step.before(state) or state.structure)
        compared = any(step.compares(self.plan) for step in self.passes)
        kept = self._moved and self._keeps_floats
        floats = sharing_weights(state.model) if kept or compared else None
        self.floats = floats if kept else None
        return replace(state, floats=floats)

    def _ranges_of(self, state: PassState) -> Mapping[OpKey, Any]:
        if self._moved and self.ranges.missing(self.plan, self._source):
            with (
                self.ranges.observing(
                    state.model, self.plan, self._source, state.structure, self._every, state.changes
                ) as seen,
                watched(state.model, lambda run: seen.end_run(run.trace)),
            ):
                for _ in state.replay():
                    pass
            self.ranges.keep(seen, self.plan, self._source)
        return self.ranges.of(self.plan, state.structure, self._source)


def _with_methods(model: nn.Module, plan: Plan) -> Plan:
    """``plan`` with rounding to nearest as the method of weights that have a scale of the whole tensor (nvfp4).

    Found by a method, those of layers that read one input have the same one, which is what engines take.
    """
    changed = {}
    for key, op in plan.items():
        shared = op.method is None and op.weight is not None and op.weight.dtype.has_tensor_scale
        if shared and not op.is_float and is_linear(model.get_submodule(key[0])):
            changed[key] = replace(op, method=RTN)
    return plan.with_ops(changed)


def _as_inputs(run: Run) -> Any:
    """What a run was called with, as the inputs of a batch; None where it is positional and named arguments at once."""
    if run.kwargs:
        return None if run.args else run.kwargs
    return run.args[0] if len(run.args) == 1 else run.args
