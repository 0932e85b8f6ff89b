"""A Keras model as one flat functional graph of layers and ``keras.ops``, whatever it was built as.

Nested models, composite layers (``MultiHeadAttention``) and subclassed models are called with symbolic tensors, so that the
layers and operations inside them show; what cannot be called so is kept whole, or refused where it is the model itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
from keras import tree

from neural_compressor.errors import ConfigError

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Makes the outputs of a node of one graph in another: ``call(node, args, kwargs)``, with arguments of the new one."""

_WHOLE = (
    "RNN",
    "LSTM",
    "GRU",
    "SimpleRNN",
    "Bidirectional",
    "TimeDistributed",
    "ConvLSTM1D",
    "ConvLSTM2D",
    "ConvLSTM3D",
)
"""Layers with layers inside that run in a loop: they are ops of their own."""


def trace(model: Any) -> Any:
    """``model`` as a flat functional model; it shares its layers with ``model``."""
    try:
        inputs, structure = _inputs_of(model)
        outputs = _expanded(model, structure)
    except _NotTraceableError as error:
        raise ConfigError(
            f"the model {model.name!r} ({type(model).__name__}) has no graph that could be quantized: {error}. Write its "
            "call() with Keras layers and keras.ops alone (keras.ops.relu in place of tf.nn.relu), or save it with "
            "model.export(folder) and quantize the SavedModel"
        ) from error
    with _full_names(model):  # layers in different models may have one name, and those of one graph may not
        return keras.Model(inputs, outputs, name=model.name)


@contextmanager
def _full_names(model: Any) -> Iterator[None]:
    named = names_of(model)
    layers = [layer for layer in model._flatten_layers(include_self=False) if id(layer) in named]
    before = [layer.name for layer in layers]
    try:
        for layer in layers:
            layer.name = named[id(layer)]
        yield
    finally:
        for layer, name in zip(layers, before, strict=True):
            layer.name = name


class _NotTraceableError(Exception):
    pass


