"""FP8 on a GPU: a block of an 8B Llama, compiled, in bfloat16 and in our fp8 layers, static and dynamic.

Usage: ``python benchmarks/fp8_gpu.py [--tokens 4096 512 16 1] [--seconds 140]``.

Weights are random. Both sides are compiled with ``torch.compile`` and timed as CUDA graphs, in turns, so that the time of
the host does not count. Inductor fuses the quantization of activations into the normalisation, or the product, before it.
Attention, which is not quantized, is computed on both sides by whichever of torch's kernels is fastest at the most tokens.
Each cell that fails says why and the others go on; no cell is started after ``--seconds``. Times are medians.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import traceback
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PER_TOKEN, OpScheme, PerBlock, PerGroup, Scaling, TensorScheme
from neural_compressor.torch.modules import QuantLinear, quantized_module

HIDDEN, INNER, HEADS, KV_HEADS = 4096, 14336, 32, 8
PEAK = {"fp8": 1979e12, "bf16": 989e12}
"""Dense operations a second of an H100 or H200 (SXM)."""


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class Block(nn.Module):
    """Attention and a gated MLP, as Llama has them; ``joined`` makes one layer of those that share an input."""

    def __init__(self, joined: bool = False) -> None:
        super().__init__()
        self.joined, size = joined, HIDDEN // HEADS
        sizes = [HIDDEN, KV_HEADS * size, KV_HEADS * size]
        self.norm, self.after = Norm(), Norm()
        self.qkv = nn.ModuleList(nn.Linear(HIDDEN, n, bias=False) for n in ([sum(sizes)] if joined else sizes))
        self.o = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate_up = nn.ModuleList(
            nn.Linear(HIDDEN, n, bias=False) for n in ([2 * INNER] if joined else [INNER, INNER])
        )
        self.down = nn.Linear(INNER, HIDDEN, bias=False)
        self.sizes = sizes

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        tokens = x.shape[0]
        inside = self.norm(x)
        outs = [layer(inside) for layer in self.qkv]
        q, k, v = outs[0].split(self.sizes, -1) if self.joined else outs
        q, k, v = (t.view(tokens, -1, HIDDEN // HEADS).transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        q, k = (t * cos + torch.cat([-t[..., 64:], t[..., :64]], -1) * sin for t in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.squeeze(0).transpose(0, 1).reshape(tokens, HIDDEN))
        inside = self.after(x)
        outs = [layer(inside) for layer in self.gate_up]
        gate, up = outs[0].chunk(2, -1) if self.joined else outs
        return x + self.down(F.silu(gate) * up)


def fp8(**more: object) -> TensorScheme:
    return TensorScheme(dtype("fp8_e4m3"), **more)  # type: ignore[arg-type]


SCHEMES = {
    "static": OpScheme(
        fp8(scaling=Scaling("maxabs", "gaudi3", 0.5)), fp8(scaling=Scaling("maxabs", "gaudi3", 0.25)), "static"
    ),
    "dynamic": OpScheme(
        fp8(granularity=PER_CHANNEL), fp8(granularity=PER_TOKEN, scaling=Scaling("maxabs", "pow2")), "dynamic"
    ),
    "blocks": OpScheme(fp8(granularity=PerBlock()), fp8(granularity=PerGroup(128)), "dynamic"),
}
"""What FP8Config() and FP8Config(scale_method="maxabs_pcs_pow2") ask for, and blocks of 128 by 128."""


def say(text: str = "") -> None:
    print(text, flush=True)


def quantized(block: Block, scheme: OpScheme, x: Tensor, cos: Tensor, sin: Tensor) -> Block:
    """``block`` with its linear layers in fp8, ranges from a run on ``x``."""
    new, ranges, handles = copy.deepcopy(block), {}, []
    for name, module in block.named_modules():
        if isinstance(module, nn.Linear):

            def see(module: nn.Module, args: tuple[Tensor], name: str = name) -> None:
                ranges[name] = tuple(float(side) for side in torch.aminmax(args[0]))

            handles.append(module.register_forward_pre_hook(see))
    block(x, cos, sin)
    for handle in handles:
        handle.remove()
    for name, bounds in ranges.items():
        owner, _, own = name.rpartition(".")
        layer = quantized_module(block.get_submodule(name), scheme, [bounds])
        setattr(new.get_submodule(owner), own, layer)
    return new


def rope(tokens: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(tokens).float()[:, None] / 500000 ** (torch.arange(0, 128, 2).float() / 128)
    both = torch.cat([angles, angles], -1).cuda().bfloat16()
    return both.cos(), both.sin()


def graphed(call: Callable[[], object]) -> Callable[[], None]:
    """``call`` as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def milliseconds(calls: dict[str, Callable[[], None]], rounds: int = 15) -> dict[str, float]:
    """The median time of each, in turns; a run of replays is between two events, so that short ones can be timed."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            call()
            begin.record()
            for _ in range(10):
                call()
            end.record()
            end.synchronize()
            found[name].append(begin.elapsed_time(end) / 10)
    return {name: statistics.median(times) for name, times in found.items()}


ATTENTIONS = {"flash": torch.backends.cuda.enable_flash_sdp, "cudnn": torch.backends.cuda.enable_cudnn_sdp}
"""What switches each kernel of attention on."""


@torch.no_grad()
def choose_attention(tokens: int) -> None:
    """Leave the fastest kernel on, alone."""
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    shapes = [(1, heads, tokens, HIDDEN // HEADS) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    q, k, v = (torch.randn(shape, device="cuda").bfloat16() for shape in shapes)
    times = {}
    for name in ATTENTIONS:
        for other, switch in ATTENTIONS.items():
            switch(other == name)
        try:
            call = graphed(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
            times[name] = milliseconds({name: call}, 5)[name]
        except RuntimeError as error:
            say(f"attention by {name} is not to be had: {str(error).splitlines()[0]}")
    best = min(times, key=lambda name: times[name])
    for name, switch in ATTENTIONS.items():
        switch(name == best)
    torch.backends.cuda.enable_math_sdp(True)  # for what the chosen one does not take
    say("attention, ms: " + ", ".join(f"{name} {ms:.3f}" for name, ms in times.items()) + f"; taken: {best}")


def linear_work(tokens: int) -> float:
    weights = HIDDEN * (HIDDEN + 2 * KV_HEADS * HIDDEN // HEADS) + HIDDEN * HIDDEN + 3 * HIDDEN * INNER
    return 2.0 * tokens * weights


def products(tokens: int) -> None:
    """Each product of the block alone: bfloat16 against ``torch._scaled_mm`` with codes that are there already."""
    say(f"\nproducts alone, {tokens} tokens: bf16 ms, fp8 ms (one scale each), ratio, TFLOP/s, part of the fp8 peak")
    for name, n, k in (("q, o", 4096, 4096), ("k, v", 1024, 4096), ("gate, up", INNER, 4096), ("down", 4096, INNER)):
        try:
            a, b = torch.randn(tokens, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
            low, weight = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
            one = torch.ones(1, device="cuda")

            def multiply(low: Tensor = low, weight: Tensor = weight, one: Tensor = one) -> object:
                return torch._scaled_mm(low, weight, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

            def plain(a: Tensor = a, b: Tensor = b) -> object:
                return a @ b.T

            times = milliseconds({"bf16": graphed(plain), "fp8": graphed(multiply)}, 5)
            rate = 2.0 * tokens * n * k / times["fp8"] * 1e3
            say(
                f"  {name:9} {times['bf16']:8.4f} {times['fp8']:8.4f} {times['bf16'] / times['fp8']:6.2f} "
                f"{rate / 1e12:8.0f} {rate / PEAK['fp8']:7.1%}"
            )
        except Exception as error:  # noqa: BLE001 - one cell that fails must not end the others
            say(f"  {name:9} failed: {type(error).__name__}: {str(error)[:300]}")


@torch.no_grad()
def measure(tokens: int, joined: bool, kinds: list[str], started: float, seconds: float, mode: str | None) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    block = Block(joined).cuda().bfloat16().eval()
    x, (cos, sin) = torch.randn(tokens, HIDDEN, device="cuda").bfloat16(), rope(tokens)
    expected, calls, errors = block(x, cos, sin).float(), {}, {}
    kept = []  # a graph reads the memory of its model, and does not hold it
    for kind in ("bf16", *kinds):
        if time.monotonic() - started > seconds:
            say(f"  {kind}: not run, {seconds:.0f} s are over")
            continue
        try:
            model = block if kind == "bf16" else quantized(block, SCHEMES[kind], x, cos, sin)
            for name, layer in model.named_modules():
                if isinstance(layer, QuantLinear) and layer.simulated:
                    say(f"  {kind}: {name} is simulated: {layer.why_simulated()}")
            kept.append(model)
            compiled = torch.compile(model, fullgraph=True, dynamic=False, mode=mode)
            begin = time.monotonic()
            y = compiled(x, cos, sin).float()
            errors[kind] = float((y - expected).norm() / expected.norm())
            say(f"  {kind}: compiled in {time.monotonic() - begin:.1f} s")
            calls[kind] = graphed(lambda compiled=compiled: compiled(x, cos, sin))  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001 - one cell that fails must not end the others
            say(f"  {kind}: failed: {type(error).__name__}: {str(error)[:600]}")
            say("    " + traceback.format_exc().strip().splitlines()[-3].strip()[:300])
    if "bf16" not in calls:
        return
    times = milliseconds(calls)
    for kind, taken in times.items():
        rate, peak = linear_work(tokens) / taken * 1e3, PEAK["bf16" if kind == "bf16" else "fp8"]
        say(
            f"| {tokens:6} | {'joined' if joined else 'apart':6} | {kind:7} | {taken:8.4f} | {times['bf16'] / taken:5.2f} | "
            f"{rate / 1e12:7.1f} | {rate / peak:6.1%} | {errors[kind]:.4f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 512, 16, 1])
    parser.add_argument("--seconds", type=float, default=140.0, help="no cell is started later than this")
    parser.add_argument("--mode", help="of torch.compile, for both sides, such as max-autotune-no-cudagraphs")
    parser.add_argument("--joined", action="store_true", help="only layers that share an input as one")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs an NVIDIA GPU")
    started = time.monotonic()
    say(f"{torch.cuda.get_device_name()}, capability {torch.cuda.get_device_capability()}, torch {torch.__version__}")
    choose_attention(max(given.tokens))
    say("work counts the linear layers alone; the time is of the whole block, attention and normalisation included")
    say("| tokens | layers | kind    | ms       | gain  | TFLOP/s | of peak | error  |")
    for tokens in given.tokens:
        kinds = ["static", "dynamic", "blocks"] if tokens == max(given.tokens) else ["static", "dynamic"]
        if not given.joined:
            measure(tokens, False, kinds, started, given.seconds, given.mode)
    measure(max(given.tokens), True, ["static", "dynamic"], started, given.seconds, given.mode)
    if not given.joined and time.monotonic() - started < given.seconds:
        products(max(given.tokens))
    say(f"\n{time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
