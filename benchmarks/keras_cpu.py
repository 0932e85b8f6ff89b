"""Keras models on a CPU: float Keras, float LiteRT, our int8 file, and what the field's tools make of the same model.

    python benchmarks/keras_cpu.py [--data DIR] [--images 500] [--rows digits,resnet8,mobilenet]

In the environment of ``make test-tensorflow``, with ``pip install safetensors pillow`` for MobileNetV2. A CNN on
scikit-learn's digits is trained here; with ``--data`` come ResNet-8 for CIFAR-10 (``keras/resnet8_cifar10.h5``,
``cifar10/cifar10_test2k.npz``, ``cifar10_train512_calib.npz``) and MobileNetV2 (``imagenet/mobilenet_v2.safetensors`` of
torchvision's names, built here in Keras, with JPEG images). All is one run: accuracy over the same images; time at batch 1,
CPU time of one thread in turns, as a multiple of float LiteRT's; file size; seconds to make it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from neural_compressor.tensorflow import StaticQuantConfig, quantize_model
from neural_compressor.tensorflow.litert.convert import keras_to_litert
from neural_compressor.tensorflow.litert.keras_file import float_litert, to_litert
from neural_compressor.tensorflow.litert.runner import Runner

Array = np.ndarray[Any, Any]
ROUNDS = 100


@dataclass
class Task:
    """A model with calibration and test images."""

    name: str
    model: Any
    calibration: Array
    images: Array
    labels: Array


def digits() -> Task:
    """A CNN trained here, for a few seconds."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from quickstart_keras import digits_cnn, digits_data

    keras.utils.set_random_seed(0)
    x_train, x_test, y_train, y_test = digits_data()
    model = digits_cnn()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x_train, y_train, epochs=4, batch_size=32, verbose=0)
    return Task("CNN on digits", model, x_train[:256], x_test, y_test)


def resnet8(data: Path, images: int) -> Task:
    """ResNet-8 on CIFAR-10."""
    model = keras.models.load_model(data / "keras" / "resnet8_cifar10.h5", compile=False)
    test, calibration = (np.load(data / "cifar10" / f"cifar10_{name}.npz") for name in ("test2k", "train512_calib"))
    x = test["x"][: max(images, 2000)].astype("float32")
    return Task("ResNet-8", model, calibration["x"][:256].astype("float32"), x, test["y"][: len(x)])


def mobilenet(data: Path, images: int) -> Task:
    """MobileNetV2 on ImageNet, from torchvision's weights."""
    folder = data / "imagenet"
    model = mobilenet_v2(_safetensors(folder / "mobilenet_v2.safetensors"))
    files = sorted((folder / "val1000").glob("*.jpg"))
    files = files[:: max(1, len(files) // images)]
    calibration = sorted((folder / "calibration250").glob("*.jpg"))[:100]
    labels = np.array([int(file.name.split("_")[0]) for file in files])
    return Task("MobileNetV2", model, _pictures(calibration), _pictures(files), labels)


def _pictures(files: list[Path]) -> Array:
    found = (
        np.stack([tf.io.decode_jpeg(file.read_bytes(), channels=3).numpy() for file in files]).astype("float32") / 255
    )
    return np.asarray((found - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225], np.float32)


def _safetensors(path: Path) -> dict[str, Array]:
    from safetensors.numpy import load_file

    return dict(load_file(path))


def mobilenet_v2(weights: dict[str, Array]) -> Any:
    """The network of torchvision in Keras; padding is explicit, as there."""
    layers = keras.layers

    def conv(x: Any, name: str, norm: str, stride: int = 1, relu: bool = True) -> Any:
        kernel = weights[f"{name}.weight"]
        size, depthwise = kernel.shape[-1], kernel.shape[1] == 1
        if size == 3:
            x = layers.ZeroPadding2D(1)(x)
        if depthwise:
            layer = layers.DepthwiseConv2D(3, strides=stride, use_bias=False)
            array = kernel.transpose(2, 3, 0, 1)
        else:
            layer = layers.Conv2D(kernel.shape[0], size, strides=stride, use_bias=False)
            array = kernel.transpose(2, 3, 1, 0)
        x = layer(x)
        layer.set_weights([array])
        bn = layers.BatchNormalization(epsilon=1e-5)
        x = bn(x)
        bn.set_weights([weights[f"{norm}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")])
        return layers.ReLU(6)(x) if relu else x

    image = keras.Input((224, 224, 3), name="image")
    x = conv(image, "features.0.0", "features.0.1", 2)
    number = 1
    for expand, outputs, repeats, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for index in range(repeats):
            stride, before, base = first if index == 0 else 1, x, f"features.{number}.conv"
            place = 0
            if expand != 1:
                x = conv(x, f"{base}.0.0", f"{base}.0.1")
                place = 1
            x = conv(x, f"{base}.{place}.0", f"{base}.{place}.1", stride)
            x = conv(x, f"{base}.{place + 1}", f"{base}.{place + 2}", relu=False)
            if stride == 1 and before.shape[-1] == outputs:
                x = layers.Add()([before, x])
            number += 1
    x = layers.GlobalAveragePooling2D()(conv(x, "features.18.0", "features.18.1"))
    head = layers.Dense(1000)
    x = head(x)
    head.set_weights([weights["classifier.1.weight"].T, weights["classifier.1.bias"]])
    return keras.Model(image, x, name="mobilenet_v2")


def ours(task: Task) -> bytes:
    """Our static int8, with defaults."""
    batches = [task.calibration[start : start + 16] for start in range(0, len(task.calibration), 16)]
    return to_litert(
        quantize_model(task.model, StaticQuantConfig(), batches, calib_iteration=100, quiet=True).model
    ).content


def default_recipe(task: Task) -> bytes:
    """ai-edge-quantizer's own static recipe and calibration, on the float file of the model as it is."""
    from ai_edge_quantizer import quantizer, recipe

    tool = quantizer.Quantizer(keras_to_litert(task.model), recipe.static_wi8_ai8())
    name = Runner(keras_to_litert(task.model)).inputs[0]
    data = {"serving_default": [{name: image[None]} for image in task.calibration]}
    return bytes(tool.quantize(tool.calibrate(data, num_threads=1), enable_progress_report=False).quantized_model)


def converter_int8(task: Task) -> bytes:
    """The converter's own full int8."""
    from neural_compressor.tensorflow.litert.convert import with_batch

    converter = tf.lite.TFLiteConverter.from_keras_model(with_batch(task.model, 1))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image[None]] for image in task.calibration)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    return bytes(converter.convert())


