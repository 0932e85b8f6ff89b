import copy

import pytest
import torch
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.torch import accelerator
from neural_compressor.torch.accelerator import follow_inputs, target_device
from neural_compressor.torch.quantization import FP8Config, convert, prepare
from neural_compressor.torch.utils import auto_detect_accelerator, get_model_device, get_torch_version, is_hpu_available


@pytest.fixture
def machine(monkeypatch):
    """A machine with these kinds of device."""
    monkeypatch.delenv("INC_TARGET_DEVICE", raising=False)

    def has(*kinds):
        monkeypatch.setattr(accelerator, "_KINDS", {k: (lambda k=k: k in (*kinds, "cpu")) for k in accelerator._KINDS})

    return has


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ((), "cpu"),
        (("cuda",), "cuda"),
        (("cuda", "xpu"), "xpu"),
        (("cuda", "xpu", "hpu"), "hpu"),
        (("cuda", "hpu"), "hpu"),
    ],
)
def test_the_first_that_is_there_in_the_usual_order(machine, kinds, found):
    machine(*kinds)
    assert auto_detect_accelerator().name() == found
    assert auto_detect_accelerator("cpu").name() == "cpu"
    assert is_hpu_available() is ("hpu" in kinds)


def test_the_environment_says_otherwise(machine, monkeypatch):
    machine("cuda", "hpu")
    monkeypatch.setenv("INC_TARGET_DEVICE", "CUDA")
    assert auto_detect_accelerator().name() == "cuda"
    assert auto_detect_accelerator("hpu").name() == "hpu"
    monkeypatch.setenv("INC_TARGET_DEVICE", "xpu")
    with pytest.raises(ConfigError, match=r"INC_TARGET_DEVICE is 'xpu'.*has none; there is: hpu, cuda, cpu"):
        auto_detect_accelerator()
    monkeypatch.setenv("INC_TARGET_DEVICE", "gpu")
    with pytest.raises(ConfigError, match=r"INC_TARGET_DEVICE is 'gpu'.*known"):
        auto_detect_accelerator()


def test_the_environment_names_one_of_several(machine, monkeypatch):
    machine("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("INC_TARGET_DEVICE", "cuda:1")
    assert target_device() == torch.device("cuda", 1)
    monkeypatch.setenv("INC_TARGET_DEVICE", "cuda:2")
    with pytest.raises(ConfigError, match="INC_TARGET_DEVICE: the device is 'cuda:2', and of cuda there are 2"):
        target_device()


def test_prepare_says_so_before_any_work(machine, monkeypatch):
    machine()
    monkeypatch.setenv("INC_TARGET_DEVICE", "hpu")
    with pytest.raises(ConfigError, match="there is: cpu"):
        prepare(nn.Sequential(nn.Linear(4, 4)), FP8Config())
    monkeypatch.setenv("INC_TARGET_DEVICE", "cpu")
    model = prepare(nn.Sequential(nn.Linear(4, 4)), FP8Config())
    model(torch.randn(2, 4))
    assert get_model_device(convert(model, quiet=True)) == "cpu"


def test_the_cpu_has_nothing_to_wait_for():
    cpu = auto_detect_accelerator("cpu")
    cpu.synchronize(), cpu.empty_cache(), cpu.set_device(0)
    found = cpu.device_count(), cpu.current_device(), cpu.current_device_name(), str(cpu.device(0)), cpu.device_name(0)
    assert found == (1, "cpu", "cpu", "cpu", "cpu")
    assert torch.__version__.startswith(str(get_torch_version()))


def test_a_model_follows_its_first_inputs_once(monkeypatch):
    model, told = nn.Linear(4, 4), []
    follow_inputs(model, told.append)
    model(torch.randn(2, 4))
    assert not told
    assert not model._forward_pre_hooks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_follows_its_data_to_the_gpu():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 32)).eval()
    data = torch.randn(2, 3, 8, 8)
    model = prepare(copy.deepcopy(net), FP8Config())
    model(data.cuda())
    model = convert(model, quiet=True)
    y = model(data.cuda()).cpu()
    assert (y - net(data)).norm() / net(data).norm() < 0.1
