"""The basic strategy: quantized options first, then back to float op by op."""

from __future__ import annotations

from neural_compressor.strategy.base import STRATEGIES
from neural_compressor.strategy.fallback import fallback_steps
from neural_compressor.strategy.search import Search, SearchStrategy, Steps
from neural_compressor.strategy.variations import variation_steps


def basic_steps(search: Search) -> Steps:
    """Quantized options, the default first; then fall-back from the best of them."""
    yield from variation_steps(search)
    yield from fallback_steps(search)


@STRATEGIES.register("basic")
class BasicStrategy(SearchStrategy):
    """Options that are varied together for all ops, then for one op type at a time; static ranges before dynamic ones;
    calibration sizes and recipes; then, in bf16, fp16 and fp32 as admitted, fall-back of blocks, of single ops, and of
    the ops that helped most, one more at each step."""

    def steps(self) -> Steps:
        """Quantized options, then fall-back."""
        return basic_steps(self.search)
