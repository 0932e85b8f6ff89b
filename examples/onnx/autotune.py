"""Tune an ONNX model that tells file types to int8 under a promise: lose at most so much."""

import argparse
import json
import sysconfig
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from onnx_neural_compressor import data_reader
from onnx_neural_compressor.quantization import config, tuning

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/magika.onnx"), help="Magika, an ONNX file with its JSON file beside it"
)
parser.add_argument("--tolerable-loss", type=float, default=0.01, help="the promise, relative to the float model")
parser.add_argument("--output", type=Path, default=Path("out/autotune.onnx"), help="file for the quantized model")
args = parser.parse_args()

known = json.loads(args.model.with_suffix(".json").read_text(encoding="utf-8"))
KINDS = {".py": "python", ".h": "c", ".txt": "txt", ".json": "json", ".md": "markdown", ".css": "css", ".so": "elf"}


def first_and_last_bytes(path):
    content, padding = path.read_bytes(), known["padding_token"]
    first = list(content[: known["block_size"]].strip()[: known["beg_size"]])
    last = list(content[-known["block_size"] :].strip()[-known["end_size"] :])
    first += [padding] * (known["beg_size"] - len(first))
    last = [padding] * (known["end_size"] - len(last)) + last
    return {"bytes": np.array([first + last], np.int32)}


files = {kind: [] for kind in KINDS}
for folder in ("stdlib", "purelib", "include"):
    for path in sorted(Path(sysconfig.get_path(folder)).rglob("*")):
        if path.suffix in files and len(files[path.suffix]) < 24 and path.stat().st_size > 64:
            files[path.suffix].append(path)
labelled = [(first_and_last_bytes(path), KINDS[path.suffix]) for found in files.values() for path in found]
calibration, test = [inputs for inputs, _ in labelled[::3]], [pair for i, pair in enumerate(labelled) if i % 3]


class DataReader(data_reader.CalibrationDataReader):
    def __init__(self, samples):
        self.samples = samples
        self.rewind()

    def get_next(self):
        return next(self.iterator, None)

    def rewind(self):
        self.iterator = iter(self.samples)


def eval_fn(model) -> float:
    session = onnxruntime.InferenceSession(model)
    names = known["target_labels_space"]
    return sum(names[session.run(None, inputs)[0].argmax()] == kind for inputs, kind in test) / len(test)


best_model = tuning.autotune(
    model_input=args.model,
    tune_config=tuning.TuningConfig(
        config_set=config.get_integer_tuning_config(), tolerable_loss=args.tolerable_loss, max_trials=10
    ),
    eval_fn=eval_fn,
    calibration_data_reader=DataReader(calibration),
)
args.output.parent.mkdir(parents=True, exist_ok=True)
onnx.save(best_model, args.output)
sizes = [file.stat().st_size / 1e6 for file in (args.model, args.output)]
print(f"accuracy {eval_fn(args.model):.1%} -> {eval_fn(args.output):.1%}, {sizes[0]:.1f} -> {sizes[1]:.1f} MB")
print(next(entry.value for entry in best_model.metadata_props if entry.key == "neural_compressor.verdict"))
