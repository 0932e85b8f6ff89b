"""Algorithms by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import (
    ALGORITHMS,
    InputStatistics,
    LayerResult,
    gptq,
    register_algorithm,
    rtn,
    upstream_pull,
)
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.schemes import PerGroup, TensorScheme

SCHEME = TensorScheme(dtype("int4"), True, PerGroup(32))


def test_a_search_by_name_weighs_inputs_with_what_was_seen(weight: Any, statistics: InputStatistics) -> None:
    found = ALGORITHMS["rtn"](weight, SCHEME, statistics, search="mse")
    by_hand = rtn(weight, SCHEME, statistics.mean_square, "mse")
    np.testing.assert_array_equal(found.array.codes, by_hand.codes)


def test_upstream_error_is_made_up_for_where_it_is_known(weight: Any, vectors: Any) -> None:
    seen = InputStatistics()
    seen.update(vectors * np.float32(0.9), vectors)
    found = ALGORITHMS["gptq"](weight, SCHEME, seen)
    assert seen.cross is not None
    by_hand = gptq(weight, seen.hessian, SCHEME, pull=lambda rows: upstream_pull(weight[rows, :], seen.cross))
    np.testing.assert_array_equal(found.array.codes, by_hand.array.codes)
    without = ALGORITHMS["gptq"](weight, SCHEME, seen, upstream=False)
    np.testing.assert_array_equal(without.array.codes, gptq(weight, seen.hessian, SCHEME).array.codes)
    assert (found.array.codes != without.array.codes).any()


def test_an_unknown_name_helps_and_an_unknown_option_is_an_error(weight: Any) -> None:
    with pytest.raises(ConfigError, match="did you mean 'gptq'"):
        _ = ALGORITHMS["gpqt"]
    with pytest.raises(ConfigError, match="no option 'banana'"):
        ALGORITHMS["rtn"](weight, SCHEME, banana=1)


def test_one_more_is_a_function_away(weight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ALGORITHMS, "_items", dict(ALGORITHMS._items))

    @register_algorithm("halved", needs_statistics=True)
    def halved(weight: Any, scheme: TensorScheme, statistics: InputStatistics) -> LayerResult:
        return LayerResult(rtn(weight / 2, scheme))

    with pytest.raises(CalibrationError, match="halved needs the statistics"):
        ALGORITHMS["halved"](weight, SCHEME)


def test_a_framework_is_not_needed() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from neural_compressor.algorithms import ALGORITHMS\n"
        "print(len(ALGORITHMS.names()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "6", done.stderr
