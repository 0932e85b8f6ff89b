"""Races of kernels, on clocks that the tests turn themselves."""

from neural_compressor.kernel_race import Race
from neural_compressor.kernel_timings import KernelTimings


def test_waiting_for_a_core_is_no_time_of_a_work() -> None:
    passed = used = 0.0

    def work(seconds: float, waits: float):
        def run() -> None:
            nonlocal passed, used
            passed += seconds + waits
            used += seconds

        return lambda: run

    race = Race(KernelTimings(None), lambda: passed, lambda: used)
    times = race.microseconds({"int8": work(0.001, waits=0.004), "float": work(0.003, waits=0.0)})
    assert {name: round(value) for name, value in times.items()} == {"int8": 1000, "float": 3000}


def test_threads_count_as_what_passes() -> None:
    passed = used = 0.0

    def run() -> None:
        nonlocal passed, used
        passed += 0.001
        used += 0.002

    race = Race(KernelTimings(None), lambda: passed, lambda: used)
    assert round(race.microseconds({"on two threads": lambda: run})["on two threads"]) == 1000
