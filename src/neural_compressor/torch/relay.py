"""Hand int8 tensors from one quantized op to the next without going through float.

Where everything that reads an op's output first quantizes it with the same scale, and only ops that commute with
quantization lie between, the op may as well return the quantized tensor. The numbers are the same; two passes over
memory fall away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from torch import nn

from neural_compressor.torch.nn import QuantModule
from neural_compressor.torch.watch import Call, Trace

# They pick, move or clamp values and so give the same codes before and after quantization.
_MODULES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Flatten, nn.ReLU)
_FUNCTIONS = (
    "torch.flatten",
    "torch.Tensor.flatten",
    "torch.Tensor.reshape",
    "torch.reshape",
    "torch.nn.functional.relu",
)

_OTHER = "<not a module>"


def find_relays(model: nn.Module, trace: Trace, folded: Collection[str]) -> dict[str, str]:
    """``{op: an op whose input scale it can emit}`` for the quantized ``model`` that ran as ``trace`` says."""
    modules, called = dict(model.named_modules()), trace.times_called()
    relays = {}
    for call in trace.calls:
        op = modules.get(call.module) if call.module is not None else None
        if call.module is None or not isinstance(op, QuantModule) or not op.can_emit or called[call.module] != 1:
            continue
        readers = {name: modules.get(name) for name in _final_readers(call, trace, modules, folded)}
        ops = [m for m in readers.values() if isinstance(m, QuantModule) and m.inputs == ("input",)]
        scales = {m.input_qparams for m in ops}
        if readers and len(ops) == len(readers) and len(scales) == 1 and None not in scales:
            relays[call.module] = next(iter(readers))
    return relays


def connect(model: nn.Module, relays: Mapping[str, str]) -> None:
    """Make each op of ``relays`` emit int8."""
    for name, reader in relays.items():
        op, target = model.get_submodule(name), model.get_submodule(reader)
        if isinstance(op, QuantModule) and isinstance(target, QuantModule) and target.input_qparams is not None:
            op.set_output_qparams(*target.input_qparams)


def _final_readers(
    call: Call, trace: Trace, modules: Mapping[str, nn.Module], folded: Collection[str]
) -> Iterator[str]:
    """Names of the modules that read the output of ``call`` behind ops that commute; ``_OTHER`` for anything else."""
    if len(call.writes) != 1 or call.writes[0] in trace.outputs:
        yield _OTHER
        return
    for reader in trace.readers.get(call.writes[0], ()):
        if _commutes(reader, modules, folded):
            yield from _final_readers(reader, trace, modules, folded)
        else:
            yield _OTHER if reader.module is None else reader.module


def _commutes(call: Call, modules: Mapping[str, nn.Module], folded: Collection[str]) -> bool:
    if call.module is None:
        return call.target in _FUNCTIONS
    module = modules.get(call.module)
    if isinstance(module, nn.MaxPool2d):
        return not module.return_indices
    return call.module in folded or isinstance(module, _MODULES)
