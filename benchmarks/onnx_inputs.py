"""Real inputs for the models of ``onnx_cpu.py``, the same for every toolkit: prepared once, kept as plain arrays.

Lines and pages of text are drawn from English prose of the standard library (``pydoc_data``), in varied sizes, shades and
noise; bytes are those of files of this Python installation, prepared as magika does.
"""

from __future__ import annotations

import json
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

Sample = dict[str, NDArray[np.generic]]
"""One call of a model: its inputs by name."""


def save_samples(path: Path, samples: list[Sample]) -> None:
    """Write samples of any shapes into one file."""
    arrays = {f"{index}/{name}": array for index, sample in enumerate(samples) for name, array in sample.items()}
    np.savez(path, **arrays)


class StoredSamples(Sequence[Sample]):
    """The samples of a file, or the first few of them; each is read when it is asked for."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._path = path
        names: dict[int, list[str]] = defaultdict(list)
        with np.load(path, allow_pickle=False) as arrays:
            for key in arrays.files:
                index, name = key.split("/", 1)
                names[int(index)].append(name)
        self._names = [(index, names[index]) for index in sorted(names)][:limit]

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, place: int) -> Sample: ...
    @overload
    def __getitem__(self, place: slice) -> list[Sample]: ...
    def __getitem__(self, place: int | slice) -> Sample | list[Sample]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        index, names = self._names[place]
        with np.load(self._path, allow_pickle=False) as arrays:  # opened anew: some toolkits copy their readers
            return {name: arrays[f"{index}/{name}"] for name in names}


def prose() -> list[str]:
    """Lines of English, as the standard library's documentation has them."""
    from pydoc_data.topics import topics

    lines = (line.strip() for name in sorted(topics) for line in topics[name].splitlines())
    return [line for line in lines if len(line.split()) > 3 and line.isascii()]


# -- text, drawn --------------------------------------------------------------------------------------------------------


def drawn(lines: list[str], size: int, shades: tuple[int, int], noise: float, seed: int) -> NDArray[np.float32]:
    """Lines of text as an image of height, width and three equal colours, 0 to 255."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size)
    height = round(size * 1.5)
    width = round(max(font.getlength(line) for line in lines)) + size
    image = Image.new("L", (width, height * len(lines)), shades[0])
    draw = ImageDraw.Draw(image)
    for row, line in enumerate(lines):
        draw.text((size // 2, row * height + size // 5), line, fill=shades[1], font=font)
    grey = np.asarray(image, np.float32)
    grey = grey + np.random.default_rng(seed).normal(0, noise, grey.shape).astype(np.float32)
    return np.repeat(np.clip(grey, 0, 255)[..., None], 3, axis=2)


def looks(count: int, seed: int) -> Iterator[tuple[int, tuple[int, int], float]]:
    """Sizes of letters, shades of paper and ink, and noise."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        paper, ink = int(rng.integers(190, 256)), int(rng.integers(0, 90))
        yield int(rng.integers(18, 36)), (paper, ink) if rng.random() < 0.8 else (ink, paper), float(rng.uniform(0, 12))


def resized(image: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """The image in another size."""
    from PIL import Image

    small = Image.fromarray(image.astype(np.uint8)).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(small, np.float32)


def as_input(image: NDArray[np.float32], mean: NDArray[np.float32], deviation: NDArray[np.float32]) -> Sample:
    """An image as these networks read it: normalised, colours first, one in a batch."""
    return {"x": ((image / 255 - mean) / deviation).transpose(2, 0, 1)[None].astype(np.float32)}


HALF = np.full(3, 0.5, np.float32)
COLOURS = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)


def text_lines(count: int, seed: int) -> Iterator[NDArray[np.float32]]:
    """One line of text an image, of any width."""
    lines = np.random.default_rng(seed).permutation(prose())
    for index, (size, shades, noise) in enumerate(looks(count, seed)):
        yield drawn([str(lines[index])[:40]], size, shades, noise, seed + index)


