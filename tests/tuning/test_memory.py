import gc
import os

import numpy as np
import pytest

from neural_compressor.tuning.memory import footprint_bytes

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the system keeps one peak for all"
)


def filled(size):
    return np.ones(size, dtype=np.uint8)


class Cycle:
    """Holds memory until the garbage collector comes by."""

    def __init__(self, size):
        self.memory, self.itself = filled(size), self


def test_footprint_sees_memory_that_is_given_back():
    size = 64 * 2**20
    filled(2 * size)  # an earlier, higher peak must not hide it
    grown = footprint_bytes(lambda: filled(size).sum())
    assert 0.9 * size < grown < 2 * size
    assert footprint_bytes(lambda: None) < 2**22


def test_garbage_that_is_collected_during_the_call_does_not_hide_its_footprint():
    size = 64 * 2**20
    gc.disable()
    try:
        Cycle(2 * size)
        grown = footprint_bytes(lambda: (gc.collect(), filled(size)))
    finally:
        gc.enable()
    assert 0.9 * size < grown < 2 * size
