"""Find weight-only settings of a language model that keep a promise: lose at most so much."""

import argparse
import math
from pathlib import Path

import torch

from neural_compressor.torch.quantization import RTNConfig, TuningConfig, autotune
from neural_compressor.torch.utils.llm_utility import get_default_llm_dataloader, initialize_model_and_tokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--model", type=Path, default=Path("models/smollm2"), help="folder of a Hugging Face language model"
)
parser.add_argument("--test", type=Path, default=Path("models/test.txt"), help="text to measure on")
parser.add_argument("--output", type=Path, default=Path("out/autotune"), help="folder for the quantized model")
parser.add_argument("--tolerable-loss", type=float, default=0.02, help="the promise, relative to the float model")
args = parser.parse_args()

model, tokenizer = initialize_model_and_tokenizer(args.model)
test = get_default_llm_dataloader(tokenizer, args.test, bs=1, nsamples=8, seq_len=128)


@torch.no_grad()
def eval_fn(model) -> float:
    """Higher is better: the geometric mean of the probabilities of the right tokens, 1 / perplexity."""
    return math.exp(-sum(model(**batch, labels=batch["input_ids"]).loss.item() for batch in test) / len(test))


before = eval_fn(model)
tune_config = TuningConfig(
    config_set=RTNConfig(bits=[4, 6, 8], use_sym=[False, True], group_size=[32, 128]),
    tolerable_loss=args.tolerable_loss,
    max_trials=10,
)
model = autotune(model, tune_config=tune_config, eval_fn=eval_fn)
after = eval_fn(model)
model.save(args.output)
print(f"perplexity {1 / before:.1f} -> {1 / after:.1f}")
print(model.tuning.verdict)
