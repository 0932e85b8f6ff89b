"""One tuning run over a journal: baseline, trials, best model, verdict."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from neural_compressor.errors import CalibrationError, EvaluationError, MissingDependencyError, WorkspaceError
from neural_compressor.strategy.base import Outcome, Proposal, Strategy
from neural_compressor.tuning.bench import Bench
from neural_compressor.tuning.criterion import Budget, Criterion
from neural_compressor.tuning.journal import Journal, TrialRecord
from neural_compressor.tuning.objective import Scoring, best_trial, finalists
from neural_compressor.tuning.reporter import Progress
from neural_compressor.tuning.result import Measurement, Trial, TuningResult
from neural_compressor.tuning.spread import loss_spread
from neural_compressor.tuning.verdict import all_failed, beats_float, evaluation_error, not_faster, undecided, verdict
from neural_compressor.tuning.workspace import BestModelFolder

if TYPE_CHECKING:
    from neural_compressor.schemes import Plan

logger = logging.getLogger("neural_compressor")

#: A strategy that only repeats itself for this long has nothing more to say.
_MAX_REPEATS = 1000
#: How many times the difference of two evaluations a third may be off.
_SPREADS = 2
#: What sums in another order, on another machine, may change of an accuracy.
_LAST_DIGITS = 1e-6
#: An evaluation that raises the same in this many trials, and in no other, does so in all.
_FAILED_ALIKE = 3
#: How many models that are equally good, as far as was measured, are measured again: all are in memory meanwhile.
_MOST_FINALISTS = 3


@dataclass
class TuningRun:
    """One run over a journal. Holds one quantized model at most, the best so far, until finalists are compared."""

    quantize: Callable[[Plan], Any]
    bench: Bench
    criterion: Criterion
    scoring: Scoring
    budget: Budget
    strategy: Strategy
    journal: Journal
    progress: Progress
    started: float
    trials: list[Trial] = field(default_factory=list)
    best: Trial | None = None
    best_model: Any = None
    _store: BestModelFolder | None = None

    def to_the_end(self, model: Any) -> tuple[Any, TuningResult]:
        """Baseline, trials, best model, verdict. The study is left open."""
        try:
            baseline = self._baseline(model)
            stopped = self._search(baseline)
            if self.best is None:
                error = all_failed(self.trials)
                with suppress(WorkspaceError):  # of the two the user needs the other one
                    self.journal.finish(str(error))
                raise error
            try:
                self._compare_finalists(baseline)
            except Exception as error:  # noqa: BLE001 - a best model is known, and must not be lost
                self._note(f"the fastest models could not be timed again: {type(error).__name__}: {error}")
            quantized = self._model_of(self.best)
        except KeyboardInterrupt as interrupt:
            self._explain(interrupt)
            raise
        ops = self.bench.adaptor.summary(quantized)
        faster = beats_float(self.best, baseline, self.scoring)
        slow = "" if faster is not False else not_faster(self.best, baseline, self.trials, ops)
        sentence = verdict(self.best, baseline, self.criterion, slow)
        return quantized, TuningResult(
            baseline=baseline,
            trials=self.trials,
            best=self.best,
            met=self.best.passed,
            verdict=sentence,
            criterion=self.criterion.describe(baseline.accuracy),
            ops=ops,
            beats_float=faster,
            metadata=self._metadata(baseline, stopped),
        )

    def _baseline(self, model: Any) -> Measurement:
        baseline = self.journal.baseline
        self.progress.baseline_start()
        if baseline is not None:
            known, now = _accuracy(baseline), self.bench.evaluated(model, baseline)
            if self._moved(known, _accuracy(now), model):
                self._begin_anew(known, _accuracy(now))
                baseline = None
            else:
                baseline = replace(now, accuracy=known)
        if baseline is None:
            baseline = self.bench.measure(model)
            self.journal.record_baseline(baseline)
        self.bench = self.bench.against(model, baseline)
        self.progress.baseline_done(baseline)
        return baseline

    def _moved(self, known: float, now: float, model: Any) -> bool:
        """Whether the accuracy of the float model is no longer the ``known`` one, by more than evaluations differ among
        themselves and more than a tenth of what may be lost."""
        if abs(now - known) <= max(abs(known - self.criterion.limit(known)) / 10, _LAST_DIGITS * abs(known)):
            return False
        again = _accuracy(self.bench.evaluated(model, Measurement(None)))
        low, high, spread = min(now, again), max(now, again), abs(now - again)
        return not low - _SPREADS * spread <= known <= high + _SPREADS * spread

    def _begin_anew(self, known: float, now: float) -> None:
        old = self.journal.name
        self.journal.renew()
        self._note(
            f"the float model reaches {now:.6g} now and reached {known:.6g} in study {old}: data, labels or code have "
            f"changed. The trials of that study are not used, and study {self.journal.name} begins"
        )

    def _note(self, text: str) -> None:
        self.journal.notes.append(text)
        logger.warning("%s", text)

    @property
    def store(self) -> BestModelFolder:
        """Where the best model of the study is."""
        if self._store is None or self._store.folder.name != self.journal.name:
            self._store = BestModelFolder(self.journal.workspace / self.journal.name)
        return self._store

    def _search(self, baseline: Measurement) -> str:
        """Try what the strategy proposes; returns why it ended."""
        told: dict[str, Outcome] = {}
        repeats = 0
        while proposals := self.strategy.ask():
            (proposal,) = proposals
            digest = proposal.plan.digest
            if digest in told:
                repeats += 1
                if repeats > _MAX_REPEATS:
                    return "the strategy only repeats plans that were tried"
            else:
                repeats = 0
                trial = self._next_trial(proposal, baseline)
                told[digest] = Outcome(trial.loss, trial.passed, trial.score)
            self.strategy.tell(proposal, told[digest])
            # What has passed may be one step of a plan that the strategy is still building up.
            passed = self.best is not None and self.best.passed and self.strategy.may_stop
            if len(self.trials) == _FAILED_ALIKE and evaluation_error(self.trials):
                return "the evaluation raises the same for every model but the float one"
            if ended := self.budget.end(len(self.trials), self._spent(), passed):
                return ended
        return "the strategy has nothing more to try"

    def _next_trial(self, proposal: Proposal, baseline: Measurement) -> Trial:
        number = len(self.trials) + 1
        self.progress.trial_start(number, proposal.stage)
        entry = self.journal.entries.get(proposal.plan.digest)
        if entry is None:
            entry, model = self._try(proposal, number, baseline)
            trial = _trial(number, proposal, entry, resumed=False)
        else:
            trial, model = _trial(number, proposal, entry, resumed=True), None
        self.trials.append(trial)
        # Compared with the best one alone, whose model is on disk; finalists are compared with each other at the end.
        if best_trial([trial] if self.best is None else [self.best, trial]) is trial:
            self.best, self.best_model = trial, model
            if model is not None:
                self.store.replace(trial, lambda path: self.bench.adaptor.save(model, path))
        self.progress.trial_done(trial)
        return trial

    def _try(self, proposal: Proposal, number: int, baseline: Measurement) -> tuple[TrialRecord, Any]:
        """Quantize and measure; what goes wrong with this plan is recorded, and does not end the run."""
        ticket = self.journal.begin(proposal.plan)
        begun = time.perf_counter()
        model = None
        try:
            model = self.quantize(proposal.plan)
            measured = self.bench.measure(model)
            entry = self._entry(proposal.stage, baseline, measured, time.perf_counter() - begun)
        except (CalibrationError, MissingDependencyError, WorkspaceError) as error:
            if number == 1 or isinstance(error, WorkspaceError):  # it would meet every trial
                self.journal.abandon(ticket)
                raise
            entry = _failure(proposal.stage, error, time.perf_counter() - begun)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is recorded, shown, and raised if all trials fail
            entry = _failure(proposal.stage, error, time.perf_counter() - begun)
        except BaseException:
            self.journal.abandon(ticket)
            raise
        self.journal.record(ticket, proposal.plan, entry)
        return entry, model

    def _entry(self, stage: str, baseline: Measurement, measured: Measurement, seconds: float) -> TrialRecord:
        loss = self.criterion.loss(_accuracy(baseline), _accuracy(measured))
        score = self.scoring.score(baseline, measured, self.criterion)
        noise = self.scoring.noise(baseline, measured, self.criterion)
        spread = loss_spread(self.criterion, baseline, measured)
        measured = replace(measured, evidence=None)
        return TrialRecord(
            stage, measured, loss, self.criterion.allows(loss), score, seconds, noise=noise, loss_spread=spread
        )

    def _compare_finalists(self, baseline: Measurement) -> None:
        """Where speed counts, time the float model and those among which noise decided in turns, and choose anew.

        Their trials have the new latencies from then on. Where that lets others come near the best, these are timed too.
        """
        timed: set[int] = set()
        while tied := [trial for trial in finalists(self.trials, sum) if trial.noise]:
            top = max(tied, key=lambda trial: trial.score)
            ranked = [top, *(trial for trial in tied if trial is not top)][:_MOST_FINALISTS]
            out_of_time = 0 < self.budget.timeout <= self._spent() and len(self.trials) > 1
            if timed.issuperset(trial.number for trial in ranked) or out_of_time:
                break
            timed.update(trial.number for trial in ranked)
            if len(ranked) == 1 and ranked[0] is self.best and self.best_model is not None:
                models = [self.best_model]
            else:
                # All anew: one that was evaluated has adapted itself to batches that the others have not seen.
                self.best_model = None
                models = [self.quantize(trial.plan) for trial in ranked]
            measured = self.bench.measure_again(models, [t.measurement for t in ranked if t.measurement])
            ranked = [self._timed_again(trial, baseline, new) for trial, new in zip(ranked, measured, strict=True)]
            self.best = finalists(trial for trial in self.trials if trial.number in timed)[0]
            self.best_model = models[ranked.index(self.best)] if self.best in ranked else None

    def _timed_again(self, trial: Trial, baseline: Measurement, measured: Measurement) -> Trial:
        score, noise = (f(baseline, measured, self.criterion) for f in (self.scoring.score, self.scoring.noise))
        new = self.trials[trial.number - 1] = replace(trial, measurement=measured, score=score, noise=noise)
        return new

    def _model_of(self, best: Trial) -> Any:
        """The best model: the one in memory, or made again from its plan where an earlier run found it."""
        if self.best_model is None:
            self.best_model = self.quantize(best.plan)
        if not self.store.holds(best):
            self.store.replace(best, lambda path: self.bench.adaptor.save(self.best_model, path))
        return self.best_model

    def _spent(self) -> float:
        """Seconds this job has taken, earlier runs included."""
        return time.perf_counter() - self.started + sum(trial.seconds for trial in self.trials if trial.resumed)

    def _explain(self, interrupt: KeyboardInterrupt) -> None:
        kept = f"; the best model so far (trial {self.best.number}) is in {self.store.model}" if self.best else ""
        message = (
            f"interrupted after {len(self.trials)} trials, all of them kept in {self.journal.address}{kept}. "
            "Run the same command again to go on"
        )
        self.progress.interrupted(message)
        interrupt.args = interrupt.args or (message,)

    def _metadata(self, baseline: Measurement, stopped: str) -> dict[str, Any]:
        reference = _accuracy(baseline)
        missing = self.scoring.unmeasured(baseline)
        return {
            "study": self.journal.name,
            "storage": self.journal.address,
            "best_model": str(self.store.model),
            "strategy": type(self.strategy).__name__,
            "objective": dict(self.scoring.weights),
            "tolerable_loss": self.criterion.tolerable_loss,
            "higher_is_better": self.criterion.higher_is_better,
            "relative": self.criterion.relates_to(reference),
            "promise": self.criterion.limit(reference),
            "stopped": stopped,
            "notes": [
                *self.journal.notes,
                *filter(None, [undecided(self.best, baseline, self.criterion)]),
                *(f"objective {name!r} could not be measured and had no say in the choice" for name in missing),
            ],
        }


def _accuracy(measured: Measurement) -> float:
    if measured.accuracy is None:
        raise EvaluationError("a tuning run needs an evaluation, and this measurement has no accuracy")
    return measured.accuracy


def _trial(number: int, proposal: Proposal, entry: TrialRecord, resumed: bool) -> Trial:
    loss = math.inf if entry.loss is None else entry.loss
    outcome = {**vars(entry), "stage": proposal.stage, "loss": loss}
    return Trial(number, plan=proposal.plan, resumed=resumed, **outcome)


def _failure(stage: str, error: Exception, seconds: float) -> TrialRecord:
    return TrialRecord(stage, None, None, False, 0.0, seconds, f"{type(error).__name__}: {error}")
