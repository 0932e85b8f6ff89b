"""The conservative strategy: quantize one op type after another for as long as the promise holds."""

from __future__ import annotations

from neural_compressor.strategy.base import STRATEGIES
from neural_compressor.strategy.search import Search, SearchStrategy, Step, Steps

FAMILIES = (("conv",), ("matmul", "gemm"), ("bmm", "batchmatmul", "batch_matmul"), ("linear", "dense"))
"""Op types in the order in which quantizing them usually pays, by what their name contains."""


def conservative_steps(search: Search) -> Steps:
    """From float on, each op type is quantized and stays so if the promise holds; steps build on each other."""
    grid = search.grid
    kept, default = grid.all_float(), grid.default()
    types = grid.by_type()
    for kind in sorted(types, key=family):
        tried = kept.with_choices({position: default.choices[position] for position in types[kind]})
        outcome = yield Step(tried, f"conservative: {kind} quantized", last=False)
        if outcome.passed:
            kept = tried


def family(op_type: str) -> int:
    """The place of an op type in the order of quantization.

    >>> sorted(["Linear", "Add", "BatchMatMul", "MatMul", "Conv2d"], key=family)
    ['Conv2d', 'MatMul', 'BatchMatMul', 'Linear', 'Add']
    """
    name = op_type.lower()
    found = [place for place, words in enumerate(FAMILIES) if any(word in name for word in words)]
    # a batched matmul has both names; the later family is the closer one
    return found[-1] if found else len(FAMILIES)


@STRATEGIES.register("conservative")
class ConservativeStrategy(SearchStrategy):
    """Start in float; turn op types to their quantized default one after another (convolutions, matrix products,
    batched ones, linear layers, the rest) and keep each while the promise holds. The last plan that passes is the
    result.
    """

    def steps(self) -> Steps:
        """One step an op type."""
        return conservative_steps(self.search)
