"""The configuration of a benchmark: how many processes, on which share of the machine, and how often."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from neural_compressor.config.base import ConfigModel
from neural_compressor.config.validators import BACKENDS, DEVICES, Flag, Names, at_least, optional, text, word
from neural_compressor.errors import ConfigError


def _iteration(value: Any) -> int:
    return -1 if value == -1 and not isinstance(value, bool) else at_least(1)(value)


Count = Annotated[int | None, BeforeValidator(optional(at_least(1)))]


class BenchmarkConfig(ConfigModel):
    """How :func:`neural_compressor.benchmark.fit` runs a model.

    ``num_of_instance`` processes run side by side, each on ``cores_per_instance`` cores of its own; without it they share
    what there is. Each has ``intra_num_of_threads`` threads, by default one a core. The first ``warmup`` calls do not
    count; then come ``iteration`` batches, beginning anew where data ends, or with -1 all data once. For ``b_func`` both
    count its calls: by default there is one, and no other before it.

    >>> BenchmarkConfig(cores_per_instance=4, num_of_instance=7).warmup
    5
    """

    inputs: Names = Field(default_factory=list)
    outputs: Names = Field(default_factory=list)
    backend: Annotated[str, BeforeValidator(word(BACKENDS))] = "default"
    device: Annotated[str, BeforeValidator(word(DEVICES))] = "cpu"
    warmup: Annotated[int, BeforeValidator(at_least(0))] = 5
    iteration: Annotated[int, BeforeValidator(_iteration)] = -1
    model_name: Annotated[str, BeforeValidator(text)] = ""
    cores_per_instance: Count = None
    num_of_instance: Annotated[int, BeforeValidator(lambda value: 1 if value is None else at_least(1)(value))] = 1
    inter_num_of_threads: Count = None
    intra_num_of_threads: Count = None
    diagnosis: Flag = False
    ni_workload_name: Annotated[str, BeforeValidator(text)] = "profiling"

    def check(self) -> None:
        """Refuse what nothing here reads."""
        reasons = {
            "model_name": "a model is known by what it is",
            "inter_num_of_threads": "operators of a model run one after the other; intra_num_of_threads is read",
            "diagnosis": "what ops take is in the reports of quantization.fit",
            "ni_workload_name": "no workload is written",
        }
        for name, (given, usual) in self.changed(*reasons).items():
            raise ConfigError(f"BenchmarkConfig.{name}: got {given!r}: {reasons[name]}; leave it at {usual!r}")
