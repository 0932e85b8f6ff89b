"""Functions and data loaders of a user: what they raise becomes an error that names them and the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from neural_compressor.errors import CalibrationError, NeuralCompressorError


def name_of(function: Any) -> str:
    """The name by which a user knows a function (where one is wrapped, the one inside), or the class of an object.

    >>> name_of(print)
    'builtins.print'
    """
    while callable(inside := getattr(function, "func", None)):
        function = inside
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', '?')}.{named.__qualname__}"


def batches(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of ``loader``; an exception of its own is a :class:`CalibrationError`.

    >>> list(batches([1, 2]))
    [1, 2]
    """
    what, shown = "the calibration data", name_of(loader)
    try:
        iterator = iter(loader)
    except TypeError as error:
        raise CalibrationError(f"{what} ({shown}) is not iterable; give a list of batches or a dataloader") from error
    except Exception as error:
        raise _raised(f"{what} ({shown})", "before its first batch", error) from error
    index = 0
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except NeuralCompressorError:
            raise
        except Exception as error:
            raise _raised(f"{what} ({shown})", f"at batch {index}", error) from error
        yield batch
        index += 1


@contextmanager
def calibrating(function: Callable[..., Any], what: str, calls: Callable[[], int]) -> Iterator[None]:
    """Around a call of ``function``, the argument ``what``; ``calls`` tells how often it has run the model so far."""
    try:
        yield
    except NeuralCompressorError:
        raise
    except Exception as error:
        raise _raised(f"{what} ({name_of(function)})", f"at batch {max(calls() - 1, 0)}", error) from error


def _raised(who: str, when: str, error: Exception) -> CalibrationError:
    return CalibrationError(f"{who} raised {type(error).__name__} {when}: {error}")
