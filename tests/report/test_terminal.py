import dataclasses
import io
import math

import pytest
from rich.console import Console
from sample_result import sample_result

from neural_compressor.report.quantities import shown_loss
from neural_compressor.report.terminal import TuningProgress, print_ops, print_result
from neural_compressor.tuning.reporter import Progress
from neural_compressor.tuning.result import Measurement


def printed(result, width=120):
    console = Console(file=io.StringIO(), width=width)
    print_result(result, console)
    return console.file.getvalue()


def row_of(text, start):
    (line,) = [line for line in text.splitlines() if line.split()[:1] == [start]]
    return line


def test_table_shows_the_baseline_every_trial_and_the_verdict():
    result = sample_result()
    text = printed(result)
    assert row_of(text, "baseline").split()[1:] == ["0.9833", "–", "1.31", "MB", "–", "4.21", "ms", "–", "–"]
    best = result.best
    cells = row_of(text, f"*{best.number}")
    for part in (best.stage, f"{best.measurement.accuracy:.4f}", f"{100 * best.loss:.2f}%", "pass"):
        assert part in cells
    assert f"{1310000 / best.measurement.size_bytes:.2f}x" in cells
    assert f"{4.21 / best.measurement.latency_ms:.2f}x" in cells
    assert "failed in trial 10: EvaluationError: eval_func returned nan" in text
    assert "promise met: trial" in text
    assert "(journal)" in row_of(text, "1")


def test_a_line_says_what_runs_in_integers_what_is_simulated_and_what_stays_in_float():
    lines = [line.strip() for line in printed(sample_result(), 160).splitlines()]
    assert "integers: 1 Conv2d (onednn.qconv)" in lines
    assert "simulated: 1 Conv2d (no 4-bit kernel)" in lines
    assert "float: 1 LayerNorm (the framework YAML has no quantized LayerNorm)" in lines


def test_ops_alone_are_in_colours_on_a_terminal_and_plain_elsewhere():
    def shown(**console):
        console = Console(file=io.StringIO(), width=160, **console)
        print_ops(sample_result(hostile="\x1b[2J[red]").ops, console)
        return console.file.getvalue()

    assert "\x1b[32m integers: " in shown(force_terminal=True, color_system="standard")
    assert "\x1b[33msimulated: " in shown(force_terminal=True, color_system="standard")
    assert "\x1b" not in shown()
    assert "float: 1 LayerNorm (the framework YAML has no quantized LayerNorm)" in shown()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_it_fits_the_terminal_and_keeps_all_numbers(width):
    result = sample_result()
    text = printed(result, width)
    assert max(map(len, text.splitlines())) <= width
    for trial in result.trials[:-1]:
        assert f"{trial.measurement.accuracy:.4f}" in text
        assert f"{100 * trial.loss:.2f}%" in text or f"{100 * trial.loss:.4f}%" in text


def test_the_middle_of_a_long_list_is_left_out_but_never_the_best():
    result = sample_result(99)
    result = dataclasses.replace(result, best=result.trials[49])
    text = printed(result)
    assert row_of(text, "*50")
    assert row_of(text, "1")
    assert row_of(text, "100")
    assert "... 37 more trials ..." in text
    assert "... 38 more trials ..." in text
    assert sum(line.strip().lstrip("*").split(" ")[0].isdigit() for line in text.splitlines()) == 24 + 1


def test_a_loss_just_over_the_promise_does_not_read_as_kept():
    result = sample_result()
    close = dataclasses.replace(result.trials[0], loss=0.010022, passed=False)
    text = printed(dataclasses.replace(result, trials=[close], best=close, met=False))
    assert "1.0022%" in text


def test_absolute_losses_are_not_percentages():
    result = sample_result()
    result.metadata["relative"] = False
    assert f"{result.trials[0].loss:.4g}" in row_of(printed(result), "1")
    assert "3.23%" not in printed(result)


def test_names_cannot_speak_to_the_terminal_or_to_rich():
    result = sample_result(hostile="\x1b[2J[bold red]\r\x07\u202e")
    console = Console(file=io.StringIO(), width=120)
    print_result(result, console)
    text = console.file.getvalue()
    assert not set(text) & set("\x1b\r\x07\u202e")
    assert "[2J[bold red]" in text


def test_no_evaluation_prints_without_an_accuracy():
    result = sample_result(1)
    trial = dataclasses.replace(
        result.trials[0], loss=math.nan, passed=False, measurement=Measurement(None, 2.0, 400_000)
    )
    result = dataclasses.replace(
        result, trials=[trial], best=trial, met=False, criterion="none", baseline=Measurement(None, 4.0, 800_000)
    )
    line = row_of(printed(result), "*1")
    assert "unchecked" in line
    assert "2.00x" in line
    assert "nan" not in printed(result)


def drive(progress: Progress, result):
    progress.baseline_start()
    progress.baseline_done(result.baseline)
    for trial in result.trials:
        progress.trial_start(trial.number, trial.stage)
        progress.trial_done(trial)
    progress.interrupted("run it again to go on")


def watched(*, quiet=False, **console):
    console = Console(file=io.StringIO(), width=100, **console)
    with TuningProgress(50, console, quiet=quiet, title="digits") as progress:
        drive(progress, sample_result(3))
    return console.file.getvalue()


def test_without_a_terminal_each_step_is_one_plain_line():
    lines = watched().splitlines()
    assert lines[0] == "baseline: accuracy 0.9833, 1.31 MB, 4.21 ms"
    assert lines[1].startswith("trial 1 [default] (from the journal): accuracy 0.9516, 413 kB, 3.18x smaller, 1.6")
    assert lines[1].endswith("x, miss")
    assert lines[4].startswith("trial 4 [all dynamic]: failed: EvaluationError")
    assert lines[5] == "run it again to go on"
    assert "\x1b" not in watched()


def test_on_a_terminal_a_bar_tells_what_goes_on():
    text = watched(force_terminal=True)
    assert "digits: trial 4: all dynamic" in text
    assert "4/50" in text
    assert "accuracy" not in text


def test_quiet_says_nothing():
    assert watched(quiet=True) == ""
    assert watched(quiet=True, force_terminal=True) == ""


def test_a_model_that_is_not_faster_than_float_is_no_green_verdict():
    def styles(result):
        console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
        print_result(result, console)
        return [
            line for line in console.file.getvalue().splitlines() if "tried is faster" in line or "promise met" in line
        ]

    (kept,) = styles(sample_result())
    slow = dataclasses.replace(sample_result(), verdict="nothing tried is faster than float here", beats_float=False)
    (slower,) = styles(slow)
    assert "\x1b[1;32m" in kept
    assert "\x1b[1;33m" in slower


def test_a_loss_that_misses_by_less_than_is_printed_is_not_shown_as_the_limit():
    result = sample_result()
    missed = dataclasses.replace(result.trials[0], loss=0.01 + 2e-8, passed=False)
    assert shown_loss(missed, result) == ">1.0000%"
    assert shown_loss(dataclasses.replace(missed, loss=0.01002), result) == "1.0020%"
    assert shown_loss(dataclasses.replace(missed, loss=-1e-9, passed=True), result) == "0.00%"
