"""Float models as LiteRT files, through TensorFlow's converter."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from neural_compressor.errors import QuantizationError
from neural_compressor.paths import raise_if_full, write_errors
from neural_compressor.tensorflow.structure.trace import functional_of, rebuild


def keras_to_litert(model: Any, batch_size: int | None = 1) -> bytes:
    """A functional Keras model as a float file with one signature; ``batch_size`` None leaves the batch open."""
    # The converter writes the weights into the temporary folder, and takes another way where it cannot.
    raise_if_full(Path(tempfile.gettempdir()), sum(weight.numpy().nbytes for weight in model.weights))
    return _converted(
        lambda: tf.lite.TFLiteConverter.from_keras_model(with_batch(model, batch_size)), f"model {model.name!r}"
    )


def saved_model_to_litert(folder: Path, signature: str) -> bytes:
    """A SavedModel as a float file."""

    def converter() -> Any:
        return tf.lite.TFLiteConverter.from_saved_model(str(folder), signature_keys=[signature])

    return _converted(converter, f"SavedModel {folder}")


def with_batch(model: Any, batch_size: int | None) -> Any:
    """A functional or Sequential ``model`` with the batch fixed; it shares the layers."""
    return rebuild(
        functional_of(model),
        lambda node, args, kwargs: node.operation(*args, **kwargs),
        shape=lambda given: (batch_size, *given[1:]),
    )


def _converted(converter: Any, what: str) -> bytes:
    place = Path(tempfile.gettempdir())
    with write_errors(place), _quiet():
        try:
            return bytes(converter().convert())
        except (tf.errors.ResourceExhaustedError, OSError):
            raise
        except Exception as error:  # the converter raises many kinds, its own among them
            if "no space left" in str(error).lower():
                raise OSError(28, "No space left on device") from error
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            missing = re.search(r"^TF Select ops: (.+)$", str(error), re.MULTILINE)
            first = f"LiteRT has no {missing[1].strip()}" if missing else first
            raise QuantizationError(
                f"the {what} cannot be converted to LiteRT: {first}. The simulated model is not affected; the layers that "
                "LiteRT has no ops for have to stay out of a deployed file"
            ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """The converter prints the whole signature, and logs from C++ to the file descriptor of standard error."""
    logger = logging.getLogger("tensorflow")
    level, saved = logger.level, os.dup(2)
    logger.setLevel(logging.ERROR)
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(io.StringIO()):
            os.dup2(nothing.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        logger.setLevel(level)
