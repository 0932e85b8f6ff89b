"""The identity of data and functions by content, so that a journal is gone on with only where they are the same.

======================  ==============================================================================================
array, tensor, table    its bytes; every n-th element where there are very many
list, tuple, dict, set  their elements
dataset                 arrays and lists among its attributes, and items spread over its length
dataloader              its dataset, sampler, ``batch_size`` and ``collate_fn``
other iterable          its first batches; a data reader with ``rewind`` likewise
function                its code and that of the user's functions it calls, defaults, and the closure and globals it reads
method, callable        its class's code, and the attributes of its object
iterator, other object  its type: it can be read once only, or nobody knows what in it matters
======================  ==============================================================================================

What a function itself changes (a counter, a list it appends to) is state and does not count, and data that is not the same
when it is read twice is known by its type and length. Installed packages are known by the names of their functions.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from itertools import islice
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from neural_compressor.adaptor.user_code import name_of
from neural_compressor.tuning.bytecode import (
    changed_attributes,
    changed_variables,
    code_text,
    function_of,
    is_library,
    variables_read,
)
from neural_compressor.tuning.predictions import as_array

_ITEMS = 32
"""Items of a dataset, or batches, that are read."""
_ELEMENTS = 4096
"""Elements of a list that are described."""
_ARRAY = 1 << 24
"""Elements of an array that are read."""
_BYTES = 1 << 30
"""Bytes of arrays that are read in all; of those after it only _ELEMENTS elements."""
_LOOKS = 1 << 18
"""Values that are looked at in all: the items of an array of an unknown library may be such arrays again, without an end."""
_SCALARS = (type(None), bool, int, float, complex, str, bytes, type(...))


def identity(value: Any) -> str:
    """The type of ``value`` and a digest of its content; the state of random generators is left as it was.

    >>> identity([1, 2]) == identity([1, 2]) != identity([1, 3])
    True
    """
    if value is None:
        return "none"
    with _random_state_kept():
        text = _Describer().describe(value, opened=True)
    return f"{name_of(value)}{_length(value)}#{_digest(text)}"


class _Describer:
    """Text that differs where values do. Only what is ``opened`` is asked for the attributes of its object."""

    def __init__(self) -> None:
        self._within: list[Any] = []
        self._code: dict[Any, str] = {}
        self._left = _BYTES
        self._looks = _LOOKS

    def describe(self, value: Any, opened: bool = False) -> str:
        if isinstance(value, _SCALARS):
            return repr(value)
        if any(value is outer for outer in self._within):
            return f"<{name_of(value)} again>"
        self._looks -= 1
        if self._looks < 0:
            return f"<{name_of(type(value))} unread>"
        self._within.append(value)
        try:
            return self._parts(value, opened)
        except Exception as error:  # noqa: BLE001 - what is wrong with data is said where it is used
            return f"<{name_of(type(value))} with {type(error).__name__}>"
        finally:
            self._within.pop()

    def _parts(self, value: Any, opened: bool) -> str:
        if isinstance(value, Enum | PurePath | range | slice | np.dtype | np.generic):
            return repr(value)
        if hasattr(type(value), "known_by"):
            return self._all("known by", value.known_by, opened)
        if _is_array(value):
            return self._array(value)
        if any(hasattr(type(value), name) for name in ("__array__", "__array_interface__")):  # a table, an image
            return self._array(np.asarray(value))
        if isinstance(value, Mapping):
            pairs = islice(value.items(), _ELEMENTS)
            return f"{name_of(value)}{_length(value)}{{{' '.join(self._all('', pair) for pair in pairs)}}}"
        if isinstance(value, set | frozenset):
            return f"{{{' '.join(sorted(self.describe(each) for each in value))}}}"
        if isinstance(value, list | tuple):
            return self._sequence(value)
        if isinstance(value, ModuleType):
            return self._module(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, functools.partial):
            return self._all("partial", (value.func, *value.args, value.keywords), opened)
        if isinstance(value, MethodType):
            return f"{self.describe(value.__func__)} of {self.describe(value.__self__, opened)}"
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(wrapped := getattr(value, "__wrapped__", None), FunctionType):  # by functools.cache
            return self.describe(wrapped)
        if isinstance(value, BuiltinFunctionType):
            return name_of(value)
        return self._object(value, opened)

    def _all(self, word: str, values: Iterable[Any], opened: bool = False) -> str:
        return f"{word}({', '.join(self.describe(value, opened) for value in values)})"

    # -- data ------------------------------------------------------------------------------------------------------

    def _array(self, value: Any) -> str:
        shown = f"{type(value).__qualname__} {getattr(value, 'dtype', '')} {tuple(value.shape)}"
        flat = value.reshape(-1)
        most = _ARRAY if self._left > 0 else _ELEMENTS
        try:
            array = as_array(flat[:: -(-len(flat) // most)] if len(flat) > most else flat)
        except (RuntimeError, TypeError, NotImplementedError):  # a tensor without data, or of a type NumPy lacks
            return shown
        if array.dtype == object:
            return f"{shown} {self._sequence(array.tolist())}"
        self._left -= array.nbytes
        return f"{shown} {hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()}"

    def _sequence(self, value: Any) -> str:
        if all(type(each) in _SCALARS for each in value):
            return f"{type(value).__qualname__} {_digest(repr(list(value)))}"
        return self._all(
            f"{type(value).__qualname__}[{len(value)}]", (value[i] for i in _spread(len(value), _ELEMENTS))
        )

    def _object(self, value: Any, opened: bool) -> str:
        parts = [name_of(value), self._class(type(value))]
        if hasattr(value, "dataset") and hasattr(value, "batch_size"):
            settings = ("batch_size", "drop_last", "collate_fn")
            parts += [self.describe(value.dataset), *(self.describe(getattr(value, name, None)) for name in settings)]
            return " ".join([*parts, self._attributes(getattr(value, "sampler", None), list | tuple)])
        read = _reader(value)
        if opened or read is not None:
            parts.append(self._attributes(value, object if read is None else list | tuple))
        if read is not None:
            parts += [_length(value), self._read(read)]
        return " ".join(parts)

    def _read(self, read: Callable[[int], Iterable[Any]]) -> str:
        items = [self.describe(item, opened=True) for item in read(_ITEMS)]
        again = [self.describe(item, opened=True) for item in read(1)]
        return f"items({', '.join(items)})" if items[:1] == again else "items vary"

    def _attributes(self, value: Any, kinds: Any) -> str:
        """What is in the attributes of an object, without those that its own methods change."""
        state = changed_attributes(type(value))
        found = {name: each for name, each in getattr(value, "__dict__", {}).items() if name not in state}
        shown = {name: each for name, each in found.items() if isinstance(each, kinds) or _is_array(each)}
        return f"{type(value).__qualname__}[{', '.join(f'{n}={self.describe(shown[n])}' for n in sorted(shown))}]"

    # -- code ------------------------------------------------------------------------------------------------------

    def _function(self, value: FunctionType) -> str:
        if value not in self._code:
            self._code[value] = self._function_text(value)
        return self._code[value]

    def _function_text(self, value: FunctionType) -> str:
        code = value.__code__
        if is_library(value.__module__, code.co_filename):
            return name_of(value)
        read, state = variables_read(value), changed_variables(code)
        shown = {name: self.describe(type(each) if name in state else each) for name, each in read.items()}
        known = ", ".join(f"{name}={shown[name]}" for name in sorted(shown))
        defaults = self._all("", (value.__defaults__, value.__kwdefaults__))
        return f"{value.__qualname__} {_digest(f'{code_text(code)} {defaults} {known}')}"

    def _class(self, value: type) -> str:
        if value not in self._code:
            self._code[value] = f"<{name_of(value)} again>"
            self._code[value] = self._class_text(value)
        return self._code[value]

    def _class_text(self, value: type) -> str:
        if is_library(value.__module__, getattr(sys.modules.get(value.__module__), "__file__", None)):
            return name_of(value)
        parts = [self._class(base) for base in value.__bases__ if base is not object]
        for name, each in sorted(vars(value).items()):
            function = function_of(each)
            if isinstance(function, FunctionType):
                parts.append(f"{name}={self.describe(function)}")
            elif type(each) in _SCALARS and not name.startswith("__"):
                parts.append(f"{name}={each!r}")
        return f"class {value.__qualname__} {_digest(', '.join(parts))}"

    def _module(self, value: ModuleType) -> str:
        file = getattr(value, "__file__", None)
        if file is None or is_library(value.__name__, file):
            return value.__name__
        try:
            with open(file, "rb") as source:
                return f"{value.__name__} {hashlib.sha256(source.read()).hexdigest()}"
        except OSError:
            return value.__name__


# -- what data is ------------------------------------------------------------------------------------------------------


def _is_array(value: Any) -> bool:
    kind = type(value)
    return (
        hasattr(kind, "shape") and hasattr(kind, "reshape") and (hasattr(kind, "__array__") or hasattr(kind, "asnumpy"))
    )


def _reader(value: Any) -> Callable[[int], Iterable[Any]] | None:
    """How to read some items of ``value``, from its start each time; None where that is not possible."""
    if hasattr(value, "get_next") and hasattr(value, "rewind"):
        return lambda count: _rewound(value, count)
    if hasattr(value, "__next__"):
        return None
    if hasattr(value, "__getitem__") and (length := _len(value)) is not None:
        return lambda count: (value[i] for i in _spread(length, count))
    if hasattr(value, "__iter__"):
        return lambda count: islice(value, count)
    return None


def _rewound(reader: Any, count: int) -> list[Any]:
    reader.rewind()
    try:
        return list(islice(iter(reader.get_next, None), count))
    finally:
        reader.rewind()


def _len(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # noqa: BLE001 - a loader of unknown length may say so in any way
        return None


def _length(value: Any) -> str:
    length = _len(value)
    return "" if length is None else f"[{length}]"


def _spread(length: int, count: int) -> list[int]:
    """At most ``count`` places of ``length``, the first and the last among them.

    >>> _spread(9, 3), _spread(2, 3)
    ([0, 4, 8], [0, 1])
    """
    if length <= count:
        return list(range(length))
    return [place * (length - 1) // max(count - 1, 1) for place in range(count)]


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Reading a dataset may draw random numbers; the run has to go on as if nobody had."""
    torch: Any = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state()
    drawn = torch.get_rng_state() if torch is not None else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if drawn is not None:
            torch.set_rng_state(drawn)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
