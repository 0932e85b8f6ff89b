"""Data sets and loaders as settings by name, as programs of the 2.x API make them; see :mod:`neural_compressor.data`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neural_compressor.data import DATALOADERS, TRANSFORMS, ComposeTransform, DataLoader, Datasets
from neural_compressor.errors import ConfigError

__all__ = ["create_dataloader", "create_dataset"]


def create_dataset(framework: str, data_source: Any, cfg_preprocess: Any = None, cfg_filter: Any = None) -> Any:
    """The data set that ``data_source``, ``{name: options}``, asks for, with transforms by name before each sample.

    >>> sample, label = create_dataset("pytorch", {"dummy": {"shape": (2, 8, 8, 3)}}, {"Transpose": {"perm": (2, 0, 1)}})[0]
    >>> sample.shape
    (3, 8, 8)
    """
    if not isinstance(data_source, Mapping) or len(data_source) != 1:
        raise ConfigError(
            f"dataset: got {data_source!r}, expected one by name with its options, as in {{'dummy': {{...}}}}"
        )
    ((name, options),) = data_source.items()
    known = TRANSFORMS(framework, "preprocess")
    steps = [known[each](**(fields or {})) for each, fields in (cfg_preprocess or {}).items()]
    transform = {"transform": ComposeTransform(steps)} if steps else {}
    return Datasets(framework)[name](**(options or {}), **transform, filter=cfg_filter)


def create_dataloader(framework: str, dataloader_cfg: Mapping[str, Any]) -> DataLoader:
    """The loader that ``{"batch_size": ..., "dataset": {...}, "transform": {...}, "filter": None}`` asks for.

    >>> len(create_dataloader("onnxruntime", {"batch_size": 2, "dataset": {"dummy": {"shape": (3, 4)}}}))
    2
    """
    if not isinstance(dataloader_cfg, Mapping):
        raise ConfigError(f"create_dataloader: got a {type(dataloader_cfg).__name__}, expected a dict with 'dataset'")
    fields = dict(dataloader_cfg)
    parts = [fields.pop(name, None) for name in ("dataset", "transform", "filter")]
    return DATALOADERS[framework](create_dataset(framework, *parts), **fields)
