"""A Keras or LiteRT model that can be saved in the forms it is deployed in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.paths import path_of, write_errors
from neural_compressor.tensorflow.adaptor import KerasAdaptor, TensorFlowAdaptor
from neural_compressor.tensorflow.adaptor.base import GraphAdaptor
from neural_compressor.tensorflow.litert.model import write_whole


class Model:
    """A Keras model, quantized or not, or a LiteRT model. Calls and attributes go to it, ``.model``.

    A folder is a SavedModel, which is run as LiteRT runs it.
    """

    def __init__(self, model: Any, adaptor: GraphAdaptor | None = None) -> None:
        found = ready_model(model) if adaptor is None else (adaptor, adaptor.ready(model))
        self.adaptor, self.model = found
        #: The evidence of a tuning run, where there was one.
        self.tuning: Any = None

    def save(self, path: str | Path) -> None:
        """Write the model: as a file for LiteRT where ``path`` ends in ``.tflite``, as one of Keras where it ends in
        ``.keras``, else as a folder with the first and what ``quantization.load`` reads.

        A Keras file of a quantized model holds floats with quantizers in place: simulated, and no smaller.
        """
        target = path_of(path, "save")
        if target.suffix == ".keras":
            if not isinstance(self.adaptor, KerasAdaptor):
                raise ConfigError(
                    f"{target}: a SavedModel has no Keras layers; give a folder or the path of a .tflite file"
                )
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


def ready_model(model: Any, info: Mapping[str, Any] | None = None) -> tuple[GraphAdaptor, Any]:
    """A model with the adaptor for it: that of a :class:`Model` or a file, where one is given."""
    model = model.__dict__["model"] if isinstance(model, Model) else model
    kinds: tuple[type[KerasAdaptor] | type[TensorFlowAdaptor], ...] = (KerasAdaptor, TensorFlowAdaptor)
    for kind in kinds:
        if kind.handles(model):
            adaptor = kind(info)
            return adaptor, adaptor.ready(model)
    expected = "a keras.Model, the path of a .keras or .h5 file, or the folder of a SavedModel"
    if not isinstance(model, str | Path):
        raise ConfigError(f"model is a {type(model).__name__}; expected {expected}")
    path = path_of(model, "model")
    why = ""
    if (path / "quantization.json").is_file():
        why = "; it holds a quantized model, which quantization.load(folder, float_model) reads, or save it as .keras"
    elif path.suffix == ".pb":
        why = "; a frozen graph is not read, write it as a SavedModel (tf.saved_model.save)"
    raise ConfigError(f"{path} is none that can be read, expected {expected}{why}")
