"""A configuration for each algorithm, and sets to tune over.

``BaseConfig`` is the base of the configurations of one algorithm, ``ComposableConfig`` a sum of several.
"""

from __future__ import annotations

from typing import Any

from neural_compressor.common.base_config import BaseConfig, ComposableConfig, config_registry, register_config
from neural_compressor.onnx.quantization import config as _config
from neural_compressor.onnx.quantization.config import *  # noqa: F403
from neural_compressor.onnx.quantization.config import get_all_config_set

__all__ = ["BaseConfig", "ComposableConfig", "ExtraOptions", "config_registry", "get_all_config_set", "register_config"]
__all__ += _config.__all__


class ExtraOptions(dict[str, Any]):
    """``extra_options`` of :class:`StaticQuantConfig`, by keyword; that class checks them.

    >>> StaticQuantConfig(extra_options=ExtraOptions(ActivationSymmetric=True)).extra_options
    {'ActivationSymmetric': True}
    """
