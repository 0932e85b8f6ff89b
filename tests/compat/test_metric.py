"""Metrics and models under the names of the 2.x API."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from neural_compressor import METRICS, Metric, Model, PostTrainingQuantConfig, quantization
from neural_compressor.errors import ConfigError, MissingDependencyError
from neural_compressor.tuning.metrics import resolve_metric

SCORES = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.2, 0.5, 0.3]])
LABELS = np.array([1, 2, 0])  # second, first and third place


@pytest.mark.parametrize(("k", "share"), [(1, 1 / 3), (2, 2 / 3), (3, 1)])
@pytest.mark.parametrize("make", [lambda k: METRICS("pytorch")["topk"](k=k), lambda k: Metric(name="topk", k=k)])
def test_topk(make, k, share):
    metric = make(k)
    metric.update(SCORES, LABELS)
    assert metric.result() == pytest.approx(share)
    metric.reset()
    metric.update(SCORES[1:2], LABELS[1:2])
    assert metric.result() == 1


@pytest.mark.parametrize("labels", [LABELS[:, None], np.eye(3)[LABELS]], ids=["a column", "one-hot"])
def test_labels_of_topk(labels):
    metric = resolve_metric({"topk": 2})
    metric.update(SCORES, labels)
    assert metric.result() == pytest.approx(2 / 3)


def test_names_in_any_case():
    table = METRICS("onnxrt_qlinearops")
    assert table["RMSE"] is table["rmse"]
    assert Metric(name="MSE").higher_is_better is False
    assert set(table) >= {"accuracy", "f1", "mae"}
    with pytest.raises(ConfigError, match="unknown metric"):
        table["cider"]
    with pytest.raises(ConfigError, match="unknown framework 'pytorh'"):
        METRICS("pytorh")


class Answers:
    """Counts the answers that are equal to the label plus an offset."""

    def __init__(self, offset):
        self.offset, self.right = offset, 0

    def update(self, preds, labels):
        self.right += int((np.asarray(preds).argmax(1) == np.asarray(labels) + self.offset).sum())

    def result(self):
        return self.right


def test_a_class_of_the_user():
    metric = Metric(Answers, name="answers", offset=0)
    for _ in range(2):
        metric.reset()  # the class has none: each round starts from a fresh copy
        metric.update(SCORES, LABELS)
        assert metric.result() == 1
    assert metric.name == "answers"
    with pytest.raises(ConfigError, match="expected a class"):
        Metric(3)


def test_fit_takes_a_wrapped_model_and_a_metric(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    inputs = torch.randn(16, 8)
    loader = [(inputs, net(inputs).argmax(1))]
    wrapped = Model(net)
    assert (wrapped.framework(), wrapped.model) == ("pytorch", net)
    assert torch.equal(wrapped(inputs), net(inputs))
    found = quantization.fit(
        wrapped,
        PostTrainingQuantConfig(approach="dynamic"),
        eval_dataloader=loader,
        eval_metric=Metric(name="topk", k=1),
        workspace=tmp_path,
        quiet=True,
    )
    assert isinstance(found, Model)
    assert found.result.baseline.accuracy == 1


def test_detections_and_losses_by_name():
    assert METRICS("onnxrt_qlinearops")["mAP"]().map_points == 0
    assert METRICS("pytorch")["COCOmAP"]().map_points == 101
    loss = Metric(name="Loss")
    loss.update(np.float32(2.0), np.zeros(3))
    loss.update(np.array([6.0]), np.zeros(1))
    assert loss.result() == pytest.approx(3.0)  # three samples of 2 and one of 6
    loss.reset()
    loss.update(np.array([1.0, 2.0, 6.0]), np.zeros(3))
    assert loss.result() == pytest.approx(3.0)
    assert loss.higher_is_better is False


@pytest.mark.parametrize("name", ["MSE", "RMSE", "MAE"])
def test_differences_are_from_labels(name):
    metric = METRICS("pytorch")[name](compare_label=True)
    metric.update(np.array([1.0, 0.0]), np.array([1.0, 1.0]))
    assert metric.result() == pytest.approx(0.5**0.5 if name == "RMSE" else 0.5)
    with pytest.raises(ConfigError, match="outputs of the float model as labels"):
        METRICS("pytorch")[name](compare_label=False)
    with pytest.raises(ConfigError, match="compare_label=5"):
        resolve_metric({"mse": 5})


def test_bleu():
    sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    metric = Metric(name="BLEU")
    texts = ["the cat sat on the mat", "a dog ran in the park today"]
    wanted = [["the cat sat on a mat", "a cat sat on the mat"], "a dog ran through the park today"]
    for text, label in zip(texts, wanted, strict=True):
        metric.update([text], [label])
    assert metric.result() == pytest.approx(
        sacrebleu.corpus_bleu(texts, [[wanted[0][0], wanted[1]], [wanted[0][1], None]]).score
    )


def test_bleu_without_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(MissingDependencyError, match="pip install sacrebleu"):
        Metric(name="bleu")
