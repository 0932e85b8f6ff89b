"""A model of any framework behind one interface: run it, save it, reach what is inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neural_compressor.adaptor.contract import ADAPTORS, Adaptor, adaptor_for
from neural_compressor.config.exporting import Torch2ONNXConfig
from neural_compressor.config.process_options import options
from neural_compressor.errors import ConfigError
from neural_compressor.paths import path_of


class Model:
    """A model with the adaptor of its framework. Calls and attributes go to the framework's model, ``.model``.

    >>> Model("mobilenet.onnx").framework()
    'onnxrt'
    """

    def __init__(self, root: Any, adaptor: Adaptor | None = None) -> None:
        self.model = root
        self.adaptor = adaptor if adaptor is not None else adaptor_for(root)()

    def framework(self) -> str:
        """The name under which the adaptor is registered."""
        return next(name for name in ADAPTORS if ADAPTORS[name] is type(self.adaptor))

    def save(self, path: str | Path | None = None) -> None:
        """Write the model into the folder ``path``; :func:`neural_compressor.quantization.load` reads it.

        Without one it is ``saved_model`` in the workspace.
        """
        self.adaptor.save(self.model, options.folder() / "saved_model" if path is None else path)

    @property
    def _model(self) -> Any:
        """The framework's model, as :attr:`model`."""
        return self.model

    def nodes(self) -> list[Any]:
        """What the model runs, each with ``name`` and ``op_type``: the nodes of an ONNX model, the modules of PyTorch."""
        return self.adaptor.nodes(self.model)

    def export(self, save_path: str | Path, conf: Any) -> None:
        """Write a PyTorch model as the ONNX file ``save_path``, as ``conf``, a ``Torch2ONNXConfig``, says."""
        if not isinstance(conf, Torch2ONNXConfig):
            raise ConfigError(f"export: conf is a {type(conf).__name__}; expected a Torch2ONNXConfig")
        path = path_of(save_path, "save_path")
        if path.suffix.lower() != ".onnx":
            raise ConfigError(f"save_path: got {str(path)!r}, expected the path of a file that ends in .onnx")
        found = self.adaptor.export(self.model, conf)
        adaptor_for(found)().save(found, path)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if callable(self.model):
            return self.model(*args, **kwargs)
        return self.adaptor.predict(self.model, kwargs or (args[0] if len(args) == 1 else args))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)


def unwrapped(model: Any) -> Any:
    """The framework's model, of a :class:`Model` too."""
    return model.model if isinstance(model, Model) else model
