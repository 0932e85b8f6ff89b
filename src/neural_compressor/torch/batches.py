"""Batches of data loaders, split from their labels and fed to PyTorch models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from neural_compressor.adaptor.user_code import batches, calibrating, user_errors
from neural_compressor.errors import CalibrationError
from neural_compressor.observers.input_check import CalibrationInputs


def split_batch(model: torch.nn.Module, batch: Any) -> Any:
    """The inputs of a batch, without the label.

    A mapping or a tensor is all input. A tuple ends with the label unless ``forward`` requires all of it, and a pair whose
    first half is a tuple, list or mapping of all the inputs that ``forward`` takes ends with it in any case.

    >>> model = torch.nn.Bilinear(2, 2, 1)  # its forward requires two
    >>> [len(split_batch(model, batch)) for batch in (("x", "y"), (("x1", "x2"), "label"), ("x1", "x2", "label"))]
    [2, 2, 2]
    >>> split_batch(model, (("x1", "x2"), "label"))
    ('x1', 'x2')
    """
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        return batch
    if len(batch) == _required_inputs(model) and not (len(batch) == 2 and _are_inputs(model, batch[0])):
        return batch
    inputs = batch[:-1]
    return inputs[0] if len(inputs) == 1 else inputs


def feed(model: torch.nn.Module, inputs: Any) -> Any:
    """Call ``model`` with the inputs of one batch."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def feed_each(model: torch.nn.Module, data: Iterable[Any], what: str) -> None:
    """Call ``model`` with each of the batches ``data``, the argument ``what``: tokens, a tuple or a mapping of arguments."""
    if isinstance(data, (torch.Tensor, Mapping, str)):
        raise CalibrationError(f"{what} is a {type(data).__name__}, expected a list of batches, as in {what}=[inputs]")
    for index, batch in enumerate(batches(data)):
        with fitting(f"batch {index} of {what}", batch):
            feed(model, batch)


def on_device_of(model: torch.nn.Module, inputs: Any) -> Any:
    """``inputs`` with their tensors where the model's are; as they are where it has none, or none with values yet."""
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
    if device is None or device.type == "meta":
        return inputs
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), inputs)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists, mappings and objects that hold them as attributes."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dict__") and not isinstance(value, (torch.nn.Module, type)) and not callable(value):
        for item in vars(value).values():
            yield from tensors_in(item)


def layer_input(call: tuple[Any, Any]) -> torch.Tensor:
    """What a layer with one input is given, by place or by name.

    >>> layer_input(((), {"input": torch.ones(2)})).tolist()
    [1.0, 1.0]
    """
    found = next(tensors_in(call))
    return found.dequantize() if found.is_quantized else found


def batch_size(inputs: Any) -> int:
    """Samples in the inputs of a batch: the first dimension of its first tensor."""
    first = next(tensors_in(inputs), None)
    return int(first.shape[0]) if first is not None and first.dim() else 1


def run_batches(
    model: torch.nn.Module, dataloader: Iterable[Any], samples: int, run: Callable[[Any], Any] | None = None
) -> int:
    """Run ``model`` over at least ``samples`` samples (or all there are); returns how many were seen.

    ``run`` takes the inputs of a batch where more than a call of the model is to be done with them.
    """
    seen = 0
    with torch.no_grad():
        for index, batch in enumerate(batches(dataloader)):
            inputs = split_batch(model, batch)
            with fitting(f"batch {index} of the calibration data", inputs):
                feed(model, inputs) if run is None else run(inputs)
            seen += batch_size(inputs)
            if seen >= samples:
                break
    if seen == 0:
        raise CalibrationError(
            "the calibration data is empty: the dataloader yielded no batch, or none with samples; give at least one"
        )
    return seen


class _Enough(BaseException):
    """Ends a user's function whose first call of a model is all that was wanted; no handler of errors is meant for it."""


def first_inputs(model: torch.nn.Module, function: Callable[[torch.nn.Module], Any]) -> Any:
    """What ``function(model)`` feeds to the model first, for :func:`feed`; it is run up to there.

    None where it feeds nothing, or something else than tensors and plain values: a cache of keys and values changes with
    every call.

    >>> first_inputs(torch.nn.Bilinear(2, 2, 1), lambda model: model(torch.ones(3, 2), input2=torch.zeros(3, 2))).keys()
    dict_keys(['input1', 'input2'])
    """
    found: list[Any] = []

    def look(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs: Any = args[0] if len(args) == 1 and isinstance(args[0], torch.Tensor) else args
        if kwargs and not args:
            inputs = kwargs
        elif kwargs:  # only names hold both
            inputs = dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
        if all(type(leaf) in _PLAIN for leaf in tree_leaves(inputs)):
            found.append(tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), inputs))
        raise _Enough

    handle = model.register_forward_pre_hook(look, with_kwargs=True, prepend=True)
    try:
        with suppress(_Enough), torch.no_grad(), calibrating(function, "calib_func", lambda: 0):
            function(model)
    finally:
        handle.remove()
    return found[0] if found else None


_PLAIN = (torch.Tensor, bool, int, float, str, type(None))


class ReadAgain(Iterable[Any]):
    """Batches of an iterator that can be gone over once: those that were read are kept, and given out first."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._rest, self._read = iterator, list[Any]()

    def __iter__(self) -> Iterator[Any]:
        yield from list(self._read)
        for batch in self._rest:
            self._read.append(batch)
            yield batch


def fitting(what: str, inputs: Any) -> AbstractContextManager[None]:
    """Around a run of a model on ``inputs``, which are ``what``: what the model raises is an error about them."""
    return user_errors(
        lambda error: (
            f"{what} does not fit the model: {describe(inputs)}; the model raised {type(error).__name__}: {error}. "
            "A batch is (inputs, label), a tensor, or a dict of keyword arguments"
        )
    )


def note_inputs(
    seen: CalibrationInputs, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Take the inputs of one call of ``model`` into account."""
    names = [p.name for p in inspect.signature(type(model).forward).parameters.values()][1:]
    positional = {names[i] if i < len(names) else str(i): value for i, value in enumerate(args)}
    for name, value in {**positional, **kwargs}.items():
        for tensor in tensors_in(value):
            if tensor.is_floating_point() and not tensor.is_meta:
                seen.note(name, tensor.detach())


def describe(inputs: Any) -> str:
    """Shapes and types of the inputs of a batch, for messages."""
    shapes = [f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in tensors_in(inputs)]
    return f"inputs {', '.join(shapes)}" if shapes else f"inputs of type {type(inputs).__name__} hold no tensor"


def _are_inputs(model: torch.nn.Module, value: Any) -> bool:
    """Whether ``value`` holds, by place or by name, every input that ``forward`` requires and none that it does not take."""
    signature = inspect.signature(model.forward)
    try:
        if isinstance(value, Mapping):
            signature.bind(**value)
        elif isinstance(value, (tuple, list)):
            signature.bind(*value)
        else:
            return False
    except TypeError:
        return False
    return True


def _required_inputs(model: torch.nn.Module) -> int:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)
