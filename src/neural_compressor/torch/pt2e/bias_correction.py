"""Bias correction in exported graphs: what rounding the weights shifts the mean output of a layer by goes into its bias.

A layer with the weight ``W`` rounded to ``Q`` gives ``(Q - W) E[x]`` more on average (Nagel et al. 2019, section 4.2). The
mean input of each channel is seen while data runs, and what is not more than chance between calls is left, as in eager
models (``algorithms/bias_correction.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from neural_compressor.algorithms import errors_of_means, mean_error
from neural_compressor.errors import CalibrationError
from neural_compressor.schemes import OpKey
from neural_compressor.torch.pt2e.observers import RangeObserver, WeightObserver, as_rows, attribute, keep


class InputMeans(nn.Module):
    """In front of a layer while data runs: the mean of each input channel in each call."""

    def __init__(self, channel: int, where: str) -> None:
        super().__init__()
        self._channel, self._where = channel, where
        self._rows: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Take ``x`` into account and hand it on."""
        if x.numel():
            others = [at for at in range(x.dim()) if at != self._channel % x.dim()]
            self._rows.append(x.detach().double().mean(others).float())
        return x

    def means(self) -> Tensor:
        """What was found, one row a call."""
        if not self._rows:
            raise CalibrationError(
                f"calibration never reached {self._where}: run the prepared model on data before convert"
            )
        return torch.stack(self._rows)


def watch_inputs(prepared: GraphModule, layers: Mapping[str, OpKey]) -> None:
    """Put :class:`InputMeans` in front of the static ones of ``layers``, which are ops by the names of their nodes."""
    for node in [node for node in prepared.graph.nodes if node.name in layers]:
        if not isinstance(_module(prepared, node.args[0]), RangeObserver):
            continue
        name, kind = layers[node.name]
        target = f"_input_means_{node.name}"
        prepared.add_submodule(target, InputMeans(-1 if kind == "Linear" else 1, f"op {name!r} ({kind})"))
        with prepared.graph.inserting_before(node):
            seen = prepared.graph.call_module(target, (node.args[0],))
        seen.meta = dict(node.args[0].meta)
        node.args = (seen, *node.args[1:])
    prepared.recompile()


def mean_errors(prepared: GraphModule) -> dict[str, Tensor]:
    """By the name of its node what rounding the weight adds to the mean output of each layer that is watched."""
    found: dict[str, Tensor] = {}
    for node in prepared.graph.nodes:
        seen = _module(prepared, node.args[0]) if node.op == "call_function" and node.args else None
        if not isinstance(seen, InputMeans):
            continue
        weight = _module(prepared, node.args[1])
        assert isinstance(weight, WeightObserver)
        values = attribute(prepared, node.args[1].args[0].target).detach().float()
        codes, scale = as_rows(weight.quantized(values), values)
        error = codes * scale.reshape(-1, *(1,) * (values.dim() - 1)) - values
        errors = torch.as_tensor(errors_of_means(error, seen.means()))
        found[node.name] = torch.as_tensor(mean_error(errors, torch.zeros_like(errors[0])))
    return found


def forget_inputs(model: GraphModule) -> None:
    """Take out what :func:`watch_inputs` put in."""
    for node in list(model.graph.nodes):
        if isinstance(_module(model, node), InputMeans):
            node.replace_all_uses_with(node.args[0])
            model.graph.erase_node(node)
            model.delete_submodule(node.target)


def correct_biases(model: GraphModule, errors: Mapping[str, Tensor]) -> None:
    """Take the mean ``errors`` of layers of a quantized graph out through their biases, each call one of its own."""
    for node in list(model.graph.nodes):
        if node.name not in errors or not bool(errors[node.name].any()):
            continue
        bias = node.args[2] if len(node.args) > 2 else None
        before = attribute(model, str(bias.target)) if isinstance(bias, Node) else None
        kind = node.args[1].meta["val"].dtype
        new = -errors[node.name] if before is None else before.detach().float() - errors[node.name]
        owner = str(node.args[1].args[0].target).rpartition(".")[0]
        target = keep(model, f"{owner}.bias_corrected" if owner else "bias_corrected", new.to(kind))
        with model.graph.inserting_before(node):
            place = model.graph.get_attr(target)
        node.args = (*node.args[:2], place, *node.args[3:])
    model.recompile()


def _module(model: GraphModule, node: object) -> nn.Module | None:
    return model.get_submodule(str(node.target)) if isinstance(node, Node) and node.op == "call_module" else None
