"""LiteRT files run on batches, on one thread."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from neural_compressor.errors import CalibrationError, FormatError


def interpreter_for(content: bytes, num_threads: int = 1, keep_tensors: bool = False) -> Any:
    """LiteRT's interpreter of a file; with ``keep_tensors`` each tensor can be looked at after a run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that tensors are kept for debugging, which is what they are kept for
            return Interpreter(
                model_content=content, num_threads=num_threads, experimental_preserve_all_tensors=keep_tensors
            )
    except (ValueError, RuntimeError) as error:
        raise FormatError(f"LiteRT cannot load the file: {error}") from error


def by_name(inputs: Any, order: Sequence[str], places: Mapping[str, Any], what: str) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs of a batch by the names of the signature, of the types it has."""
    if not isinstance(inputs, Mapping):
        flat = list(inputs) if isinstance(inputs, (list, tuple)) and len(order) > 1 else [inputs]
        if len(flat) != len(order):
            raise CalibrationError(f"{what} has {len(flat)} inputs, and the model takes {', '.join(order)}")
        inputs = dict(zip(order, flat, strict=True))
    found = {}
    for name in order:
        if name not in inputs:
            raise CalibrationError(f"{what} has {', '.join(map(str, inputs))}, and the model takes {', '.join(order)}")
        array = _of_type(np.asarray(inputs[name]), places[name])
        shape = tuple(int(size) for size in places[name]["shape_signature"])
        if array.ndim != len(shape) or any(
            want not in (-1, got) for want, got in zip(shape[1:], array.shape[1:], strict=True)
        ):
            raise CalibrationError(f"{what}: input {name!r} has the shape {array.shape}, and the model takes {shape}")
        found[name] = array
    return found


def _of_type(array: np.ndarray[Any, Any], place: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """``array`` in the type of an input; floats for an input of integers are quantized with its scale."""
    kind, known = np.dtype(place["dtype"]), place["quantization_parameters"]
    if array.dtype.kind == "f" and kind.kind in "iu" and len(known["scales"]) == 1:
        limits = np.iinfo(kind)
        array = np.clip(np.round(array / known["scales"][0]) + known["zero_points"][0], limits.min, limits.max)
    return np.asarray(array, kind)


class Runner:
    """A file, loaded once. Inputs go by the names of the signature, or in ``order`` of these.

    ``watchers`` are shown the tensors of each run, by their index in the file: the floats that they hold or stand for.
    """

    def __init__(
        self,
        content: bytes,
        num_threads: int = 1,
        order: Sequence[str] | None = None,
        watchers: Mapping[int, Sequence[Any]] | None = None,
    ) -> None:
        self._interpreter = interpreter_for(content, num_threads, keep_tensors=bool(watchers))
        self._watchers = watchers or {}
        self._places = {each["index"]: each for each in self._interpreter.get_tensor_details()} if watchers else {}
        signatures = list(self._interpreter.get_signature_list())
        if not signatures:
            raise FormatError("the LiteRT file has no signature that names its inputs; convert the model anew with one")
        self._runner = self._interpreter.get_signature_runner(signatures[0])
        self.inputs: list[str] = list(order or self._runner.get_input_details())
        self.outputs: list[str] = sorted(self._runner.get_output_details())
        self._details = self._runner.get_input_details()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Those of the inputs, with -1 for axes whose size is open."""
        return {name: tuple(int(n) for n in each["shape_signature"]) for name, each in self._details.items()}

    def given(self, inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Inputs by name in the types of the file, as it is called with them."""
        return by_name(inputs, self.inputs, self._details, "the batch")

    def __call__(self, inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs for one batch, which may be larger than that of the file: samples are run in as many calls."""
        given = self.given(inputs)
        first = next(iter(self._details.values()))
        size, count = int(first["shape"][0]), len(next(iter(given.values())))
        if size == count or int(first["shape_signature"][0]) == -1:
            return self._run(given)
        if count < size or count % size:
            raise CalibrationError(
                f"the batch has {count} samples, and the file takes {size} at once: give as many, or a multiple of it"
            )
        parts = [
            self._run({name: array[start : start + size] for name, array in given.items()})
            for start in range(0, count, size)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _run(self, given: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        found = dict(self._runner(**given))
        for tensor, watchers in self._watchers.items():
            array = self._in_float(tensor)
            for each in watchers:
                each.update(array)
        return found

    def _in_float(self, tensor: int) -> np.ndarray[Any, Any]:
        array, known = self._interpreter.get_tensor(tensor), self._places[tensor]["quantization_parameters"]
        if array.dtype.kind in "iu" and len(known["scales"]) == 1:
            return np.asarray((array.astype(np.float32) - known["zero_points"][0]) * known["scales"][0], np.float32)
        return np.asarray(array)
