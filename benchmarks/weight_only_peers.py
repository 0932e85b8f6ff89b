"""What other toolkits make of the same model, tokens and bits; each is started by the Python it is installed in.

    PEER/bin/python benchmarks/weight_only_peers.py llmc MODEL_DIR TOKENS.npz --scheme int4-g64-sym

``llmc`` is GPTQ of llm-compressor, ``ar`` auto-round, ``hqq`` the package hqq; all with the settings they come with.
``weight_only_llm.py --peers`` starts this script and writes the tokens. It prints one line of JSON. Seconds are those of
quantization alone; the weights it gave are then put into the float32 model, so that no kernel of a toolkit is evaluated.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from language_model import load_model, load_tokenizer, peak_gib, perplexity, read_tokens, seconds_since
from torch import Tensor, nn
from weight_scheme import WeightScheme

PACKAGES = {"llmc": "llmcompressor", "ar": "auto-round", "hqq": "hqq"}
Found = tuple[nn.Module, dict[str, Any]]
"""A quantized model, and settings worth knowing."""


def supports(peer: str, scheme: WeightScheme) -> bool:
    """Whether a toolkit quantizes to the scheme; hqq has float zero-points and no symmetric grid."""
    return scheme.bits is not None and not (peer == "hqq" and scheme.symmetric)


def llmc(model: Any, samples: list[Tensor], scheme: WeightScheme, options: argparse.Namespace) -> Found:
    """GPTQ of llm-compressor: static activation order, damping 0.01."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from torch.utils.data import DataLoader

    weights = QuantizationArgs(
        num_bits=scheme.bits,
        symmetric=scheme.symmetric,
        strategy="group" if scheme.group_size else "channel",
        group_size=scheme.group_size,
    )
    groups = {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}
    recipe = GPTQModifier(config_groups=groups, ignore=["lm_head"])
    data = DataLoader([{"input_ids": ids[0], "attention_mask": torch.ones_like(ids[0])} for ids in samples])
    done = oneshot(model=model, dataset=data, recipe=recipe, num_calibration_samples=len(samples))
    return done, {"actorder": "static", "dampening_frac": recipe.dampening_frac}


def ar(model: Any, samples: list[Tensor], scheme: WeightScheme, options: argparse.Namespace) -> Found:
    """auto-round: signed gradient descent, in bfloat16 where it finds the processor able to, unless told otherwise."""
    from auto_round import AutoRound

    rounding = AutoRound(
        model,
        tokenizer=load_tokenizer(options.model),
        bits=scheme.bits,
        group_size=scheme.group_size or -1,
        sym=scheme.symmetric,
        dataset=samples,
        iters=options.iters,
        nsamples=len(samples),
        seqlen=samples[0].shape[1],
        device_map=options.device,
        amp=not options.float32,
        enable_torch_compile=False if options.eager else None,
    )
    done, _ = rounding.quantize()
    compiled = bool(rounding.enable_torch_compile)
    return done, {"iters": options.iters, "dtype": str(done.dtype).removeprefix("torch."), "compiled": compiled}


def hqq(model: Any, samples: list[Tensor], scheme: WeightScheme, options: argparse.Namespace) -> Found:
    """hqq: without data; zero-points in float except at 4 bits, as its defaults have it."""
    from hqq.core.quantize import BaseQuantizeConfig
    from hqq.models.hf.base import AutoHQQHFModel

    config = BaseQuantizeConfig(nbits=scheme.bits, group_size=scheme.group_size)
    AutoHQQHFModel.quantize_model(model, quant_config=config, compute_dtype=torch.float32, device=options.device)
    return model, {"axis": 1, "round_zero": config["weight_quant_params"]["round_zero"]}


PEERS: dict[str, Callable[..., Found]] = {"llmc": llmc, "ar": ar, "hqq": hqq}


def linear_names(model: Any) -> list[str]:
    """The layers that every side quantizes: all linear ones but the output head."""
    head = model.get_output_embeddings()
    return [name for name, module in model.named_modules() if type(module) is nn.Linear and module is not head]


@torch.no_grad()
def dequantized(layer: Any) -> Tensor:
    """The weight that a toolkit's layer multiplies with, in float32."""
    weight = layer.dequantize() if hasattr(layer, "dequantize") else layer.weight
    return weight.detach().float()


def check_levels(name: str, weight: Tensor, scheme: WeightScheme) -> None:
    """Refuse a weight with more values in a group than the bits allow: a layer that was left in float."""
    assert scheme.bits is not None
    for group in weight[0].split(scheme.group_size or weight.shape[1]):
        if len(group.unique()) > 2**scheme.bits:
            raise SystemExit(f"layer {name!r} holds {len(group.unique())} values in a group: not {scheme.bits} bits")


def main() -> None:
    """Quantize, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=list(PEERS))
    parser.add_argument("model", help="a Hugging Face folder")
    parser.add_argument("tokens", help="an .npz file with rows of token ids: calibration and evaluation")
    parser.add_argument("--scheme", required=True)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--iters", type=int, default=200, help="steps a block, of auto-round")
    parser.add_argument("--float32", action="store_true", help="let auto-round train in float32")
    parser.add_argument(
        "--eager", action="store_true", help="keep auto-round from compiling blocks, which takes a while"
    )
    options = parser.parse_args()
    scheme = WeightScheme.parse(options.scheme)
    samples, evaluation = read_tokens(options.tokens)
    model = load_model(options.model, options.device)
    names = linear_names(model)
    start = time.perf_counter()
    model, settings = PEERS[options.peer](model, samples, scheme, options)
    seconds, peak = seconds_since(start, options.device), peak_gib(options.device)
    plain = load_model(options.model, options.device)
    for name in names:
        weight = dequantized(model.get_submodule(name))
        check_levels(name, weight, scheme)
        plain.get_submodule(name).weight.data.copy_(weight)
    found = {
        "perplexity": perplexity(plain, evaluation),
        "seconds": seconds,
        "peak_gib": peak,
        "threads": torch.get_num_threads(),
        "version": importlib.metadata.version(PACKAGES[options.peer]),
        "settings": {"layers": len(names), **settings},
    }
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
