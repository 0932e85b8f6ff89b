"""Train a small Keras CNN on real data, tune it to int8 under an accuracy promise, save it as an integer file for LiteRT.

Run it with ``make quickstart-keras``, or ``python examples/quickstart_keras.py --help`` for the options.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def digits_data() -> tuple[Any, Any, Any, Any]:
    """Training and test images of scikit-learn's handwritten digits, enlarged to 16x16, with their labels."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = np.kron(pixels.reshape(-1, 8, 8) / 16, np.ones((2, 2)))[..., None].astype("float32")
    return tuple(train_test_split(images, labels, test_size=0.4, random_state=0, stratify=labels))  # type: ignore[return-value]


def digits_cnn() -> Any:
    """Five convolutions with batch normalisation and a classifier."""
    import keras

    layers = [keras.Input((16, 16, 1), name="image")]
    for filters, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        layers.append(keras.layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False))
        layers += [keras.layers.BatchNormalization(momentum=0.9), keras.layers.ReLU()]
    return keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)], name="digits")


def main() -> None:
    """Train, tune, save, run the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("quickstart_out/keras"), help="folder for the model and the report"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--tolerable-loss", type=float, default=0.01, help="the promise: relative accuracy loss")
    options = parser.parse_args()

    import keras
    from ai_edge_litert.interpreter import Interpreter

    from neural_compressor import quantization
    from neural_compressor.config import AccuracyCriterion, PostTrainingQuantConfig

    keras.utils.set_random_seed(0)
    x_train, x_test, y_train, y_test = digits_data()
    model = digits_cnn()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x_train, y_train, epochs=options.epochs, batch_size=32, verbose=2)

    def accuracy(candidate: Any) -> float:
        return float((candidate.predict(x_test, verbose=0).argmax(-1) == y_test).mean())

    found = quantization.fit(
        model,
        PostTrainingQuantConfig(accuracy_criterion=AccuracyCriterion(tolerable_loss=options.tolerable_loss)),
        calib_dataloader=[(x_train[start : start + 32], y_train[start : start + 32]) for start in range(0, 320, 32)],
        eval_func=accuracy,
        workspace=options.out,
        title="digits",
    )
    found.save(options.out / "model")
    file = options.out / "model" / "model.tflite"
    runner = Interpreter(model_path=str(file)).get_signature_runner()
    hits = sum(
        int(next(iter(runner(image=x[None]).values())).argmax()) == y for x, y in zip(x_test, y_test, strict=True)
    )
    print(f"{file} ({file.stat().st_size / 1e3:.0f} kB): LiteRT gets {hits / len(y_test):.4f} of the test images right")


if __name__ == "__main__":
    main()