def _inputs_of(model: Any) -> tuple[Any, Any]:
    """Fresh symbolic inputs: as a functional model takes them, and in the structure the model is called with."""
    if not model.built:
        raise ConfigError(
            f"the model {model.name!r} ({type(model).__name__}) has not been built, so its inputs are not known; call it "
            "once on a batch, or give it an Input"
        )
    if (graph := functional_of(model)) is not None:
        struct = graph._inputs_struct
        fresh = tree.map_structure(lambda t: keras.Input(batch_shape=t.shape, dtype=t.dtype, name=t.name), struct)
        return fresh, fresh
    shapes = getattr(model, "_build_shapes_dict", None) or {}
    if not shapes:
        raise _NotTraceableError("Keras could not call it with symbolic tensors when it was built")
    required = [
        name
        for name, each in inspect.signature(model.call).parameters.items()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    if len(shapes) > 1 or len(required) > 1:
        raise ConfigError(
            f"the model {model.name!r} takes several arguments ({', '.join(required)}), which no functional graph has; give "
            "call() one argument, a dict of tensors"
        )
    ((name, shape),) = shapes.items()
    single = _input_like(shape, name)
    return single, single


def functional_of(model: Any) -> Any:
    """The functional graph of a functional or Sequential model; None of others."""
    if isinstance(model, keras.Sequential):
        return getattr(model, "_functional", None)
    return model if hasattr(model, "_nodes_by_depth") else None


def _input_like(shape: Any, name: str) -> Any:
    name = name.removesuffix("_shape")
    if isinstance(shape, Mapping):
        return {key: _input_like(each, key) for key, each in shape.items()}
    if isinstance(shape, (list, tuple)) and shape and isinstance(shape[0], (list, tuple)):
        return [_input_like(each, f"{name}_{number}") for number, each in enumerate(shape)]
    return keras.Input(batch_shape=(None, *shape[1:]), name=name if name != "input" else None)


def _expanded(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """The outputs of ``layer`` on symbolic tensors, as those of the layers inside it."""
    graph = functional_of(layer)
    if graph is not None:
        return graph._run_through_graph(args[0], call_fn=_visit)
    kwargs.pop("training", None)
    try:
        return layer.call(*args, **kwargs)
    except Exception as error:  # code of a user, which may raise anything on a symbolic tensor
        raise _NotTraceableError(str(error).splitlines()[0]) from error


def _inside(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The outputs of a composite layer as those of what is inside it."""
    try:
        return _expanded(layer, *args, **kwargs)
    except _NotTraceableError:
        # With dropout, which is for training, Keras makes causal masks in a way that has no symbolic form. With a mask of
        # tokens the two ways differ in the rows of tokens that are masked themselves, so that such a layer stays whole.
        rate = getattr(layer, "_dropout", 0.0) if type(layer).__name__ == "MultiHeadAttention" else 0.0
        if not rate or any(value is not None for name, value in kwargs.items() if name.endswith("_mask") and
                           name != "use_causal_mask"):  # fmt: skip
            raise
        try:
            layer._dropout = 0.0
            return _expanded(layer, *args, **kwargs)
        finally:
            layer._dropout = rate


def _visit(op: Any, *args: Any, **kwargs: Any) -> Any:
    masks = _masks(op, args, kwargs)
    kwargs |= masks
    if is_composite(op):
        try:
            outputs = _inside(op, args, kwargs)
        except _NotTraceableError:
            return op(*args, **kwargs)
        if masks and op.supports_masking:
            op._set_mask_metadata(args[0], outputs, tree.map_structure(_mask_of, args[0]))
        return outputs
    return op(*args, **kwargs)


def _masks(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The masks that Keras hands from layer to layer beside tensors (``Embedding(mask_zero=True)``), as arguments: they
    would get lost where a layer is replaced by what is inside it."""
    if not isinstance(layer, keras.Layer):
        return {}
    signature = inspect.signature(layer.call)
    given = signature.bind_partial(*args, **kwargs).arguments
    tensors = {
        name: value
        for name, value in given.items()
        if any(isinstance(t, keras.KerasTensor) for t in tree.flatten(value))
    }
    found = {}
    for name, value in tensors.items():
        wanted = "mask" if len(tensors) == 1 and "mask" in signature.parameters else f"{name}_mask"
        mask = tree.map_structure(_mask_of, value)
        if (
            wanted in signature.parameters
            and given.get(wanted) is None
            and any(m is not None for m in tree.flatten(mask))
        ):
            found[wanted] = mask
    return found


def _mask_of(tensor: Any) -> Any:
    return getattr(tensor, "_keras_mask", None)


def is_composite(op: Any) -> bool:
    """Whether ``op`` is a model or a layer made of others."""
    if not isinstance(op, keras.Layer) or type(op).__name__ in _WHOLE:
        return False
    return isinstance(op, keras.Model) or bool(getattr(op, "_layers", ()))


def names_of(model: Any) -> dict[int, str]:
    """What the layers of a model are called, by identity: ``outer.inner`` of one that is inside another layer."""
    found: dict[int, str] = {}

    def walk(layers: Any, prefix: str) -> None:
        for layer in layers:
            if id(layer) in found:
                continue
            name = free_name(f"{prefix}{layer.name}", found.values())
            found[id(layer)] = name
            if is_composite(layer):
                walk(layer._layers, f"{name}.")

    walk(getattr(model, "_layers", ()), "")
    return found


def free_name(name: str, taken: Collection[str]) -> str:
    """``name``, numbered where it is taken."""
    number, found = 0, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def nodes_of(graph: Any) -> list[Any]:
    """The calls of operations in a functional model, in an order in which they can run; those of inputs left out."""
    depths = graph._nodes_by_depth
    return [node for depth in sorted(depths, reverse=True) for node in depths[depth] if not node.is_input]


def rebuild(
    graph: Any,
    call: Call,
    mark: Callable[[Any, Any], Any] = lambda old, new: new,
    name: str | None = None,
    shape: Callable[[Any], Any] = lambda given: given,
) -> Any:
    """A functional model with the inputs and outputs of ``graph``, in which ``call`` made what stands for each node.

    ``mark(old, new)`` gives what consumers read in place of the tensor ``new``, which stands for ``old``, and ``shape`` the
    shape of an input in place of the one it has.
    """
    inputs = tree.map_structure(
        lambda t: keras.Input(batch_shape=shape(t.shape), dtype=t.dtype, name=t.name), graph._inputs_struct
    )
    made = {id(old): mark(old, new) for old, new in zip(graph.inputs, tree.flatten(inputs), strict=True)}
    for node in nodes_of(graph):
        args, kwargs = node.arguments.fill_in(made)
        outputs = tree.flatten(call(node, args, kwargs))
        made |= {id(old): mark(old, new) for old, new in zip(node.outputs, outputs, strict=True)}
    outputs = tree.map_structure(lambda t: made[id(t)], graph._outputs_struct)
    return keras.Model(inputs, outputs, name=name or graph.name)
