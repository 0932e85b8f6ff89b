"""An ONNX text recogniser in static int8: how many characters it still reads right."""

import argparse
import difflib
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageDraw, ImageFont

from onnx_neural_compressor import data_reader
from onnx_neural_compressor.quantization import config, quantize

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/recogniser.onnx"), help="PP-OCR recogniser, an ONNX file"
)
parser.add_argument("--text", type=Path, default=Path("models/test.txt"), help="text to draw lines of")
parser.add_argument("--output", type=Path, default=Path("out/static_int8.onnx"), help="file for the quantized model")
args = parser.parse_args()


def drawn(line):
    """A line of text as the network reads it: 48 pixels high, values from -1 to 1."""
    font = ImageFont.load_default(32)
    image = Image.new("RGB", (int(font.getlength(line)) + 16, 48), "white")
    ImageDraw.Draw(image).text((8, 4), line, fill="black", font=font)
    return {"x": (np.asarray(image, np.float32) / 127.5 - 1).transpose(2, 0, 1)[None]}


class DataReader(data_reader.CalibrationDataReader):
    def __init__(self, samples):
        self.samples = samples
        self.rewind()

    def get_next(self):
        return next(self.iterator, None)

    def rewind(self):
        self.iterator = iter(self.samples)


def accuracy(path, lines):
    """The share of characters that are read; the network says for each column which of them it sees, 0 for none."""
    session = onnxruntime.InferenceSession(path)
    letters = ["", *session.get_modelmeta().custom_metadata_map["character"].splitlines(), " "]
    right = 0
    for line in lines:
        columns = session.run(None, drawn(line))[0][0].argmax(1)
        read = "".join(letters[c] for c, before in zip(columns, [0, *columns], strict=False) if c != before)
        right += sum(block.size for block in difflib.SequenceMatcher(None, line, read, False).get_matching_blocks())
    return right / sum(map(len, lines))


lines = [line[:40].strip() for line in args.text.read_text(encoding="utf-8").splitlines()]
calibration, test = lines[:20], lines[20:60]
qconfig = config.StaticQuantConfig(DataReader([drawn(line) for line in calibration]), per_channel=True)
quantize(args.model, args.output, qconfig)

before, after = accuracy(args.model, test), accuracy(args.output, test)
sizes = [file.stat().st_size / 1e6 for file in (args.model, args.output)]
print(f"characters read {before:.2%} -> {after:.2%}, {sizes[0]:.1f} -> {sizes[1]:.1f} MB")
