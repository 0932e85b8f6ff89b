"""Trained image networks and their images, from a folder that a benchmark is given with ``--data``.

``DIR/imagenet`` holds ``mobilenet_v2.safetensors`` (torchvision's parameter names), ``val1000/CCCC_ID.jpg`` (CCCC: the
class) and ``calibration250/*.jpg``, all 224x224; ``DIR/cifar10`` holds ``resnet20.safetensors``, ``resnet32.safetensors``
and the arrays ``cifar10_test2k.npz``, ``cifar10_train512_calib.npz`` (x: uint8 NHWC, y).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

_MEAN, _STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution that keeps the size at stride 1, and its normalisation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; with a shortcut where shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        self.shortcut = stride == 1 and inputs == outputs
        layers: list[nn.Module] = []
        if expand != 1:
            layers.append(nn.Sequential(*conv_bn(inputs, hidden, 1), nn.ReLU6(inplace=True)))
        layers.append(nn.Sequential(*conv_bn(hidden, hidden, 3, stride, hidden), nn.ReLU6(inplace=True)))
        self.conv = nn.Sequential(*layers, *conv_bn(hidden, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    """Sandler et al. 2018, with torchvision's names."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(*conv_bn(3, 32, 3, 2), nn.ReLU6(inplace=True))]
        inputs = 32
        stages = (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        )
        for expand, outputs, repeats, stride in stages:
            for index in range(repeats):
                layers.append(InvertedResidual(inputs, outputs, stride if index == 0 else 1, expand))
                inputs = outputs
        layers.append(nn.Sequential(*conv_bn(inputs, 1280, 1), nn.ReLU6(inplace=True)))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut that drops every second pixel and adds channels of zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_bn(inputs, outputs, 3, stride)
        self.conv2, self.bn2 = conv_bn(outputs, outputs, 3)
        self.stride, self.added = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.stride != 1:
            x = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.added, self.added))
        return torch.relu(y + x)


class ResNetCifar(nn.Module):
    """He et al. 2015, for 32x32 images: 6n + 2 layers."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_bn(3, 16, 3)
        inputs = 16
        for stage, outputs in enumerate((16, 32, 64), start=1):
            layers = []
            for index in range(blocks):
                layers.append(BasicBlock(inputs, outputs, 2 if stage > 1 and index == 0 else 1))
                inputs = outputs
            setattr(self, f"layer{stage}", nn.Sequential(*layers))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(nn.functional.avg_pool2d(x, x.shape[3]).flatten(1))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Vision:
    """A trained network with images to calibrate and to evaluate on."""

    model: nn.Module
    calibration: Tensor
    images: Tensor
    labels: Tensor


def _normalised(pixels: np.ndarray) -> Tensor:
    values = (pixels.astype(np.float32) / 255 - _MEAN) / _STD
    return torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))


def _photographs(paths: list[Path]) -> Tensor:
    from PIL import Image

    return _normalised(np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths]))


def _loaded(model: nn.Module, path: Path) -> nn.Module:
    model.load_state_dict(load_file(path))
    return model.eval()


def mobilenet_v2(data: Path, count: int) -> Vision:
    """MobileNetV2 with ``count`` validation images spread over the classes, and 100 others to calibrate."""
    folder = data / "imagenet"
    every = sorted((folder / "val1000").glob("*.jpg"))
    chosen = every[:: max(len(every) // count, 1)][:count]
    labels = torch.tensor([int(path.name[:4]) for path in chosen])
    others = sorted((folder / "calibration250").glob("*.jpg"))[:100]
    model = _loaded(MobileNetV2(), folder / "mobilenet_v2.safetensors")
    return Vision(model, _photographs(others), _photographs(chosen), labels)


def resnet(data: Path, count: int, layers: int = 20) -> Vision:
    """ResNet-20 or -32 with ``count`` test images of CIFAR-10, and 512 of its training images to calibrate."""
    folder = data / "cifar10"
    test, calibration = np.load(folder / "cifar10_test2k.npz"), np.load(folder / "cifar10_train512_calib.npz")
    model = _loaded(ResNetCifar((layers - 2) // 6), folder / f"resnet{layers}.safetensors")
    labels = torch.from_numpy(test["y"][:count].astype(np.int64))
    return Vision(model, _normalised(calibration["x"]), _normalised(test["x"][:count]), labels)


def vision(name: str, data: Path, count: int) -> Vision:
    """By name: mobilenet_v2, resnet20 or resnet32."""
    if name == "mobilenet_v2":
        return mobilenet_v2(data, count)
    return resnet(data, count, int(name.removeprefix("resnet")))


NAMES = ("mobilenet_v2", "resnet20", "resnet32")
