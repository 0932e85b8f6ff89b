"""Mean average precision of detected boxes, as the COCO and VOC evaluations define it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neural_compressor.errors import ConfigError, EvaluationError
from neural_compressor.tuning.metrics import METRICS, Metric
from neural_compressor.tuning.predictions import Array, as_array

_MOST = 100
"""Found boxes of an image and class that count, the surest first, as in COCO; wanted ones count all."""


@dataclass(frozen=True)
class _Boxes:
    """Boxes (x1, y1, x2, y2) of one image, their classes, and how sure a model is of each."""

    boxes: Array
    classes: Array
    scores: Array

    @classmethod
    def read(cls, what: str, boxes: Any, classes: Any, scores: Any = None) -> _Boxes:
        found = as_array(boxes).astype(np.float64).reshape(-1, 4) if np.size(as_array(boxes)) else np.zeros((0, 4))
        kinds = as_array(classes).reshape(-1)
        sure = np.ones(len(kinds)) if scores is None else as_array(scores).astype(np.float64).reshape(-1)
        if not len(found) == len(kinds) == len(sure):
            raise EvaluationError(
                f"metric map: {len(found)} boxes, {len(kinds)} classes and {len(sure)} scores in the {what} of an image; "
                "each box has one of them"
            )
        there = kinds >= 0
        return cls(found[there], kinds[there].astype(np.int64), sure[there])

    def of(self, kind: int, most: int | None = None) -> _Boxes:
        """Those of a class, the surest first, and at ``most`` so many."""
        chosen = np.flatnonzero(self.classes == kind)
        chosen = chosen[np.argsort(-self.scores[chosen], kind="stable")][:most]
        return _Boxes(self.boxes[chosen], self.classes[chosen], self.scores[chosen])


@METRICS.register("map", "vocmap")
class MeanAveragePrecision(Metric):
    """The mean over classes, and over thresholds of the overlap (``iou_thrs``), of the precision over recall.

    A batch is one mapping an image, with ``boxes`` (x1, y1, x2, y2), ``labels`` and of predictions ``scores``; or arrays
    (images, boxes, 4), (images, boxes) of scores and of classes, in this order, and of labels (boxes, classes); a class
    below 0 fills up. ``map_points`` are the recalls at which precision is read: 101 as in COCO, 11, or 0 for all there are.

    >>> metric = MeanAveragePrecision()
    >>> found = {"boxes": [[0, 0, 2, 2], [5, 5, 6, 6]], "scores": [0.9, 0.8], "labels": [1, 1]}
    >>> metric.update([found], [{"boxes": [[0, 0, 2, 2]], "labels": [1]}])
    >>> metric.result()
    1.0
    """

    name = "map"

    def __init__(self, iou_thrs: float | str | Sequence[float] = 0.5, map_points: int = 0) -> None:
        if map_points not in (0, 11, 101):
            raise ConfigError(f"metric map: map_points is {map_points!r}, expected 0, 11 or 101")
        self.map_points = map_points
        self.iou_thrs = _thresholds(iou_thrs)
        self.reset()

    def reset(self) -> None:
        self._images: list[tuple[_Boxes, _Boxes]] = []

    def update(self, preds: Any, labels: Any) -> None:
        found = [_Boxes.read("predictions", *parts) for parts in _images(preds, ("boxes", "labels", "scores"))]
        wanted = [_Boxes.read("labels", *parts) for parts in _images(labels, ("boxes", "labels"))]
        if len(found) != len(wanted):
            raise EvaluationError(f"metric map: predictions of {len(found)} images for labels of {len(wanted)}")
        self._images += zip(found, wanted, strict=True)

    def result(self) -> float:
        kinds = sorted({int(kind) for _, wanted in self._images for kind in wanted.classes})
        if not kinds:
            raise EvaluationError(
                "metric map saw no data with boxes in the labels; the evaluation data has to have some"
            )
        return float(np.mean([[self._precision(kind, least) for kind in kinds] for least in self.iou_thrs]))

    def _precision(self, kind: int, least: float) -> float:
        scores, right, count = [], [], 0
        for found, wanted in ((found.of(kind, _MOST), wanted.of(kind)) for found, wanted in self._images):
            scores.append(found.scores)
            right.append(_matched(_overlaps(found.boxes, wanted.boxes), least))
            count += len(wanted.boxes)
        order = np.argsort(-np.concatenate(scores), kind="stable")
        hits = np.cumsum(np.concatenate(right)[order])
        recall, precision = hits / count, hits / np.arange(1, len(hits) + 1)
        return _area(recall, np.maximum.accumulate(precision[::-1])[::-1], self.map_points)


@METRICS.register("cocomap", "cocomapv2")
class CocoMeanAveragePrecision(MeanAveragePrecision):
    """:class:`MeanAveragePrecision` of overlaps from 0.5 to 0.95, read at 101 recalls."""

    def __init__(self, iou_thrs: float | str | Sequence[float] = "0.5:0.05:0.95", map_points: int = 101) -> None:
        super().__init__(iou_thrs, map_points)


def _thresholds(given: Any) -> tuple[float, ...]:
    """One overlap, several, or ``"first:step:last"``."""
    try:
        if isinstance(given, str) and ":" in given:
            first, step, last = (float(part) for part in given.split(":"))
            found = [first + step * place for place in range(round((last - first) / step) + 1)]
        else:
            found = [float(each) for each in (given if isinstance(given, tuple | list) else [given])]
    except (ValueError, TypeError, ZeroDivisionError):
        found = []
    if not found or not all(0 < each <= 1 for each in found):
        raise ConfigError(
            f"metric map: iou_thrs is {given!r}, expected overlaps above 0 up to 1, such as '0.5:0.05:0.95'"
        )
    return tuple(found)


def _images(batch: Any, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Boxes, classes, and scores where they are asked for, of each image of a batch."""
    if isinstance(batch, Mapping):
        batch = [batch]
    if isinstance(batch, tuple | list) and all(isinstance(each, Mapping) for each in batch):
        for image in batch:
            if missing := [name for name in names if name not in image]:
                raise EvaluationError(f"metric map: an image has {', '.join(image)} and lacks {', '.join(missing)}")
            yield tuple(image[name] for name in names)
        return
    if not isinstance(batch, tuple | list) or len(batch) != len(names):
        expected = ", ".join(("boxes", "scores", "classes") if len(names) == 3 else ("boxes", "classes"))
        raise EvaluationError(
            f"metric map: got a {type(batch).__name__}, expected a mapping an image, or arrays ({expected})"
        )
    boxes, *others = (as_array(part) for part in batch)
    for place, each in enumerate(boxes):
        yield (each, *(part[place] for part in reversed(others)))


