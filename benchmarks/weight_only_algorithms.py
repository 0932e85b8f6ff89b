"""Our weight-only algorithms by the names that benchmarks give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weight_scheme import WeightScheme

ALGORITHMS = (
    "rtn",
    "rtn-even",
    "rtn-search",
    "rtn-folded",
    "hqq",
    "awq",
    "awq-bf16",
    "teq",
    "gptq-published",
    "gptq",
    "gptq-bf16",
    "gptq-folded",
    "gptq-folded-down",
    "gptq-rotated",
    "gptq-rotated-even",
    "autoround",
)


def does(algorithm: str, scheme: WeightScheme) -> bool:
    """Whether an algorithm quantizes to the scheme."""
    integer = scheme.bits is not None
    signed = integer and scheme.symmetric
    needed = {"hqq": integer and not scheme.symmetric, "rtn-even": signed, "gptq-rotated-even": signed}
    return needed.get(algorithm, True)


def config_for(algorithm: str, scheme: WeightScheme, options: Mapping[str, Any]) -> Any:
    """The configuration of an algorithm; ``options`` are further fields of it."""
    from neural_compressor.torch.quantization import (
        AutoRoundConfig,
        AWQConfig,
        GPTQConfig,
        HQQConfig,
        RTNConfig,
        TEQConfig,
    )

    group: dict[str, Any] = {"group_size": scheme.group_size or -1}
    kind = {"dtype": scheme.dtype} if scheme.bits is None else {"bits": scheme.bits, "use_sym": scheme.symmetric}
    fields = {**group, **kind}
    turned: dict[str, Any] = {**fields, "percdamp": 0.05}
    makers: dict[str, Callable[[], Any]] = {
        "rtn": lambda: RTNConfig(**fields),
        "rtn-even": lambda: RTNConfig(**fields, use_full_range=False),
        "rtn-search": lambda: RTNConfig(**fields, use_mse_search=True),
        "rtn-folded": lambda: RTNConfig(**fields, hadamard="folded"),
        "hqq": lambda: HQQConfig(**group, bits=scheme.bits),
        "awq": lambda: AWQConfig(**fields),
        "awq-bf16": lambda: AWQConfig(**fields, amp=True),
        "teq": lambda: TEQConfig(**fields),
        "gptq-published": lambda: GPTQConfig(**fields, correct_upstream=False, scale_search="none"),
        "gptq": lambda: GPTQConfig(**fields),
        "gptq-bf16": lambda: GPTQConfig(**fields, amp=True),
        "gptq-folded": lambda: GPTQConfig(**turned, hadamard="folded"),
        "gptq-folded-down": lambda: GPTQConfig(**turned, hadamard="folded").set_local(
            r".*\.down_proj", GPTQConfig(**turned, hadamard=True)
        ),
        "gptq-rotated": lambda: GPTQConfig(**turned, hadamard=True),
        "gptq-rotated-even": lambda: GPTQConfig(**turned, hadamard=True, use_full_range=False),
        "autoround": lambda: AutoRoundConfig(**fields, **options),
    }
    return makers[algorithm]()
