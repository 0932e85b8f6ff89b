"""Throughput of an image classifier in float and in int8, in processes pinned to cores, with the 2.x API."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from neural_compressor import benchmark, quantization
from neural_compressor.config import BenchmarkConfig, PostTrainingQuantConfig
from transformers import AutoModelForImageClassification

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/mobilenet_v2"), help="folder of a Hugging Face image classifier"
)
parser.add_argument(
    "--images", type=Path, default=Path("models/photographs.npz"), help="npz file, calibration and test"
)
parser.add_argument("--instances", type=int, default=1, help="processes side by side")
parser.add_argument("--cores", type=int, default=1, help="of each of them")

if __name__ == "__main__":
    args = parser.parse_args()
    images = np.load(args.images)
    calibration, test = (torch.from_numpy(images[name]) for name in ("calibration", "test"))
    model = AutoModelForImageClassification.from_pretrained(args.model).eval()
    conf = PostTrainingQuantConfig(approach="static")
    calib_dataloader = DataLoader(TensorDataset(calibration, torch.zeros(len(calibration))), batch_size=4)
    q_model = quantization.fit(model, conf, calib_dataloader=calib_dataloader)

    conf = BenchmarkConfig(warmup=2, iteration=12, cores_per_instance=args.cores, num_of_instance=args.instances)
    b_dataloader = DataLoader(TensorDataset(test, torch.zeros(len(test))), batch_size=4)
    before = benchmark.fit(model, conf, b_dataloader=b_dataloader).throughput
    after = benchmark.fit(q_model, conf, b_dataloader=b_dataloader).throughput
    print(f"images a second {before:.1f} -> {after:.1f}")
