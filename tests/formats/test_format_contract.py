"""Every checkpoint format keeps the contract that is shipped for others, and the contract notices formats that do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from neural_compressor.formats import FORMATS, CheckpointFormat, LinearWeight, PackQuantized
from neural_compressor.testing import FormatContract


@pytest.mark.parametrize("name", FORMATS.names(), scope="class")
class TestFormats(FormatContract):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def make_format(self) -> CheckpointFormat:
        return FORMATS[self.name]


class Suite(FormatContract):
    """Not collected: its name does not begin with Test."""

    def __init__(self, form: CheckpointFormat) -> None:
        self.form = form

    def make_format(self) -> CheckpointFormat:
        return self.form


def test_the_suite_notices_a_format_that_was_not_registered() -> None:
    class Unknown(PackQuantized):
        name = "nobody_knows"

    with pytest.raises(AssertionError, match="register 'nobody_knows'"):
        Suite(Unknown()).test_it_is_registered_under_its_name()


def test_the_suite_notices_lost_zero_points() -> None:
    class Forgetful(PackQuantized):
        def decompress(self, tensors: Mapping[str, Any], config: Mapping[str, Any], name: str = "") -> LinearWeight:
            weight = super().decompress(tensors, config, name)
            return LinearWeight(weight.codes, weight.scale, None, weight.bits, weight.group_size)

    with pytest.raises(AssertionError):
        Suite(Forgetful()).test_what_is_stored_is_read_again()


def test_the_suite_notices_a_format_that_believes_anything() -> None:
    class Gullible(PackQuantized):
        def decompress(self, tensors: Mapping[str, Any], config: Mapping[str, Any], name: str = "") -> LinearWeight:
            return LinearWeight(np.zeros((2, 2), np.uint8), np.ones((2, 1), np.float32), None, 4, -1)

    with pytest.raises(pytest.fail.Exception):
        Suite(Gullible()).test_a_tensor_cut_short_is_refused()
