"""The race of kernels for PyTorch models: what is raced where, and when."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata

import torch

from neural_compressor import kernel_race
from neural_compressor.kernel_race import Referee, Work
from neural_compressor.kernel_timings import KernelTimings

__all__ = ["Race", "Work", "current_race", "instructions", "machine_race", "racing"]


class Race(kernel_race.Race):
    """Works of torch, which run without gradients."""

    def _measured(self, works: Mapping[str, Work]) -> dict[str, float]:
        with torch.no_grad():
            return super()._measured(works)


@functools.cache
def machine_race() -> Race:
    """The race whose results are kept for this CPU and these versions."""
    versions = {"torch": str(torch.__version__)}
    with suppress(metadata.PackageNotFoundError):
        versions["onnxruntime"] = metadata.version("onnxruntime")
    return Race(KernelTimings.of_machine(instructions(), versions))


@functools.cache
def instructions() -> str:
    """The instructions for matrix products that torch finds in this CPU."""
    extra = {
        "VNNI": torch.cpu._is_vnni_supported(),
        "BF16": torch.cpu._is_avx512_bf16_supported(),
        "AMX": torch.cpu._is_amx_tile_supported(),
    }
    return "-".join([torch.backends.cpu.get_cpu_capability(), *(name for name, has in extra.items() if has)])


_referee = Referee(machine_race)
current_race = _referee.current
racing = _referee.racing
