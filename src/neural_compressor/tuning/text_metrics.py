"""Metrics of texts, by the libraries that define them."""

from __future__ import annotations

from typing import Any

from neural_compressor.errors import EvaluationError, MissingDependencyError
from neural_compressor.tuning.metrics import METRICS, Metric


@METRICS.register("bleu")
class Bleu(Metric):
    """BLEU of translations, 0 to 100, by sacrebleu. A batch are texts; labels are a text or a list of texts for each."""

    name = "bleu"

    def __init__(self) -> None:
        try:
            import sacrebleu
        except ImportError as error:
            raise MissingDependencyError("metric bleu is that of sacrebleu: pip install sacrebleu") from error
        self._corpus_bleu = sacrebleu.corpus_bleu
        self.reset()

    def reset(self) -> None:
        self._texts: list[str] = []
        self._wanted: list[list[str]] = []

    def update(self, preds: Any, labels: Any) -> None:
        texts, wanted = [[each] if isinstance(each, str) else each for each in (preds, labels)]
        if len(texts) != len(wanted):
            raise EvaluationError(f"metric bleu: {len(texts)} texts for {len(wanted)} labels")
        self._texts += texts
        self._wanted += [[each] if isinstance(each, str) else list(each) for each in wanted]

    def result(self) -> float:
        if not self._texts:
            raise EvaluationError("metric bleu saw no data; the evaluation dataloader yields no batch")
        most = max(map(len, self._wanted))
        columns = [[each[place] if place < len(each) else None for each in self._wanted] for place in range(most)]
        return float(self._corpus_bleu(self._texts, columns).score)
