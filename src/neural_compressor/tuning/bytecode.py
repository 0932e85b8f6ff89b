"""Variables and attributes that functions read and change, found in their bytecode."""

from __future__ import annotations

import dis
import functools
import sysconfig
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

_MUTATING = frozenset(
    {"add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
)
_VARIABLES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_GLOBAL", "STORE_DEREF", "LOAD_DEREF"})
_ATTRIBUTES = frozenset({"STORE_ATTR", "DELETE_ATTR", "LOAD_ATTR"})
_OWN = ("neural_compressor", "onnx_neural_compressor")
_LIBRARY_FOLDERS = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))


def is_library(module: str | None, file: str | None) -> bool:
    """Whether what is defined in ``module`` belongs to Python, to this package or to an installed one."""
    if (module or "").partition(".")[0] in _OWN or module == "builtins":
        return True
    path = file or ""
    return "site-packages" in path or "dist-packages" in path or path.startswith(("<frozen", *_LIBRARY_FOLDERS))


def variables_read(function: FunctionType) -> dict[str, Any]:
    """The variables of its closure and the globals that ``function``, and what is defined in it, may read."""
    code = function.__code__
    steps = (step for part in _codes(code) for step in dis.get_instructions(part))
    names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # still empty: its function is being defined
            continue
    return found


def changed_variables(code: CodeType) -> frozenset[str]:
    """Globals and variables of the closure that ``code`` assigns, or calls a method of that changes them."""
    return _changed(code)[0]


def changed_attributes(kind: type) -> set[str]:
    """Attributes that methods of ``kind`` change after ``__init__``."""
    methods = (each for base in kind.__mro__ for name, each in vars(base).items() if name != "__init__")
    found = (function for each in methods if isinstance(function := function_of(each), FunctionType))
    return {name for function in found for name in _changed(function.__code__)[1]}


def function_of(attribute: Any) -> Any:
    """The function behind an entry of a class: a method of any kind, or a property."""
    if isinstance(attribute, staticmethod | classmethod):
        return attribute.__func__
    return attribute.fget if isinstance(attribute, property) else attribute


def code_text(code: CodeType) -> str:
    """What ``code`` does, without where it stands: the same in each process of one Python version."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(code_text(constant))
        else:
            constants.append(repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant))
    return f"{code.co_code.hex()} {code.co_names} {constants}"


@functools.lru_cache(maxsize=1024)
def _changed(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Variables and attributes that outlive the call and that ``code`` changes."""
    variables, attributes = set(), set()
    for part in _codes(code):
        steps = [each for each in dis.get_instructions(part) if each.opname not in ("CACHE", "PRECALL", "PUSH_NULL")]
        for place, step in enumerate(steps):
            changed = step
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval in _MUTATING and place:
                changed = steps[place - 1]
            elif step.opname == "STORE_SUBSCR" and place > 1:  # container, key, store
                changed = steps[place - 2]
            elif not step.opname.startswith(("STORE_", "DELETE_")):
                continue
            if changed.opname in _ATTRIBUTES:
                attributes.add(changed.argval)
            elif changed.opname in _VARIABLES and changed.argval not in part.co_cellvars:
                variables.add(changed.argval)
    return frozenset(variables), frozenset(attributes)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """``code`` and that of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
