"""What llm-compressor makes of a model in one of its presets; started by the Python it is installed in.

    ENV/bin/python benchmarks/formats_peer.py MODEL_DIR TOKENS.npz NVFP4 [--gptq]

``formats_lm.py --llmc`` starts this script and writes the tokens. It prints one line of JSON. The model is evaluated as
llm-compressor leaves it, which rounds weights and activations when it runs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time

import torch
from language_model import load_model, perplexity, read_tokens
from torch.utils.data import DataLoader


def main() -> None:
    """Quantize, evaluate, print."""
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("scheme")
    parser.add_argument("--gptq", action="store_true")
    options = parser.parse_args()
    samples, evaluation = read_tokens(options.tokens)
    model = load_model(options.model)
    modifier = GPTQModifier if options.gptq else QuantizationModifier
    recipe = modifier(targets="Linear", scheme=options.scheme, ignore=["lm_head"])
    data = DataLoader([{"input_ids": ids[0], "attention_mask": torch.ones_like(ids[0])} for ids in samples])
    start = time.process_time()
    done = oneshot(model=model, dataset=data, recipe=recipe, num_calibration_samples=len(samples))
    found = {
        "cpu_seconds": time.process_time() - start,
        "perplexity": perplexity(done, evaluation),
        "version": importlib.metadata.version("llmcompressor"),
    }
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
