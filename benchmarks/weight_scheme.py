"""How weights are quantized, by a short name as ``int4-g64-sym``, ``int3-channel-asym`` or ``nf4-g64``."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

_NAME = re.compile(r"(?:int(\d)-(g\d+|channel)-(sym|asym)|(\w+)-(g\d+|channel))")


@dataclass(frozen=True)
class WeightScheme:
    """``bits`` is None for a type that is no integer; ``group_size`` is None where a row shares one scale."""

    dtype: str
    bits: int | None
    group_size: int | None
    symmetric: bool

    @classmethod
    def parse(cls, name: str) -> WeightScheme:
        """The scheme of a name."""
        found = _NAME.fullmatch(name)
        if found is None:
            sys.exit(f"{name!r} is no scheme; write int4-g64-sym, int3-channel-asym or nf4-g64")
        bits, int_group, symmetry, dtype, group = found.groups()
        size = int_group or group
        group_size = None if size == "channel" else int(size[1:])
        if bits is None:
            return cls(dtype, None, group_size, True)
        return cls("int", int(bits), group_size, symmetry == "sym")
