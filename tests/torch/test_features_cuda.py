"""What is found from data on a GPU is what is found on the CPU: passes, products, learned rounding, training, caches."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.torch.fp8_cache import fp8_cache
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    FP8Config,
    GPTQConfig,
    MixedPrecisionConfig,
    MXQuantConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    convert,
    load,
    prepare,
    prepare_qat,
)
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that CUDA runs on")


def decoder() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 96}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).eval()
    for p in model.parameters():
        p.data *= 3  # logits that are no noise
    return model


def images() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16, padding=1)]
    layers += [nn.BatchNorm2d(16), nn.ReLU6(), nn.Flatten(), nn.Linear(1024, 10)]
    return nn.Sequential(*layers).eval()


def ids(rows: int = 4) -> torch.Tensor:
    return torch.randint(0, 96, (rows, 24), generator=torch.Generator().manual_seed(1))


def pixels(rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def converted(model: nn.Module, config: object, data: torch.Tensor, device: str) -> nn.Module:
    prepared = prepare(model.to(device), config, example_inputs=data.to(device))
    with torch.no_grad():
        for batch in data.to(device).split(2):
            prepared(batch)
    return convert(prepared, quiet=True)


def output(model: nn.Module, data: torch.Tensor, device: str) -> torch.Tensor:
    with torch.no_grad():
        result = model(data.to(device))
    tensor = getattr(result, "logits", result)
    assert tensor.device.type == device
    return tensor.float().cpu()


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


LANGUAGE = {
    "fp8": FP8Config,
    "fp8 products": lambda: FP8Config().set_local("MatMul", FP8Config()),
    "fp8 dynamic": lambda: FP8Config(dynamic_quantization=True),
    "int8 products": lambda: StaticQuantConfig().set_local("MatMul", StaticQuantConfig()),
    "int8 rotated": lambda: StaticQuantConfig(hadamard="folded"),
    "int8 searched": lambda: StaticQuantConfig(range_search=True),
    "smoothed": lambda: SmoothQuantConfig(alpha="auto", folding=True),
    "mxfp8": lambda: MXQuantConfig(w_dtype="fp8_e4m3", act_dtype="fp8_e4m3", out_dtype="float32"),
    "gptq nvfp4": lambda: GPTQConfig(dtype="nvfp4"),
    "rotated gptq": lambda: GPTQConfig(group_size=32, hadamard="folded"),
    "autoround": lambda: AutoRoundConfig(iters=4, group_size=32, batch_size=2),
    "autoround pairs": lambda: AutoRoundConfig(iters=4, group_size=32, batch_size=2, nblocks=2),
    "autoround static": lambda: AutoRoundConfig(iters=4, batch_size=2, scheme="FP8_STATIC"),
    "autoround attention": lambda: AutoRoundConfig(iters=4, group_size=32, batch_size=2, static_attention_dtype="fp8"),
}
VISION = {
    "equalized, searched": lambda: StaticQuantConfig(equalize=True, range_search=True),
    "learned by layer": lambda: StaticQuantConfig(w_granularity="per_tensor", learned_rounding="layer"),
    "learned by block": lambda: StaticQuantConfig(w_granularity="per_tensor", learned_rounding="block"),
    "bf16": lambda: MixedPrecisionConfig(dtype="bf16"),
}


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_decoder_loses_there_what_it_loses_on_the_cpu(name: str) -> None:
    expected = output(decoder(), ids(), "cpu")
    losses = {}
    for device in ("cpu", "cuda"):
        model = converted(decoder(), LANGUAGE[name](), ids(), device)
        losses[device] = distance(output(model, ids(), device), expected)
    assert losses["cuda"] < 1.25 * losses["cpu"] + 0.01


@pytest.mark.parametrize("name", VISION)
def test_a_cnn_loses_there_what_it_loses_on_the_cpu(name: str) -> None:
    expected = output(images(), pixels(), "cpu")
    losses = {}
    for device in ("cpu", "cuda"):
        model = converted(images(), VISION[name](), pixels(), device)
        losses[device] = distance(output(model, pixels(), device), expected)
    assert losses["cuda"] < 1.25 * losses["cpu"] + 0.01


@pytest.mark.parametrize("learned", [False, True], ids=["ranges", "steps"])
def test_training_lowers_the_loss_there_and_converts(learned: bool) -> None:
    teacher, x = images().cuda(), pixels(64).cuda()
    with torch.no_grad():
        target = teacher(x)
    model = prepare_qat(images().cuda(), StaticQuantConfig(w_dtype="int4"), learned_step_size=learned)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(30):
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    model.eval()
    with torch.no_grad():
        trained = model(x)
        stored = convert(model, quiet=True)(x)
    assert distance(stored, trained) < 0.05


def test_a_cache_in_fp8_there() -> None:
    model = converted(decoder(), FP8Config(kv_cache=True), ids(), "cuda")
    with torch.no_grad():
        plain = model(ids().cuda()).logits
        cached = model(ids().cuda(), past_key_values=fp8_cache(model)).logits
    assert torch.isfinite(cached).all()
    assert distance(cached, plain) < 0.1


def test_a_saved_model_loads_there_with_the_same_bits(tmp_path) -> None:
    model = converted(decoder(), FP8Config(), ids(), "cuda")
    model.save(tmp_path / "out")
    again = load(str(tmp_path / "out"), copy.deepcopy(decoder()), device="cuda")
    assert torch.equal(output(again, ids(), "cuda"), output(model, ids(), "cuda"))
