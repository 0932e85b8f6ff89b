"""Data loaders and calibration functions as calibration data: batches become inputs by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.adaptor.user_code import batches, calibrating
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader, Samples
from neural_compressor.registry import close_matches


@dataclass(frozen=True)
class ModelInputs:
    """The inputs a model takes, in their order, with the data type of each where it is known."""

    dtypes: Mapping[str, np.dtype[Any] | None]

    @classmethod
    def of(cls, model: ir.Model) -> ModelInputs:
        """The inputs of ``model`` that are no weights."""
        given = [value for value in model.graph.inputs if not value.is_initializer()]
        return cls({str(v.name): None if v.dtype is None else v.dtype.numpy() for v in given})

    def split(self, batch: Any) -> Any:
        """The inputs of a batch, without the label.

        A mapping or an array is all input. A tuple ends with the label unless the model takes all of it: arrays only.
        """
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            return batch
        if len(batch) == len(self.dtypes) and not isinstance(batch[0], Mapping | tuple | list):
            return batch
        return batch[0] if len(batch) == 2 else batch[:-1]

    def feed(self, inputs: Any) -> dict[str, np.ndarray]:
        """Arrays by name: from a mapping, or in the order of the model's inputs."""
        names = list(self.dtypes)
        if not isinstance(inputs, Mapping):
            parts = inputs if isinstance(inputs, tuple | list) and len(inputs) == len(names) else [inputs]
            if len(parts) != len(names):
                got = f"{len(inputs)} inputs" if isinstance(inputs, tuple | list) else "one input"
                raise ConfigError(f"got {got}, and the model takes {len(names)}: {', '.join(names)}")
            inputs = dict(zip(names, parts, strict=True))
        for name in inputs:
            if name not in self.dtypes:
                raise ConfigError(f"the model has no input {name!r}; {close_matches(str(name), names)}")
        missing = [name for name in names if name not in inputs]
        if missing:
            raise ConfigError(f"the inputs {', '.join(missing)} are missing; the model takes {', '.join(names)}")
        return {name: _array(name, inputs[name], self.dtypes[name]) for name in names}


def batch_size(feed: Mapping[str, np.ndarray]) -> int:
    """Samples in the inputs of a batch: the first dimension of the first that has one."""
    return next((array.shape[0] for array in feed.values() if array.ndim), 1)


class LoaderReader(CalibrationDataReader):
    """The batches of a data loader, or of another reader, up to at least ``limit`` samples; as often as it is rewound."""

    def __init__(self, dataloader: Iterable[Any], inputs: ModelInputs, limit: int) -> None:
        self.batches = Samples(dataloader) if hasattr(dataloader, "get_next") else dataloader
        self.inputs, self.limit = inputs, limit
        self._iterator = self._feeds()

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self._iterator, None)

    def rewind(self) -> None:
        self._iterator = self._feeds()

    def _feeds(self) -> Iterator[Mapping[str, Any]]:
        seen = 0
        for index, batch in enumerate(batches(self.batches)):
            try:
                feed = self.inputs.feed(self.inputs.split(batch))
            except ConfigError as error:
                raise CalibrationError(
                    f"batch {index} of the calibration data does not fit the model: {error}. A batch is (inputs, label), "
                    "an array, or a dict of inputs by name"
                ) from error
            yield feed
            seen += batch_size(feed)
            if seen >= self.limit:
                return
        if not seen:
            raise CalibrationError("the calibration data is empty: the dataloader yielded no batch; give at least one")


def _array(name: str, value: Any, kind: np.dtype[Any] | None) -> np.ndarray:
    """``value`` as an array, in the width the model takes where only that differs."""
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except ValueError as error:
        raise ConfigError(f"input {name!r} is a {type(value).__name__} that is no array: {error}") from error
    return array if kind is None or array.dtype.kind != kind.kind else array.astype(kind, copy=False)


class Recorder:
    """The float model as a calibration function gets it, which remembers what it was fed.

    Call it with the inputs of a batch, in their order or by name; attributes are those of the ``onnx.ModelProto``.

    A session made of it elsewhere runs unseen.
    """

    def __init__(self, model: Any, inputs: ModelInputs, predict: Callable[[Any, Any], Any]) -> None:
        self.model = model
        self.fed: list[Mapping[str, np.ndarray]] = []
        self._inputs, self._predict = inputs, predict

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        given = named or (inputs[0] if len(inputs) == 1 else inputs)
        feed = self._inputs.feed(given)
        self.fed.append(feed)
        return self._predict(self.model, feed)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)


class RecordedReader(CalibrationDataReader):
    """What ``calib_func`` feeds to the model it is given; it runs when data is first asked for, and once."""

    def __init__(
        self, calib_func: Callable[[Any], Any], model: Any, inputs: ModelInputs, predict: Callable[[Any, Any], Any]
    ) -> None:
        self._calib_func, self._recorder = calib_func, Recorder(model, inputs, predict)
        self._rest: Iterator[Mapping[str, Any]] | None = None

    def get_next(self) -> Mapping[str, Any] | None:
        if self._rest is None:
            self._run()
            self.rewind()
        assert self._rest is not None
        return next(self._rest, None)

    def rewind(self) -> None:
        if self._recorder.fed:  # before that there is nothing to begin anew
            self._rest = iter(self._recorder.fed)

    def _run(self) -> None:
        with calibrating(self._calib_func, "calib_func", lambda: len(self._recorder.fed)):
            self._calib_func(self._recorder)
        if not self._recorder.fed:
            raise CalibrationError(
                "calib_func fed nothing to the model: call the model it is given, as in model(x) or model(**inputs); a "
                "session it makes itself is not seen. Or pass a calib_dataloader"
            )
