"""Plans on a model that lies on a GPU."""

import pytest
import torch
from torch import nn

import neural_compressor.torch.quantization as q

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that CUDA runs on")

CONFIGS = sorted(
    name
    for name in q.__all__
    if name.endswith("Config") and name not in ("ComposableConfig", "ComposedConfig", "TuningConfig")
)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)).cuda().eval()


def converted(config: object, x: torch.Tensor) -> nn.Module:
    model = q.prepare(net(), config)
    for _ in range(2):
        model(x)
    return q.convert(model, quiet=True)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_reaches_convert_there(name: str) -> None:
    x = torch.randn(16, 3, 8, 8, device="cuda")
    with torch.no_grad():
        found = converted(getattr(q, name)(), x)(x)
        assert found.device.type == "cuda"
        assert relative_error(found, net()(x)) < 0.15


def test_weight_only_and_static_ops_mix_there() -> None:
    x = torch.randn(16, 3, 8, 8, device="cuda")
    config = q.StaticQuantConfig().set_local("4", q.GPTQConfig(group_size=32))
    with torch.no_grad():
        model = converted(config, x)
        assert {scheme.mode for scheme in model.quantization.plan.values()} == {"static", "weight_only"}
        assert relative_error(model(x), net()(x)) < 0.05
