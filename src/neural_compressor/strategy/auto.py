"""The auto strategy: the default plan, then the conservative strategy, then the basic one."""

from __future__ import annotations

from neural_compressor.strategy.base import STRATEGIES
from neural_compressor.strategy.basic import basic_steps
from neural_compressor.strategy.conservative import conservative_steps
from neural_compressor.strategy.search import SearchStrategy, Step, Steps


@STRATEGIES.register("auto")
class AutoStrategy(SearchStrategy):
    """Everything quantized by default; if that loses too much, op types one after another; then the basic strategy. All
    three share what was tried."""

    def steps(self) -> Steps:
        """The three parts, over one search."""
        yield Step(self.search.candidates.default(), "default")
        yield from conservative_steps(self.search)
        yield from basic_steps(self.search)
