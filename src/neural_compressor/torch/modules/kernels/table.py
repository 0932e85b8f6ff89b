"""The table of kernels: what computes an op under a scheme on a kind of device.

Its rows stand beside the kernels they speak of: integer products (``integer.py``), products with packed weights
(``weight_only.py``), 8-bit floats (``fp8.py``). One for another device, or a faster one, registers itself.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TypeVar

from neural_compressor.schemes import OpScheme

SIMULATED = "simulated"
"""What runs an op for which there is no kernel: float arithmetic on rounded values."""


@dataclass(frozen=True)
class Kernel:
    """A row of the table."""

    name: str

    @abstractmethod
    def fits(self, op_type: str, scheme: OpScheme, device: str = "cpu") -> bool:
        """Whether this kernel is one for ``op_type`` under ``scheme`` on a kind of device."""

    def runs(self, op_type: str, scheme: OpScheme, device: str = "cpu") -> bool:
        """Whether it fits, and the machine at hand computes it right."""
        return self.fits(op_type, scheme, device)


Row = TypeVar("Row", bound=Kernel)

KERNELS: list[Kernel] = []
"""Every kernel the modules know how to call, in order of preference."""


def register(*kernels: Row, first: bool = False) -> tuple[Row, ...]:
    """Add rows to the table, behind those that are there or before them."""
    at = 0 if first else len(KERNELS)
    KERNELS[at:at] = kernels
    return kernels


def kernels_of(kind: type[Row]) -> list[Row]:
    """The kernels of one kind."""
    return [kernel for kernel in KERNELS if isinstance(kernel, kind)]


def kernel_for(op_type: str, scheme: OpScheme, device: str = "cpu") -> Kernel | None:
    """The kernel of this machine for an op, or None."""
    return next((kernel for kernel in KERNELS if kernel.runs(op_type, scheme, device)), None)
