"""Places in the code of functions: where a call stands, and whether a module's code still has something there.

A place is ``function:line:columns``, the line counted from that of the function, so that what stands around it in its file
is nothing to it. A site is the places of a call and of those that led to it, from the innermost to the forward of a module.
Python 3.10 tells no columns: there the offset of the instruction is in their stead.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType

_PLACE = re.compile(r"(?P<function>.+?):(?P<line>-?\d+):(?P<columns>[\w-]+)(?:<|$)")
_PLACES: dict[tuple[int, int], tuple[CodeType, str]] = {}


def place(code: CodeType, instruction: int, line: int) -> str:
    """The place of the instruction at the offset ``instruction``, which is of ``line``."""
    key = (id(code), instruction)
    if key not in _PLACES:
        positions = getattr(code, "co_positions", None)  # Python 3.11 and later
        columns = list(positions())[instruction // 2][2:] if positions is not None else (instruction,)
        _PLACES[key] = code, f"{_name(code)}:{line - code.co_firstlineno}:{'-'.join(map(str, columns))}"
    return _PLACES[key][1]


def is_gone(site: str, owner: type) -> bool:
    """Whether the code that the forward of ``owner`` runs has nothing at ``site``, as far as that can be told.

    Functions are looked for among the methods of ``owner`` and the functions of its package; of others nothing is known.
    """
    for found in _PLACE.finditer(site):
        if ("-" in found["columns"]) != hasattr(CodeType, "co_positions"):
            return True  # of a Python that tells places in another way
        codes = [code for code in _codes(owner) if _name(code) == found["function"]]
        if codes and not any(found.group().removesuffix("<") in _places_of(code) for code in codes):
            return True
    return False


def _name(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)


def _places_of(code: CodeType) -> set[str]:
    spans = ((start, end, line) for start, end, line in code.co_lines() if line is not None)
    return {place(code, at, line) for start, end, line in spans for at in range(start, end, 2)}


def _codes(owner: type) -> Iterator[CodeType]:
    """The code of the methods of a class and of the functions of its package, with that of decorators around them."""
    package = owner.__module__.partition(".")[0]
    modules = [m for name, m in list(sys.modules.items()) if f"{name}.".startswith(f"{package}.")]
    for scope in [*inspect.getmro(owner), *modules]:
        for value in list(vars(scope).values()):
            function = getattr(value, "__func__", value) if isinstance(value, (staticmethod, classmethod)) else value
            while isinstance(function, FunctionType):
                yield function.__code__
                function = vars(function).get("__wrapped__")
