"""How many matrices of the size of the Hessian GPTQ holds: that of a wide layer outweighs its weight many times."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import InputStatistics, Rotation, gptq, upstream_pull
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PerGroup, TensorScheme

INPUTS, OUTPUTS = 1024, 8
SQUARE = 4 * INPUTS * INPUTS
SCHEME = TensorScheme(dtype("int4"), True, PerGroup(64))


def numpy_peak(run: Callable[[], Any], held: list[Any]) -> int:
    """The most bytes that arrays made in ``run`` take at once; what is loaded on first use is loaded before."""
    gptq(np.ones((1, 2), np.float32), np.eye(2, dtype=np.float32), SCHEME)
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def torch_peak(run: Callable[[], Any], held: list[Any]) -> int:
    """The same for tensors, ``held`` being there before."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Live(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.sizes = {tensor.untyped_storage()._cdata: 0 for tensor in held}
            self.peak = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(made):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    if storage._cdata not in self.sizes:
                        self.sizes[storage._cdata] = storage.nbytes()
                        weakref.finalize(storage, self.sizes.pop, storage._cdata)
            self.peak = max(self.peak, sum(self.sizes.values()))
            return made

    with Live() as live:
        run()
    return live.peak


def layer(library: str) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    seen = rng.standard_normal((64, INPUTS)).astype(np.float32)
    hessian = seen.T @ seen + 8 * np.eye(INPUTS, dtype=np.float32)
    cross = 0.01 * rng.standard_normal((INPUTS, INPUTS)).astype(np.float32)
    weight = rng.standard_normal((OUTPUTS, INPUTS)).astype(np.float32)
    if library == "numpy":
        return weight, hessian, cross
    torch = pytest.importorskip("torch")
    return torch.from_numpy(weight), torch.from_numpy(hessian), torch.from_numpy(cross)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_it_holds_one_matrix_beside_the_hessian_or_none(library: str) -> None:
    weight, hessian, cross = layer(library)
    peak = {"numpy": numpy_peak, "torch": torch_peak}[library]
    before, found = np.asarray(hessian).copy(), []

    def pull(rows: slice) -> Any:
        return upstream_pull(weight[rows, :], cross)

    def run(**options: Any) -> None:
        found.append(gptq(weight, hessian, SCHEME, pull=pull, hybrid_order=True, **options))

    beside = peak(run, [weight, hessian, cross]) / SQUARE
    np.testing.assert_array_equal(hessian, before)
    in_place = peak(lambda: run(overwrite_hessian=True), [weight, hessian, cross]) / SQUARE
    assert 1 < beside < 1.5
    assert in_place < 0.5
    np.testing.assert_array_equal(found[0].array.codes, found[1].array.codes)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_rotation_can_turn_the_hessian_in_its_place(library: str) -> None:
    _, hessian, _ = layer(library)
    rotation = Rotation(INPUTS, seed=0)
    copied = rotation.apply_to_hessian(hessian)
    peak = {"numpy": numpy_peak, "torch": torch_peak}[library]
    assert peak(lambda: rotation.apply_to_hessian(hessian, overwrite=True), [hessian]) < 0.6 * SQUARE
    np.testing.assert_array_equal(hessian, copied)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_pull_is_never_there_as_a_whole(library: str) -> None:
    _, hessian, cross = layer(library)
    hessian, cross = hessian[:128, :128], cross[:128, :128]
    values = np.random.default_rng(0).standard_normal((4096, 128)).astype(np.float32)
    weight = values if library == "numpy" else pytest.importorskip("torch").from_numpy(values)
    peak = {"numpy": numpy_peak, "torch": torch_peak}[library]

    def run(pull: Any) -> int:
        return peak(lambda: gptq(weight, hessian, SCHEME, pull=pull), [weight, hessian, cross])

    assert run(lambda rows: upstream_pull(weight[rows, :], cross)) < run(None) + 0.5 * values.nbytes


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_is_kept_for_a_weight_is_added_up_in_strips(library: str) -> None:
    values = np.random.default_rng(0).standard_normal((1024, 2048)).astype(np.float32)
    weight = values if library == "numpy" else pytest.importorskip("torch").from_numpy(values)
    x = weight[:2, :]
    statistics = InputStatistics(weight=weight)
    peak = {"numpy": numpy_peak, "torch": torch_peak}[library]
    kept = 4 * 2048 * 2048 + values.nbytes
    assert kept <= peak(lambda: statistics.update(x, 2 * x), [weight]) < kept + 0.5 * values.nbytes
