"""Functions and data loaders of a user: what they raise becomes an error that names them and the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from neural_compressor.errors import CalibrationError, ConfigError, NeuralCompressorError


def name_of(function: Any) -> str:
    """The name by which a user knows a function (where one is wrapped, the one inside), or the class of an object.

    >>> name_of(print)
    'builtins.print'
    """
    while callable(inside := getattr(function, "func", None)):
        function = inside
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', '?')}.{named.__qualname__}"


def require_function(given: Any, name: str, optional: bool = True) -> None:
    """Refuse what is ``given`` as the argument ``name`` and cannot be called; None is nothing given.

    >>> require_function(3, "eval_func")
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: eval_func is a int; it must be a function that takes the model
    """
    if not callable(given) and not (optional and given is None):
        raise ConfigError(f"{name} is a {type(given).__name__}; it must be a function that takes the model")


def batches(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of ``loader``; an exception of its own is a :class:`CalibrationError`.

    >>> list(batches([1, 2]))
    [1, 2]
    """
    who = f"the calibration data ({name_of(loader)})"
    try:
        with user_errors(lambda error: _raised(who, "before its first batch", error), TypeError):
            iterator = iter(loader)
    except TypeError as error:
        raise CalibrationError(f"{who} is not iterable; give a list of batches or a dataloader") from error
    done, index = object(), 0
    while (batch := _batch(iterator, who, index, done)) is not done:
        yield batch
        index += 1


def _batch(iterator: Iterator[Any], who: str, index: int, done: object) -> Any:
    with user_errors(lambda error: _raised(who, f"at batch {index}", error)):
        return next(iterator, done)


def calibrating(function: Callable[..., Any], what: str, calls: Callable[[], int]) -> AbstractContextManager[None]:
    """Around a call of ``function``, the argument ``what``; ``calls`` tells how often it has run the model so far."""
    who = f"{what} ({name_of(function)})"
    return user_errors(lambda error: _raised(who, f"at batch {max(calls() - 1, 0)}", error))


@contextmanager
def user_errors(message: Callable[[Exception], str], *passing: type[Exception]) -> Iterator[None]:
    """Around a call of a user's code: what it raises is a :class:`CalibrationError` with ``message(error)``, so that nobody
    looks for the fault elsewhere. Errors of this package, and those of the types ``passing``, stay as they are."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (NeuralCompressorError, *passing)):
            raise
        raise CalibrationError(message(error)) from error


def _raised(who: str, when: str, error: Exception) -> str:
    return f"{who} raised {type(error).__name__} {when}: {error}"
