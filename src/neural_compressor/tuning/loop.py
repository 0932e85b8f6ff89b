"""The one tuning function: try plans until the promise holds or the budget ends; the best model is always kept.

``quantization.fit`` and the ``autotune`` of each framework are fronts of it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neural_compressor.adaptor.contract import Adaptor
from neural_compressor.config.process_options import options
from neural_compressor.errors import WorkspaceError
from neural_compressor.strategy.base import Proposal, Strategy
from neural_compressor.strategy.listed import ListedFallbackStrategy
from neural_compressor.tuning.bench import Bench
from neural_compressor.tuning.criterion import Budget, Criterion
from neural_compressor.tuning.evaluator import Evaluator, require_repeatable
from neural_compressor.tuning.fingerprint import job_inputs
from neural_compressor.tuning.journal import Journal
from neural_compressor.tuning.objective import Scoring
from neural_compressor.tuning.reporter import Progress, Reporter
from neural_compressor.tuning.result import Trial, TuningResult
from neural_compressor.tuning.run import TuningRun
from neural_compressor.tuning.verdict import UNCHECKED, slower_note
from neural_compressor.tuning.workspace import writable_folder

if TYPE_CHECKING:
    from neural_compressor.schemes import OpKey, Plan

logger = logging.getLogger("neural_compressor")

_REPORT = "the report of this run is lost"
_END = "that this run has ended is not in the journal, and the same call gives the same result again"


def tune(
    adaptor: Adaptor,
    model: Any,
    conf: Any,
    plans: Strategy | Sequence[Proposal],
    *,
    evaluator: Evaluator | Callable[[Any], Any] | None = None,
    calib_dataloader: Iterable[Any] | None = None,
    calib_func: Callable[[Any], Any] | None = None,
    workspace: str | Path | None = None,
    storage: str | Path | None = None,
    title: str | None = None,
    reporter: Reporter | None = None,
    resume: bool = True,
) -> tuple[Any, TuningResult]:
    """Quantize ``model`` with the plans that a strategy proposes until the promise of ``conf`` is kept.

    ``plans`` may also be a list: it is gone through in its order, and where nothing on it keeps the promise, ops of the
    best fall back to float. ``conf`` has an ``accuracy_criterion`` and a ``tuning_criterion``.

    Returns the best model found and the evidence. Where the promise could not be kept the verdict says by how much,
    and the model that comes nearest is returned. Every trial is in the journal under ``workspace`` before the next one
    starts, and the best model so far is on disk: the same call goes on where a killed one stopped. ``storage`` puts
    the journal elsewhere: a path, or a database URL. Without an ``evaluator`` the default plan is applied once and no
    promise is checked. Latency is measured where the adaptor has an example.

    ``reporter`` shows the run and keeps its report. What cannot be written then is no reason to lose the model: it is a
    warning and a note, and the study stays open, so that the same call repeats no trial.

    Where speed is an objective the float model is one of the candidates: the verdict, and ``beats_float`` of the result, say
    whether what is returned is faster. It is the best quantized model also where it is not.
    """
    started = time.perf_counter()
    strategy = plans if isinstance(plans, Strategy) else ListedFallbackStrategy(plans)
    reporter = reporter or Reporter()
    title = title or (Path(model).stem if isinstance(model, str | Path) else type(model).__name__)
    criterion = Criterion.from_config(conf.accuracy_criterion)
    scoring = Scoring.from_config(conf.tuning_criterion.objective, criterion)
    budget = Budget.from_config(conf.tuning_criterion)
    if evaluator is not None and not isinstance(evaluator, Evaluator):
        evaluator = Evaluator(eval_func=evaluator)
    bench = Bench(adaptor, evaluator, adaptor.example, "footprint" in scoring.weights)
    folder = options.folder(workspace)

    def quantize(plan: Plan) -> Any:
        return adaptor.quantize(plan.to_tune_cfg(), model, calib_dataloader, calib_func)

    def ended(quantized: Any, result: TuningResult) -> None:
        result.title = title
        result.ops = [strategy.space.explained(record) for record in result.ops or adaptor.summary(quantized)]
        if note := slower_note(result):
            result.metadata["notes"] = [*result.metadata.get("notes", ()), note]
        result.seconds = time.perf_counter() - started
        reporter.keep(result, adaptor, conf, folder)

    if calib_dataloader is not None:
        _tell_sensitivities(strategy, adaptor, model, calib_dataloader)

    if evaluator is None:
        with reporter.running(title, 1) as progress:
            quantized, result = _quantize_once(quantize, model, strategy.space.default_plan(), bench, progress)
            _was_written(result, _REPORT, lambda: ended(quantized, result))
        reporter.show(result)
        return quantized, result
    evaluator.check(criterion)
    require_repeatable(calib_dataloader, "calib_dataloader")
    folder = writable_folder(folder)
    inputs = job_inputs(
        bench=bench,
        model=model,
        strategy=strategy,
        criterion=criterion,
        scoring=scoring,
        calib_data=calib_dataloader,
        calib_func=calib_func,
    )
    with (
        reporter.running(title, min(budget.max_trials, strategy.total or budget.max_trials)) as progress,
        Journal(folder, title, inputs, storage, resume, budget) as journal,
    ):
        for note in journal.notes:
            logger.warning("%s", note)
        run = TuningRun(quantize, bench, criterion, scoring, budget, strategy, journal, progress, started)
        quantized, result = run.to_the_end(model)
        if _was_written(result, _REPORT, lambda: ended(quantized, result)):
            _was_written(result, _END, lambda: journal.finish(result.verdict))
    reporter.show(result)
    return quantized, result


def _tell_sensitivities(strategy: Strategy, adaptor: Adaptor, model: Any, data: Iterable[Any]) -> None:
    """Let ``strategy`` ask what each op costs, as far as the adaptor can tell."""

    def offers(ability: str) -> bool:
        return getattr(type(adaptor), ability) is not getattr(Adaptor, ability)

    def output_errors(plan: Plan, batches: int) -> dict[OpKey, float]:
        first = list(islice(data, batches))
        # Errors first: by the plan the adaptor knows which ops there are.
        errors = adaptor.op_errors(plan, model, first)
        gains = adaptor.op_gains(model, first) if offers("op_gains") else {}
        return {key: error * gains.get(key, 1.0) for key, error in errors.items()}

    if offers("op_errors"):
        strategy.op_errors = lambda plan: adaptor.op_errors(plan, model, data)
        strategy.output_errors = output_errors
    if offers("op_curvatures"):
        strategy.loss_errors = lambda plan, loss: adaptor.op_curvatures(plan, model, loss, data)


def _was_written(result: TuningResult, lost: str, write: Callable[[], None]) -> bool:
    """Whether ``write`` went well; where not, what was ``lost`` is a warning and a note."""
    try:
        write()
    except WorkspaceError as error:
        note = f"{lost}; the model is not lost. {error}"
        logger.warning("%s", note)
        result.metadata["notes"] = [*result.metadata.get("notes", ()), note]
        return False
    return True


def _quantize_once(
    quantize: Callable[[Plan], Any], model: Any, plan: Plan, bench: Bench, progress: Progress
) -> tuple[Any, TuningResult]:
    progress.baseline_start()
    baseline = bench.measure(model)
    progress.baseline_done(baseline)
    progress.trial_start(1, "default")
    begun = time.perf_counter()
    quantized = quantize(plan)
    seconds = time.perf_counter() - begun
    trial = Trial(
        1,
        "default",
        plan,
        bench.against(model, baseline).measure(quantized),
        math.nan,
        passed=False,
        score=1.0,
        seconds=seconds,
    )
    progress.trial_done(trial)
    return quantized, TuningResult(baseline, [trial], trial, met=False, verdict=UNCHECKED, criterion="none")
