"""Mean average precision against cases counted by hand, and against pycocotools."""

import contextlib
import io

import numpy as np
import pytest
import torch

from neural_compressor.errors import ConfigError, EvaluationError
from neural_compressor.tuning.average_precision import CocoMeanAveragePrecision, MeanAveragePrecision


def image(boxes, labels, scores=None):
    found = {"boxes": boxes, "labels": labels}
    return found if scores is None else {**found, "scores": scores}


def test_counted_by_hand():
    """Three wanted; found in order of score: right, wrong, right, and one is never found.

    Recalls 1/3, 1/3, 2/3 with precisions 1, 1/2, 2/3: the area is 1/3 * 1 + 1/3 * 2/3; of 11 recalls 4 read 1, 3 read 2/3.
    """
    wanted = image([[0, 0, 2, 2], [4, 4, 6, 6], [8, 8, 9, 9]], [1, 1, 1])
    found = image([[0, 0, 2, 2], [20, 20, 21, 21], [4, 4, 6, 6]], [1, 1, 1], [0.9, 0.8, 0.7])
    for points, expected in ((0, 5 / 9), (11, (4 + 3 * 2 / 3) / 11)):
        metric = MeanAveragePrecision(map_points=points)
        metric.update([found], [wanted])
        assert metric.result() == pytest.approx(expected)


def test_every_wanted_box_counts():
    """Half of 200 are found, as many as count of an image: 51 of the 101 recalls are reached."""
    boxes = [[10 * place, 0, 10 * place + 5, 5] for place in range(200)]
    metric = CocoMeanAveragePrecision()
    metric.update([image(boxes[:100], [1] * 100, [0.9] * 100)], (image(boxes, [1] * 200),))
    assert metric.result() == pytest.approx(51 / 101)


def test_a_box_is_found_once_and_overlaps_have_to_be_large_enough():
    wanted = image([[0, 0, 10, 10]], [3])
    twice = image([[0, 0, 10, 10], [0, 0, 10, 10]], [3, 3], [0.5, 0.9])
    metric = MeanAveragePrecision()
    metric.update([twice], [wanted])
    assert metric.result() == 1  # the second comes behind full recall
    for width, expected in ((6, 1), (4, 0)):
        metric = MeanAveragePrecision()
        metric.update([image([[0, 0, width, 10]], [3], [0.5])], [wanted])
        assert metric.result() == expected
    metric.reset()
    metric.update([image(np.zeros((0, 4)), [], [])], [wanted])
    assert metric.result() == 0


def test_arrays_of_a_batch_are_the_same_as_images():
    boxes = torch.tensor([[[0.0, 0, 2, 2], [4, 4, 6, 6]], [[1, 1, 3, 3], [0, 0, 0, 0]]])
    classes = torch.tensor([[1, 2], [1, -1]])
    scores = torch.tensor([[0.9, 0.8], [0.7, 0.0]])
    wanted = torch.tensor([[[0.0, 0, 2, 2]], [[1, 1, 3, 4]]])
    arrays, images = MeanAveragePrecision(), MeanAveragePrecision()
    arrays.update((boxes, scores, classes), (wanted, torch.ones(2, 1, dtype=torch.long)))
    images.update(
        [image(boxes[0], classes[0], scores[0]), image(boxes[1][:1], classes[1][:1], scores[1][:1])],
        [image(wanted[0], [1]), image(wanted[1], [1])],
    )
    assert arrays.result() == images.result() == 1


def random_images(rng, count):
    for _ in range(count):
        corners = rng.integers(0, 20, (6, 2))
        boxes = np.hstack([corners, corners + rng.integers(2, 9, (6, 2))]).astype(float)
        moved = boxes + rng.integers(-1, 2, boxes.shape)
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        kinds = rng.integers(1, 4, 6)
        yield image(moved, rng.permutation(kinds) if rng.random() < 0.3 else kinds, rng.random(6)), image(boxes, kinds)


def coco_result(pairs):
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    truth, found = [], []
    for number, (given, wanted) in enumerate(pairs):
        for part, into in ((wanted, truth), (given, found)):
            for place, (x1, y1, x2, y2) in enumerate(part["boxes"]):
                row = {
                    "image_id": number,
                    "category_id": int(part["labels"][place]),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                }
                row |= {"id": len(into) + 1, "area": (x2 - x1) * (y2 - y1), "iscrowd": 0}
                into.append(row | ({"score": float(part["scores"][place])} if "scores" in part else {}))
    with contextlib.redirect_stdout(io.StringIO()):
        data = coco.COCO()
        ids = sorted({row["category_id"] for row in truth})
        data.dataset = {"images": [{"id": n} for n in range(len(pairs))], "annotations": truth, "info": {}}
        data.dataset["categories"] = [{"id": each} for each in ids]
        data.createIndex()
        run = evaluation.COCOeval(data, data.loadRes(found), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return run.stats[:2]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_that_of_coco(seed):
    pairs = list(random_images(np.random.default_rng(seed), 8))
    expected = coco_result(pairs)
    for metric, value in (
        (CocoMeanAveragePrecision(), expected[0]),
        (CocoMeanAveragePrecision(iou_thrs=0.5), expected[1]),
    ):
        for found, wanted in pairs:
            metric.update([found], [wanted])
        assert metric.result() == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("options", [{"iou_thrs": 0}, {"iou_thrs": "0.5:0:0.9"}, {"iou_thrs": "a"}, {"map_points": 7}])
def test_options_that_make_no_sense(options):
    with pytest.raises(ConfigError, match="metric map"):
        MeanAveragePrecision(**options)


@pytest.mark.parametrize(
    ("preds", "labels", "message"),
    [
        ([{"boxes": [], "labels": []}], [image([], [])], "lacks scores"),
        ([image([[0, 0, 1, 1]], [1, 2], [0.5])], [image([], [])], "1 boxes, 2 classes"),
        ([], [image([], [])], "predictions of 0 images for labels of 1"),
        (3, [image([], [])], "expected a mapping an image"),
    ],
)
def test_data_that_makes_no_sense(preds, labels, message):
    with pytest.raises(EvaluationError, match=message):
        MeanAveragePrecision().update(preds, labels)


def test_no_labels():
    with pytest.raises(EvaluationError, match="saw no data"):
        MeanAveragePrecision().result()
