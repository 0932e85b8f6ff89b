"""Export a model, quantize the graph to int8 and compile it with Inductor (which needs a C++ compiler)."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch._inductor import config

from neural_compressor.torch.export import export
from neural_compressor.torch.quantization import StaticQuantConfig, convert, prepare
from transformers import AutoModelForImageClassification

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/mobilenet_v2"), help="folder of a Hugging Face image classifier"
)
parser.add_argument(
    "--images", type=Path, default=Path("models/photographs.npz"), help="npz file with the arrays calibration and test"
)
args = parser.parse_args()

images = np.load(args.images)
calibration, test = torch.from_numpy(images["calibration"]), torch.from_numpy(images["test"])[:16]
model = AutoModelForImageClassification.from_pretrained(args.model).eval()


@torch.no_grad()
def logits_and_time(model):
    logits, seconds = model(test).logits, []  # the first call compiles
    for _ in range(5):
        start = time.perf_counter()
        model(test)
        seconds.append(time.perf_counter() - start)
    return logits, min(seconds)


config.freezing = True
expected, before = logits_and_time(model)
exported_model = export(model=model, example_inputs=(test,))
prepared_model = prepare(exported_model, quant_config=StaticQuantConfig(act_algo="percentile"))
for batch in calibration.split(16):
    prepared_model(batch)
q_model = convert(prepared_model)
opt_model = torch.compile(q_model)
found, after = logits_and_time(opt_model)

same = (found.argmax(1) == expected.argmax(1)).float().mean().item()
near = (found.topk(5).indices == expected.argmax(1)[:, None]).any(1).float().mean().item()
print(
    f"same class {same:.1%}, among the first five {near:.1%}, {before:.2f} s eager float -> {after:.2f} s compiled int8"
)
