"""A cache of transformers that holds keys and values in 8 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.errors import MissingDependencyError, QuantizationError
from neural_compressor.formats.kv_cache import KV_SCHEME
from neural_compressor.torch.modules.kernels.fp8 import InputRule, codes_of
from neural_compressor.torch.modules.kv_cache import cached_attentions, kv_scales_of

_RULE = InputRule.of(KV_SCHEME)


def fp8_cache(model: nn.Module) -> Any:
    """An empty cache for ``model.generate(..., past_key_values=fp8_cache(model))``, for a model with scales of its cache.

    ``FP8Config(kv_cache=True)`` finds these in calibration, and checkpoints of others bring them. Keys and values take half
    of the memory of bfloat16; they are dequantized for each attention.
    """
    try:
        from transformers import cache_utils
    except ImportError as error:
        raise MissingDependencyError(
            "a cache in fp8 is one of transformers: pip install 'transformers>=4.54'"
        ) from error
    scales = kv_scales_of(model)
    if not scales:
        raise QuantizationError(
            "the model has no scales for keys and values: quantize it with FP8Config(kv_cache=True)"
        )

    library: Any = cache_utils

    class Fp8Layer(library.DynamicLayer):  # type: ignore[misc]
        """Keys and values of one attention as bytes."""

        def __init__(self, k_scale: Tensor, v_scale: Tensor) -> None:
            super().__init__()
            self._scales = (k_scale, v_scale)

        def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
            self.dtype, self.device = key_states.dtype, key_states.device
            # No codes yet, in the shape of those to come: (batch, heads, 0, size).
            self.keys, self.values = (t[..., :0, :].to(torch.uint8) for t in (key_states, value_states))
            self.is_initialized = True

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            held, new = (self.keys, self.values), (key_states, value_states)
            added = [codes_of(x.float(), s, _RULE).view(torch.uint8) for x, s in zip(new, self._scales, strict=True)]
            codes = [torch.cat(both, dim=-2) for both in zip(held, added, strict=True)]
            self.keys, self.values = codes
            back = [(c.view(_RULE.dtype).float() * s).to(self.dtype) for c, s in zip(codes, self._scales, strict=True)]
            return back[0], back[1]

    # An attention looks for its layer by number; one that a checkpoint has no scales for keeps its floats.
    places = {name: int(module.layer_idx) for name, module in cached_attentions(model).items()}  # type: ignore[arg-type]
    layers = [library.DynamicLayer() for _ in range(1 + max(places.values()))]
    for name, each in scales.items():
        layers[places[name]] = Fp8Layer(each.keys, each.values)
    return library.Cache(layers=layers)
