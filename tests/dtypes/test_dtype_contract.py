"""Every data type of the catalogue keeps the contract that is shipped for others."""

from __future__ import annotations

import pytest

from neural_compressor.dtypes import DTYPES, BlockType, CodebookType, DType, FloatType, IntType, register_dtype
from neural_compressor.dtypes.catalogue import e8m0, fp8_e4m3
from neural_compressor.testing import DTypeContract

CATALOGUE = DTYPES.names()


@pytest.mark.parametrize("name", CATALOGUE, scope="class")
class TestCatalogue(DTypeContract):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def make_dtype(self) -> DType:
        return DTYPES[self.name]


OWN: list[DType] = [
    CodebookType("own_ternary", (-1.0, 0.0, 1.0)),
    CodebookType("own_lopsided", (0.25, -2.0, 0.0, 0.5, -0.75)),
    CodebookType("own_unsigned", (0.0, 0.1, 1.0)),
    FloatType("own_fp5_e3m1", 3, 1, specials="none"),
    FloatType("own_unsigned_float", 3, 2, signed=False),
    FloatType("own_powers", 4, 0, specials="none"),
    BlockType("own_mxint4", IntType(4), 16, e8m0),
    BlockType("own_mxfp5", FloatType("own_element", 3, 1, specials="none"), 8, e8m0),
    BlockType("own_scaled_int3", IntType(3), 10, fp8_e4m3),
    BlockType("own_twice_scaled_int6", IntType(6), 10, fp8_e4m3, tensor_scale=True),
]


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.name)
class TestOwn(DTypeContract):
    @pytest.fixture(autouse=True)
    def _registered(self, kind: DType) -> None:
        self.kind = register_dtype(kind, replace=True)

    def make_dtype(self) -> DType:
        return self.kind


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
