"""Model outputs and labels of a batch as NumPy arrays that can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from neural_compressor.errors import EvaluationError

Array = npt.NDArray[Any]


def as_array(values: Any) -> Array:
    """``values`` as NumPy, from any device; NumPy has no bfloat16, so torch floats become float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    # MXNet's arrays have no __array__: NumPy would ask for one element after the other.
    return np.asarray(values.asnumpy() if hasattr(values, "asnumpy") else values)


def class_numbers(preds: Any, labels: Any, name: str) -> tuple[Array, Array]:
    """Predicted and expected class numbers, flat."""
    predicted, expected = as_array(preds), as_array(labels)
    if predicted.ndim >= 2 and predicted.shape[1] > 1 and predicted.dtype.kind == "f":
        if expected.shape == predicted.shape:
            expected = expected.argmax(axis=1)
        predicted = predicted.argmax(axis=1)
    elif predicted.dtype.kind == "f" and not (predicted == np.rint(predicted)).all():
        if predicted.min() < 0 or predicted.max() > 1:
            raise EvaluationError(
                f"metric {name}: one score for each sample, and not all between 0 and 1; "
                "give probabilities, class numbers, or scores of shape (batch, classes)"
            )
        predicted = predicted > 0.5
    predicted, expected = predicted.reshape(-1).astype(np.int64), expected.reshape(-1).astype(np.int64)
    if predicted.shape != expected.shape:
        raise EvaluationError(f"metric {name}: {predicted.size} predictions for {expected.size} labels in a batch")
    return predicted, expected


def difference_of(preds: Any, labels: Any, name: str) -> Array:
    """Predictions minus labels, flat."""
    predicted, expected = as_array(preds).astype(np.float64), as_array(labels).astype(np.float64)
    if predicted.size != expected.size:
        raise EvaluationError(
            f"metric {name}: predictions of shape {predicted.shape} for labels of shape {expected.shape}"
        )
    # equal sizes only: (n, 1) against (n,) must not broadcast to (n, n)
    return predicted.reshape(-1) - expected.reshape(-1)
