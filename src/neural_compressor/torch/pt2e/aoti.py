"""A quantized graph compiled ahead of time: an AOTInductor package, which runs without Python code of the model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.paths import path_of
from neural_compressor.torch.pt2e.exported import Exported, InputTensor, exported_of, without_warnings

SUFFIX = ".pt2"
_KEY = "neural_compressor.exported"


def write_package(model: GraphModule, path: str | Path) -> None:
    """Compile a quantized graph for this machine into the file ``path``, or ``model.pt2`` in the folder of that name."""
    exported = exported_of(model)
    if exported is None or not hasattr(model, "quantization"):
        raise FormatError("format 'aoti' is for exported models: convert(prepare(export(model, inputs), config))")
    if exported.constants or len(exported.tensors) != exported.positional + len(exported.keywords):
        raise FormatError("format 'aoti' takes models whose inputs are tensors, one an argument")
    file = _file(path_of(path, "save"))
    file.parent.mkdir(parents=True, exist_ok=True)
    fixed = {(each.name, each.dimension) for each in exported.fixed}
    tensors = [_example(each, fixed) for each in exported.tensors]
    args, named = tuple(tensors[: exported.positional]), tensors[exported.positional :]
    shapes = [
        {at: torch.export.Dim.AUTO for at in range(len(each.shape)) if (each.name, at) not in fixed}
        for each in exported.tensors
    ]
    kwargs = dict(zip(exported.keywords, named, strict=True))
    settings = {"freezing": True, "aot_inductor.metadata": {_KEY: json.dumps(asdict(exported))}}
    with torch.no_grad(), without_warnings():
        program = torch.export.export(
            _Plain(model), (args, kwargs), dynamic_shapes=_nested(shapes, exported.positional, exported.keywords)
        )
        torch._inductor.aoti_compile_and_package(program, package_path=str(file), inductor_configs=settings)


def load_package(path: str | Path) -> Any:
    """A package to be called as the model was. It is machine code: load only what you trust."""
    file = _file(path_of(path, "load"))
    if not file.is_file():
        raise FormatError(f"{file} does not exist; save(model, path, format='aoti') writes it")
    package = torch._inductor.aoti_load_package(str(file))
    exported = _read(package.get_metadata().get(_KEY), file)

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = exported.arranged(args, kwargs)
        _check(exported, args, kwargs)
        with torch.no_grad():
            return package(*pytree.tree_map(torch.Tensor.contiguous, (args, kwargs)))

    return run


def _read(said: str | None, file: Path) -> Exported:
    """What the metadata of a package says of its inputs."""
    if said is None:
        raise FormatError(
            f"{file} has nothing under {_KEY!r} in its metadata, which says what its inputs are: it was written by an "
            "earlier release, or not by save(model, path, format='aoti'); save the quantized model again"
        )
    try:
        return Exported.from_dict(json.loads(said))
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{file}: {_KEY!r} in its metadata is not what save(format='aoti') writes ({type(error).__name__}: {error}): "
            f"{said[:80]!r}; save the quantized model again"
        ) from error


def _check(exported: Exported, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse what the code was not made for: it takes memory for tensors like those of the export, and looks at nothing."""
    given = [*args, *kwargs.values()]
    for known, tensor in zip(exported.tensors, given, strict=False):
        if not isinstance(tensor, torch.Tensor) or str(tensor.dtype) != f"torch.{known.dtype}":
            what = tensor.dtype if isinstance(tensor, torch.Tensor) else f"of type {type(tensor).__name__}"
            raise ConfigError(f"input {known.name!r} is {what}; the package was compiled for torch.{known.dtype}")
    exported.check(args, kwargs)


class _Plain(torch.nn.Module):
    """The graph with all arguments in two, so that a package is called in one way."""

    def __init__(self, model: GraphModule) -> None:
        super().__init__()
        self.model = model

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.model(*args, **kwargs)


def _nested(shapes: list[Any], positional: int, keywords: tuple[str, ...]) -> Any:
    return tuple(shapes[:positional]), dict(zip(keywords, shapes[positional:], strict=True))


def _example(known: InputTensor, fixed: set[tuple[str, int]]) -> torch.Tensor:
    """A tensor like the one of the export; a size that may vary is at least 2, as 1 is taken for a constant."""
    shape = [size if (known.name, at) in fixed else max(size, 2) for at, size in enumerate(known.shape)]
    return torch.zeros(shape, dtype=getattr(torch, known.dtype))


def _file(path: Path) -> Path:
    return path if path.suffix == SUFFIX else path / f"model{SUFFIX}"
