"""A Keras model that can be saved in the forms it is deployed in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.paths import path_of, write_errors
from neural_compressor.tensorflow.adaptor import KerasAdaptor
from neural_compressor.tensorflow.litert.model import write_whole


class Model:
    """A Keras model, quantized or not. Calls and attributes go to the Keras model, ``.model``."""

    def __init__(self, model: Any, adaptor: KerasAdaptor | None = None) -> None:
        model = model.__dict__["model"] if isinstance(model, Model) else model
        if not KerasAdaptor.handles(model):
            raise ConfigError(
                f"got a {type(model).__name__}, expected a keras.Model or the path of a .keras or .h5 file"
            )
        self.adaptor = adaptor if adaptor is not None else KerasAdaptor()
        self.model = self.adaptor.ready(model)
        #: The evidence of a tuning run, where there was one.
        self.tuning: Any = None

    def save(self, path: str | Path) -> None:
        """Write the model: as a file for LiteRT where ``path`` ends in ``.tflite``, as one of Keras where it ends in
        ``.keras``, else as a folder with the first and what ``quantization.load`` reads.

        A Keras file of a quantized model holds floats with quantizers in place: simulated, and no smaller.
        """
        target = path_of(path, "save")
        if target.suffix == ".keras":
            with write_errors(target):
                self.model.save(target)
        elif target.suffix == ".tflite":
            write_whole(target, self.adaptor.deployed(self.model))
        else:
            self.adaptor.save(self.model, target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)

    def __repr__(self) -> str:
        return f"Model({self.adaptor.describe(self.model)})"
