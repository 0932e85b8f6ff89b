"""What a calibration function feeds to the model, as calibration data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.runtime.batches import ModelInputs
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader


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