def _overlaps(found: Array, wanted: Array) -> Array:
    """The area that two boxes share, of what they cover together: (found, wanted)."""
    low = np.maximum(found[:, None, :2], wanted[None, :, :2])
    high = np.minimum(found[:, None, 2:], wanted[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1) for boxes in (found, wanted)]
    total = areas[0][:, None] + areas[1][None] - shared
    shares: Array = shared / np.where(total > 0, total, 1)
    return shares


def _matched(overlaps: Array, least: float) -> Array:
    """Whether each found box, the surest first, has a wanted one that is left, of which it takes the nearest."""
    left = np.ones(overlaps.shape[1], dtype=bool)
    matched = np.zeros(len(overlaps))
    for place, row in enumerate(overlaps):
        # Of equal overlaps COCO takes the last.
        best = max(
            (j for j in np.flatnonzero(left) if row[j] >= min(least, 1 - 1e-10)),
            key=lambda j: (row[j], j),
            default=None,
        )
        if best is not None:
            left[best], matched[place] = False, 1
    return matched


def _area(recall: Array, precision: Array, points: int) -> float:
    """The mean of ``precision``, which does not rise, at so many recalls, or the area under it."""
    if not points:
        return float((np.diff(recall, prepend=0) * precision).sum())
    at = np.searchsorted(recall, np.linspace(0, 1, points), side="left")
    return float(np.append(precision, 0.0)[np.minimum(at, len(precision))].mean())
