"""Batches of a user as a Keras model takes them, and models run on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
from keras import tree

from neural_compressor.adaptor.user_code import batches as user_batches
from neural_compressor.errors import CalibrationError
from neural_compressor.observers.input_check import CalibrationInputs
from neural_compressor.tensorflow.litert.model import LiteModel

_FUNCTIONS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def run(model: Any, inputs: Any) -> Any:
    """What ``model`` gives for the inputs of one batch, as NumPy."""
    if isinstance(model, LiteModel):
        return model(inputs)
    if model not in _FUNCTIONS:
        weakly = _weak_call(model)
        _FUNCTIONS[model] = tf.function(weakly, reduce_retracing=True)
    outputs = _FUNCTIONS[model](in_structure(model, inputs))
    return tree.map_structure(lambda t: t.numpy(), outputs)


def _weak_call(model: Any) -> Any:
    """A function of a model that does not keep it alive."""
    from weakref import ref

    held = ref(model)
    return lambda inputs: held()(inputs, training=False)  # type: ignore[misc]


def in_structure(model: Any, inputs: Any) -> Any:
    """``inputs`` with tensors of the types that ``model`` takes, in its structure; by name where they are a dict."""
    struct = getattr(getattr(model, "_functional", None) or model, "_inputs_struct", None)
    if struct is None:
        return tree.map_structure(tf.convert_to_tensor, inputs)
    wanted = tree.flatten(struct)
    if isinstance(inputs, Mapping):
        names = list(struct) if isinstance(struct, Mapping) else [tensor.name for tensor in wanted]
        missing = [name for name in names if name not in inputs]
        if missing:
            raise CalibrationError(
                f"a batch is a dict with {', '.join(map(str, inputs))}, and the model takes {', '.join(names)}; "
                f"{', '.join(missing)} is missing"
            )
        flat = [inputs[name] for name in names]
        wanted = [struct[name] for name in names] if isinstance(struct, Mapping) else wanted
    else:
        several = isinstance(inputs, (list, tuple)) and (len(wanted) > 1 or _is_only(inputs, wanted[0]))
        flat = list(inputs) if several else [inputs]
        if len(flat) != len(wanted):
            raise CalibrationError(f"a batch has {len(flat)} inputs, and the model takes {len(wanted)}")
    tensors = [_fitting(array, tensor) for array, tensor in zip(flat, wanted, strict=True)]
    if isinstance(struct, Mapping) and isinstance(inputs, Mapping):
        return dict(zip(names, tensors, strict=True))
    return tree.pack_sequence_as(struct, tensors)


def _is_only(inputs: Any, wanted: Any) -> bool:
    """Whether a list holds the one input of a model, and is not a batch of that itself."""
    return len(inputs) == 1 and len(np.shape(inputs[0])) == len(wanted.shape)


def _fitting(value: Any, wanted: Any) -> Any:
    try:
        tensor = tf.convert_to_tensor(value)
        tensor = tensor if tensor.dtype == wanted.dtype else tf.cast(tensor, wanted.dtype)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise CalibrationError(
            f"input {wanted.name!r}: {type(value).__name__} cannot be made a tensor: {error}"
        ) from error
    shape, given = tuple(wanted.shape), tuple(tensor.shape)
    if len(shape) != len(given) or any(want not in (None, got) for want, got in zip(shape, given, strict=True)):
        raise CalibrationError(
            f"input {wanted.name!r} of the model has the shape {shape}, and a batch has {given}; the first axis is the batch"
        )
    return tensor


def inputs_of(batch: Any, model: Any) -> Any:
    """The inputs in a batch of a loader, which may have labels behind them."""
    known = model.runner.inputs if isinstance(model, LiteModel) else getattr(model, "inputs", None)
    count = len(known) if known else 1
    if isinstance(batch, (tuple, list)):
        if len(batch) == 2 and (count != 2 or isinstance(batch[0], (tuple, list, Mapping))):
            return batch[0]
        if len(batch) == 1 or (len(batch) == 3 and count == 1):  # Keras: inputs, labels, weights of samples
            return batch[0]
    return batch


def samples_in(inputs: Any) -> int:
    """How many samples a batch has."""
    first = tree.flatten(inputs)[0]
    shape = np.shape(first)
    return int(shape[0]) if shape else 1


def _fitted(model: Any, inputs: Any) -> tuple[Any, dict[str, Any]]:
    """What ``model`` is called with for these inputs, and the arrays in it by name."""
    if isinstance(model, LiteModel):
        given = model.runner.given(inputs)
        return given, given
    tensors = in_structure(model, inputs)
    flat = zip(model.inputs, tree.flatten(tensors), strict=True)
    return tensors, {wanted.name: tensor.numpy() for wanted, tensor in flat if tensor.dtype.is_floating}


def feeds(model: Any, loader: Iterable[Any], samples: int) -> Iterator[Any]:
    """The inputs of as many batches of ``loader`` as hold ``samples`` samples; warns of data that tells nothing."""
    seen, checks, index = 0, CalibrationInputs(), 0
    for index, batch in enumerate(user_batches(loader)):
        try:
            given, arrays = _fitted(model, inputs_of(batch, model))
        except CalibrationError as error:
            raise CalibrationError(f"batch {index} of the calibration data does not fit: {error}") from None
        for name, array in arrays.items():
            if array.dtype.kind == "f":
                checks.note(name, array, f" (batch {index})")
        yield given
        seen += samples_in(given)
        if seen >= samples:
            break
    checks.warn()
    if seen == 0:
        raise CalibrationError(
            "the calibration data gave no sample; give a loader of batches that can be gone over again (a generator is "
            "empty the second time)"
        )
