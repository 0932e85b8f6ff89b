"""A LiteRT model in memory: float, or quantized by a plan. It is called with batches, and saved as a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.paths import output_file, path_of, write_errors
from neural_compressor.registry import close_matches
from neural_compressor.schemes import Plan
from neural_compressor.tensorflow.float_graph import QuantizedGraph, Watchers
from neural_compressor.tensorflow.litert.convert import saved_model_to_litert
from neural_compressor.tensorflow.litert.runner import Runner, interpreter_for

FILE = "model.tflite"
SIGNATURE = "serving_default"


@dataclass(eq=False)
class LiteModel:
    """``content`` of a file; ``outputs`` names those to give, by default all, ``inputs`` their order in lists.

    ``plan`` is what it was quantized by, ``quantization`` what that was made with.
    """

    content: bytes
    name: str = "model"
    outputs: Sequence[str] = ()
    inputs: Sequence[str] = ()
    plan: Plan | None = None
    quantization: QuantizedGraph | None = None

    @cached_property
    def runner(self) -> Runner:
        """What runs it, on one thread."""
        return Runner(self.content, order=self.inputs)

    def __getstate__(self) -> dict[str, Any]:
        """Without the interpreter, which cannot be copied; it is made again."""
        return {name: value for name, value in vars(self).items() if name != "runner"}

    def __call__(self, inputs: Any) -> Any:
        """The outputs for a batch: an array, or a dict where there are several."""
        found = self.runner(inputs)
        names = list(self.outputs) or self.runner.outputs
        return found[names[0]] if len(names) == 1 else {name: found[name] for name in names}

    def predict(self, inputs: Any, **_: Any) -> Any:
        """As :meth:`__call__`: what Keras models call it."""
        return self(inputs)

    def save(self, path: str | Path) -> None:
        """Write the file."""
        write_whole(path_of(path, "save"), self.content)


@dataclass(eq=False)
class ObservedModel(LiteModel):
    """A model that shows its tensors to ``watchers`` at each call."""

    watchers: Watchers = field(default_factory=dict)

    @cached_property
    def runner(self) -> Runner:
        """One that keeps every tensor."""
        return Runner(self.content, order=self.inputs, watchers=self.watchers)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    target = output_file(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    with write_errors(target, len(content)):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(content)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)


def read_saved_model(folder: Path, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> LiteModel:
    """A SavedModel, or the float ``.tflite`` file at ``folder``, whose signature has the named inputs and outputs."""
    if folder.suffix == ".tflite":
        try:
            model = LiteModel(folder.read_bytes(), folder.stem)
        except OSError as error:
            raise FormatError(f"{folder} cannot be read: {error}") from error
        _check_names("outputs", outputs, model.runner.outputs)
        _check_inputs(inputs, model.runner.inputs)
    else:
        known_inputs, known_outputs = signature_of(folder)
        _check_inputs(inputs, known_inputs)
        _check_names("outputs", outputs, known_outputs)
        model = LiteModel(saved_model_to_litert(folder, SIGNATURE), folder.name)
    model.outputs, model.inputs = tuple(outputs), tuple(inputs)
    _check_sizes(model, folder)
    return model


def signature_of(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the inputs and outputs that a SavedModel serves."""
    import tensorflow as tf

    try:
        loaded = tf.saved_model.load(str(folder))
        signatures = loaded.signatures
    except Exception as error:  # TensorFlow raises OSError, ValueError, IndexError and errors of its own
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FormatError(f"{folder} is no SavedModel that can be read: {first}") from error
    if SIGNATURE not in signatures:
        raise FormatError(
            f"the SavedModel {folder} has no signature {SIGNATURE!r}, it has {', '.join(signatures) or 'none'}; save it "
            "with tf.saved_model.save(model, folder, signatures=function), or model.export(folder) of Keras"
        )
    function = signatures[SIGNATURE]
    return list(function.structured_input_signature[1]), list(function.structured_outputs)


def _check_sizes(model: LiteModel, path: Path) -> None:
    """Refuse axes of no fixed size that LiteRT cannot start with: it takes them to be 1 until it is told more."""
    try:
        interpreter_for(model.content).allocate_tensors()
    except (RuntimeError, ValueError) as error:
        open_axes = {name: shape for name, shape in model.runner.shapes.items() if -1 in shape[1:]}
        if not open_axes:
            raise FormatError(f"{path}: LiteRT cannot run the model: {error}") from error
        told = ", ".join(f"{name} {shape}" for name, shape in open_axes.items())
        raise FormatError(
            f"{path}: LiteRT cannot start with inputs whose size is open ({told}); save the model with fixed sizes, where "
            "only the batch is open"
        ) from error


def _check_names(what: str, named: Sequence[str], known: Sequence[str]) -> None:
    for name in named:
        if name not in known:
            raise ConfigError(f"{what}: the signature of the model has no {name!r}; {close_matches(name, known)}")


def _check_inputs(named: Sequence[str], known: Sequence[str]) -> None:
    _check_names("inputs", named, known)
    if missing := [name for name in known if named and name not in named]:
        raise ConfigError(f"inputs: the model also takes {', '.join(missing)}; name all of its inputs, or none")
