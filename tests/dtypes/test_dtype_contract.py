"""Every data type of the catalogue keeps the contract that is shipped for others."""

from __future__ import annotations

import pytest

from neural_compressor.dtypes import DTYPES, CodebookType, DType
from neural_compressor.testing import DTypeContract

CATALOGUE = DTYPES.names()


@pytest.mark.parametrize("name", CATALOGUE, scope="class")
class TestCatalogue(DTypeContract):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def make_dtype(self) -> DType:
        return DTYPES[self.name]


def test_the_suite_notices_a_type_that_was_not_registered() -> None:
    class Suite(DTypeContract):
        def make_dtype(self) -> DType:
            return CodebookType("nobody_knows", (-1.0, 0.0, 1.0))

    with pytest.raises(AssertionError, match="register 'nobody_knows'"):
        Suite().test_it_is_registered_under_its_name()


def test_the_suite_notices_bounds_that_are_not_those_of_the_grid() -> None:
    class Boastful(CodebookType):
        @property
        def max(self) -> float:
            return 2 * super().max

    class Suite(DTypeContract):
        def make_dtype(self) -> DType:
            return Boastful("boastful", (-1.0, 0.0, 1.0))

    with pytest.raises(AssertionError):
        Suite().test_its_bounds_are_the_ends_of_its_grid()