def keras_quantized(task: Task) -> Any:
    """What ``model.quantize("int8")`` of Keras makes of a copy."""
    copy = keras.models.clone_model(task.model)
    copy.set_weights(task.model.get_weights())
    copy.quantize("int8")
    return copy


def compare(task: Task, console: Console) -> None:
    """One table."""
    table = Table("variant", "accuracy", "won / lost", "time", "kB", "seconds to make", title=task.name)
    files: dict[str, Callable[[Task], bytes]] = {
        "float LiteRT": lambda task: float_litert(task.model),
        "ours, int8 LiteRT": ours,
        "ai-edge-quantizer static_wi8_ai8": default_recipe,
        "TFLite converter, full int8": converter_int8,
    }
    calls: dict[str, Callable[[], Any]] = {}
    right: dict[str, Array] = {}
    facts: dict[str, tuple[str, float]] = {}
    float_function = tf.function(lambda x: task.model(x, training=False))
    one = tf.constant(task.images[:1])
    calls["float Keras (tf.function)"] = lambda: float_function(one)
    right["float Keras (tf.function)"] = task.model.predict(task.images, verbose=0).argmax(-1) == task.labels
    facts["float Keras (tf.function)"] = ("", 0.0)
    for name, make in files.items():
        begun = time.perf_counter()
        content = make(task)
        seconds = time.perf_counter() - begun
        runner = Runner(content)
        outputs = np.concatenate([next(iter(runner(image[None]).values())) for image in task.images])
        right[name] = outputs.argmax(-1) == task.labels
        given = runner.given(task.images[:1])  # some files take integers: these are made outside of the time
        calls[name] = lambda runner=runner, given=given: runner(given)  # type: ignore[misc]
        facts[name] = (f"{len(content) / 1e3:.0f}", seconds)
    begun = time.perf_counter()
    quantized = keras_quantized(task)
    seconds = time.perf_counter() - begun
    function = tf.function(lambda x: quantized(x, training=False))
    right["keras.quantize('int8')"] = quantized.predict(task.images, verbose=0).argmax(-1) == task.labels
    calls["keras.quantize('int8')"] = lambda: function(one)
    facts["keras.quantize('int8')"] = ("", seconds)
    times = _times(calls)
    base, reference = times["float LiteRT"], right["float LiteRT"]
    for name in calls:
        won, lost = int((right[name] & ~reference).sum()), int((reference & ~right[name]).sum())
        size, seconds = facts[name]
        table.add_row(
            name,
            f"{100 * right[name].mean():.2f}",
            f"{won} / {lost}",
            f"{times[name] / base:.2f}",
            size,
            f"{seconds:.1f}",
        )
    console.print(table)


def _times(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Medians of CPU time, in turns: of the thread for LiteRT, of the process for Keras, which has threads of its own."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(5):
            call()
    turns, orders = list(calls.items()), random.Random(0)
    for _ in range(ROUNDS):
        orders.shuffle(turns)  # a call leaves the caches to the next one, which should not always be the same
        for name, call in turns:
            clock = time.process_time if "eras" in name.split(",")[0] else time.thread_time
            begun = clock()
            call()
            taken[name].append(clock() - begun)
    return {name: statistics.median(values) for name, values in taken.items()}


def cpu() -> str:
    """The name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def main() -> None:
    """All rows that there is data for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with ResNet-8 and MobileNetV2 and their images")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--rows", default="digits,resnet8,mobilenet")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    console = Console(width=130)
    console.print(
        f"{cpu()}, one thread; time as a multiple of float LiteRT's; won / lost: images that only this, or only"
    )
    console.print("float LiteRT, gets right")
    tasks: dict[str, Callable[[], Task]] = {"digits": digits}
    if options.data is not None:
        tasks["resnet8"] = lambda: resnet8(options.data, options.images)
        tasks["mobilenet"] = lambda: mobilenet(options.data, options.images)
    for name in options.rows.split(","):
        if name in tasks:
            compare(tasks[name](), console)


if __name__ == "__main__":
    main()
