"""Every data type of the catalogue keeps the contract that is shipped for others."""

from __future__ import annotations

import pytest

from neural_compressor.dtypes import DTYPES, DType
from neural_compressor.testing import DTypeContract

CATALOGUE = [name for name in DTYPES if not name.startswith("doc_")]


@pytest.mark.parametrize("name", CATALOGUE, scope="class")
class TestCatalogue(DTypeContract):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def make_dtype(self) -> DType:
        return DTYPES[self.name]