def recogniser_inputs(count: int, seed: int) -> list[Sample]:
    """Lines 48 pixels high, each as wide as its text."""
    images = text_lines(count, seed)
    return [as_input(resized(one, 48, round(48 * one.shape[1] / one.shape[0])), HALF, HALF) for one in images]


def classifier_inputs(count: int, seed: int) -> list[Sample]:
    """The beginnings of lines, every second one upside down."""
    cut = (one[:, : 4 * one.shape[0]] for one in text_lines(count, seed))
    turned = (one[::-1, ::-1] if index % 2 else one for index, one in enumerate(cut))
    return [as_input(resized(one, 48, 192), HALF, HALF) for one in turned]


def detector_inputs(count: int, seed: int) -> list[Sample]:
    """Pages of five to ten lines."""
    lines, rng, samples = prose(), np.random.default_rng(seed), []
    for index, (size, shades, noise) in enumerate(looks(count, seed)):
        start, rows = int(rng.integers(len(lines) - 10)), int(rng.integers(5, 11))
        page = drawn([line[:40] for line in lines[start : start + rows]], size, shades, noise, seed + index)
        samples.append(as_input(resized(page, 320, 480), *COLOURS))
    return samples


# -- bytes --------------------------------------------------------------------------------------------------------------


def files() -> Iterator[Path]:
    """Files of this installation, one of each kind after the other."""
    kinds: dict[str, list[Path]] = defaultdict(list)
    for folder in ("stdlib", "purelib", "include"):
        for path in sorted(Path(sysconfig.get_path(folder)).rglob("*")):
            if path.is_file() and path.suffix and path.stat().st_size > 64 and len(kinds[path.suffix]) < 40:
                kinds[path.suffix].append(path)
    return (path for path in chain.from_iterable(zip_longest(*kinds.values())) if path is not None)


def magika_inputs(count: int, seed: int, config: Path) -> list[Sample]:
    """The first and last bytes of files, as magika prepares them; ``seed`` says which files."""
    known = json.loads(config.read_text())
    block, padding = known["block_size"], known["padding_token"]
    samples = []
    for path in islice(files(), seed * count, (seed + 1) * count):
        content = path.read_bytes()
        first = list(content[:block].lstrip()[: known["beg_size"]])
        last = list(content[-block:].rstrip()[-known["end_size"] :])
        first += [padding] * (known["beg_size"] - len(first))
        last = [padding] * (known["end_size"] - len(last)) + last
        samples.append({"bytes": np.array([first + last], np.int32)})
    return samples


# -- images -------------------------------------------------------------------------------------------------------------

LABEL = "label"
"""Where a sample has what it shows, which is no input of a model."""


def image_inputs(count: int, seed: int, name: str, data: Path) -> list[Sample]:
    """Photographs to calibrate on, or (``seed``) others with their classes."""
    from vision_models import vision

    found = vision(name, data, count)
    if not seed:
        return [{"image": image[None].numpy()} for image in found.calibration[:count]]
    pairs = zip(found.images, found.labels, strict=True)
    return [{"image": image[None].numpy(), LABEL: label[None].numpy()} for image, label in pairs]


# -- tokens -------------------------------------------------------------------------------------------------------------


def sentence_inputs(count: int, seed: int, folder: Path, sentences: list[str]) -> list[Sample]:
    """Sentences as an encoder reads them, each of its own length; ``seed`` says which ones."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    chosen = sentences[seed * count : (seed + 1) * count]
    return [{k: np.asarray([v], np.int64) for k, v in tokenizer(one, truncation=True).items()} for one in chosen]


def window_inputs(count: int, seed: int, folder: Path, text: str, length: int) -> list[Sample]:
    """Windows of a text as a language model reads them; ``seed`` says which half of the text."""
    from transformers import AutoTokenizer

    half = text[len(text) // 2 :] if seed else text[: len(text) // 2]
    ids = AutoTokenizer.from_pretrained(folder)(half)["input_ids"]
    starts = range(0, len(ids) - length + 1, length)
    return [{"input_ids": np.asarray([ids[start : start + length]], np.int64)} for start in islice(starts, count)]
