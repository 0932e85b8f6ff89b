"""The divergence, against the definition written out bin by bin."""

from __future__ import annotations

import math

import numpy as np
import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.observers import KLObserver
from neural_compressor.observers.kl import Divergence, bins_inside
from neural_compressor.observers.threshold_search import quantized_rows
from neural_compressor.schemes import TensorScheme, choose_qparams, fake_quantize


def by_hand(observer: KLObserver, low: float, high: float, scheme: TensorScheme) -> float:
    """The divergence of what quantization leaves, in plain Python."""
    seen = observer.seen()
    bins = [
        (float(centre), int(count))
        for centre, count, zero in zip(seen.centres[0], seen.counts[0], seen.zero_bin[0], strict=True)
        if not zero
    ]
    inside = [place for place, (centre, _) in enumerate(bins) if low <= centre <= high]
    kept = {place: bins[place][1] for place in inside}
    clipped = dict(kept)
    clipped[inside[0]] += sum(count for centre, count in bins if centre < low)
    clipped[inside[-1]] += sum(count for centre, count in bins if centre > high)
    params = choose_qparams(np.float32(low), np.float32(high), scheme)
    levels: dict[float, list[int]] = {}
    for place in inside:
        if kept[place]:
            value = float(fake_quantize(np.float32(bins[place][0]), scheme, params))
            levels.setdefault(value, []).append(place)
    spread = {place: sum(kept[p] for p in level) / len(level) for level in levels.values() for place in level}
    total_p, total_q = sum(clipped.values()), sum(kept.values())
    return sum(
        p / total_p * math.log((p / total_p) / max(spread.get(place, 0) / total_q, 1e-10))
        for place, p in clipped.items()
        if p
    )


DATA = {
    "many": np.random.default_rng(5).standard_normal(3000),
    "few": np.random.default_rng(5).standard_normal(60),  # the bins at the ends of a range are empty
    "relu": np.maximum(np.random.default_rng(5).standard_normal(3000), 0),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", ["int8", "int4", "nf4", "fp4_e2m1"])
def test_the_divergence_is_the_one_of_the_definition(name: str, data: str) -> None:
    observer = KLObserver()
    observer.update(DATA[data].astype(np.float32))
    scheme, end, seen = TensorScheme(dtype(name)), np.asarray([0.8, 1.9, 3.3]), observer.seen()
    values = quantized_rows(seen.centres[:, seen.filled], -end, end, scheme)
    found = Divergence(seen)(values, np.zeros(3, int), *bins_inside(seen.centres, -end, end))
    assert found == pytest.approx([by_hand(observer, -t, t, scheme) for t in end], rel=1e-6)


def test_each_channel_has_its_own() -> None:
    x = np.random.default_rng(6).laplace(size=(3, 400)).astype(np.float32) * np.float32([[1], [50], [0.02]])
    scheme, thresholds = TensorScheme(dtype("int4")), np.float64([2, 120, 0.03])

    def found(observer: KLObserver, channel: np.ndarray, end: np.ndarray) -> np.ndarray:
        seen = observer.seen()
        values = quantized_rows(seen.centres[:, seen.filled], -end, end, scheme)
        return Divergence(seen)(values, channel, *bins_inside(seen.centres, -end, end))

    together = KLObserver(axis=0)
    together.update(x)
    alone = [KLObserver(axis=0) for _ in x]
    for observer, row in zip(alone, x, strict=True):
        observer.update(row[None])
    apart = [found(o, np.zeros(1, int), thresholds[i : i + 1])[0] for i, o in enumerate(alone)]
    assert found(together, np.arange(3), thresholds) == pytest.approx(apart, rel=1e-12)
    assert len(set(apart)) == 3
