"""A run with data and a metric knows how well its losses are known, also when it goes on after a break."""

import pytest

torch = pytest.importorskip("torch")

from neural_compressor import quantization  # noqa: E402
from neural_compressor.config import PostTrainingQuantConfig  # noqa: E402


def job(folder, **given):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
    x = torch.randn(300, 16)
    with torch.no_grad():
        labels = (model(x) + 0.05 * torch.randn(300, 4)).argmax(1)
    batches = list(zip(x.split(50), labels.split(50), strict=True))
    given = given or {"eval_dataloader": batches, "eval_metric": "accuracy"}
    conf = PostTrainingQuantConfig(approach="dynamic")
    return quantization.fit(model, conf, workspace=folder, quiet=True, **given).result


def test_a_run_tells_samples_and_spreads(tmp_path):
    result = job(tmp_path)
    assert result.baseline.accuracy_samples == 300
    assert 0 < result.best.loss_spread < result.baseline.accuracy_spread
    assert f"± {100 * result.best.loss_spread:.2f}".rstrip("0") in result.verdict
    page = (tmp_path / "report.html").read_text()
    assert "Evaluation: <b>300 samples</b>" in page
    assert "Losses compare a model with float sample by sample" in page


def test_a_run_that_goes_on_still_knows(tmp_path):
    from neural_compressor.tuning.journal import Journal

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "finish", lambda self, verdict: None)  # as if it had been killed at the end
        first = job(tmp_path)
    second = job(tmp_path)
    assert second.best.resumed
    assert second.best.loss_spread == first.best.loss_spread
    assert second.baseline.accuracy_spread == first.baseline.accuracy_spread


def test_a_number_without_samples_is_called_that(tmp_path):
    result = job(tmp_path, eval_func=lambda model: 0.5)
    assert result.best.loss_spread is None
    assert "±" not in result.verdict
    page = (tmp_path / "report.html").read_text()
    assert "Evaluation: <b>one number for the whole model</b>" in page
    assert "how far it is off by chance is not known" in page
