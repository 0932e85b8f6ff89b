"""Look inside a model: weights and activations of ops, and how far quantized ops are from their float selves."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from neural_compressor.adaptor.inspection import inspected
from neural_compressor.adaptor.records import OpRecord
from neural_compressor.errors import ConfigError
from neural_compressor.formats.kv_cache import KV_SCHEME, KVScales
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey
from neural_compressor.schemes.error import sqnr_db
from neural_compressor.torch.batches import feed, split_batch, tensors_in
from neural_compressor.torch.checks import copy_of
from neural_compressor.torch.hooks import evaluating, hooked
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.kv_cache import kv_scales_of
from neural_compressor.torch.quantized_model import Quantization
from neural_compressor.tuning.identity import identity

_TIMED_RUNS = 5
_TIMED_SECONDS = 1.0


def _plain(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    return (
        tensor.detach().to("cpu", torch.float32).numpy().copy() if tensor.is_floating_point() else tensor.cpu().numpy()
    )


def inspect_tensors(
    model: nn.Module, dataloader: Iterable[Any], ops: Sequence[Any], iterations: Sequence[int], kind: str
) -> dict[str, Any]:
    """Weights, and outputs in some iterations, counted from 1, of modules that are named, or of all without children."""
    modules = dict(model.named_modules())
    return inspected(
        kind,
        ops,
        modules,
        [name for name, module in modules.items() if not any(True for _ in module.children())],
        lambda name: _weights(modules[name]),
        lambda names: _activations(model, {name: modules[name] for name in names}, dataloader, iterations),
    )


def _weights(module: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    arrays = {name: _plain(p) for name, p in module.named_parameters(recurse=False)}
    if isinstance(module, QuantModule) and (weight := module.dequantized_weight()) is not None:
        arrays["weight"] = _plain(weight)
    return arrays


def _activations(
    model: nn.Module, modules: Mapping[str, nn.Module], dataloader: Iterable[Any], iterations: Sequence[int]
) -> list[dict[str, Any]]:
    wanted, seen, current = set(iterations), [], dict[str, Any]()

    def record(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        current[name] = {f"output{i}": _plain(t) for i, t in enumerate(tensors_in(output))}

    with hooked(modules, after=record), torch.no_grad():
        for index, batch in enumerate(dataloader, start=1):
            current.clear()
            feed(model, split_batch(model, batch))
            if index in wanted:
                seen.append(dict(current))
            if index >= max(wanted):
                break
    return seen


def op_records(
    model: nn.Module, reference: nn.Module | None, inputs: Any, skipped: Mapping[OpKey, str]
) -> list[OpRecord]:
    """A record for each op of a quantized model.

    Output errors are local: each quantized op is compared, on the input it really gets, with the float op on the same input.
    """
    done = getattr(model, "quantization", None)
    if not isinstance(done, Quantization):
        return []
    modules = dict(model.named_modules())
    floats = dict(reference.named_modules()) if reference is not None else {}
    errors = _output_errors(model, done, floats, inputs) if floats and inputs is not None else {}
    reasons = {**skipped, **done.reasons}
    keys = list(dict.fromkeys([*done.plan, *reasons]))
    records = [_record(key, modules.get(key[0]), floats.get(key[0]), reasons, errors) for key in keys]
    records = [_with_reason(record, done.structure.unfolded.get(record.name, "")) for record in records]
    return [*records, *(_attention_record(name, modules[name], each) for name, each in kv_scales_of(model).items())]


def _attention_record(name: str, module: nn.Module, scales: KVScales) -> OpRecord:
    """What an attention rounds itself, which is none of its products."""
    kind = KV_SCHEME.dtype.name
    rounded = "keys and values" if scales.queries is None else "queries, keys and values"
    reason = f"{rounded} are rounded to {kind}, and products of them are computed in float"
    return OpRecord(name, type(module).__name__, kind, activation=kind, mode="static", simulated=True, reason=reason)


def _with_reason(record: OpRecord, more: str) -> OpRecord:
    return replace(record, reason="; ".join(filter(None, (record.reason, more)))) if more else record


def _record(
    key: OpKey,
    module: nn.Module | None,
    original: nn.Module | None,
    reasons: Mapping[OpKey, str],
    errors: Mapping[str, float],
) -> OpRecord:
    # What has no module of its own is a parameter of another, or a function that a forward calls.
    state = {} if module is None else module.state_dict()
    size = sum(t.numel() * t.element_size() for t in state.values() if isinstance(t, torch.Tensor))
    if not isinstance(module, QuantModule):
        return OpRecord(*key, precision="fp32", reason=reasons.get(key, "kept in float"), size_bytes=size)
    scheme, before = module.scheme, getattr(original, "weight", None)
    weight = module.dequantized_weight() if isinstance(before, torch.Tensor) else None
    error = None
    if before is not None and weight is not None and before.shape == weight.shape:
        error = sqnr_db(before.detach().float(), weight.float())
    return OpRecord(
        *key,
        precision=scheme.precision,
        activation=scheme.activation.dtype.name if scheme.activation else "fp32",
        mode=scheme.mode,
        kernel=module.kernel,
        simulated=module.simulated,
        reason=reasons.get(key, f"the plan has it compute in {scheme.precision}")
        if scheme.is_float
        else module.why_simulated(),
        weight_sqnr=error,
        output_sqnr=errors.get(key[0]),
        size_bytes=size,
    )


def _output_errors(
    model: nn.Module, done: Quantization, floats: Mapping[str, nn.Module], inputs: Any
) -> dict[str, float]:
    errors: dict[str, float] = {}

    def compare(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        original = floats[name]
        dtype = next((p.dtype for p in original.parameters()), torch.float32)

        def as_float(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and (value.is_quantized or value.is_floating_point()):
                return (value.dequantize() if value.is_quantized else value).to(dtype)
            return value

        expected = next(tensors_in(original(*map(as_float, args), **{k: as_float(v) for k, v in kwargs.items()})))
        expected = expected.relu() if module.relu and name in done.structure.relus else expected
        errors[name] = sqnr_db(expected.float(), as_float(next(tensors_in(output))).float())

    compared = {n: m for n, m in model.named_modules() if isinstance(m, QuantModule) and n in floats}
    with hooked(compared, after=compare), torch.no_grad():
        feed(model, inputs)
    return errors


def model_sqnr(expected: Any, actual: Any) -> float | None:
    """The SQNR in dB of all float outputs of a model taken together; None where that is no finite number."""
    pairs = zip(tensors_in(expected), tensors_in(actual), strict=False)
    floats = [(a.float().ravel(), b.float().ravel()) for a, b in pairs if a.is_floating_point() and a.shape == b.shape]
    if not floats:
        return None
    decibels = sqnr_db(*(torch.cat(parts) for parts in zip(*floats, strict=True)))
    return decibels if math.isfinite(decibels) else None


def time_shares(model: nn.Module, inputs: Any) -> dict[str, float]:
    """The part of a run on ``inputs`` that each op takes, by name.

    Ops are timed one by one, by hooks, so that int8 is not handed from op to op meanwhile: shares tell where time goes,
    not what an op takes in the compiled forward. Costs one run to warm up
    and five more, or as many as a second has room for.
    """
    if any(tensor.device.type != "cpu" for tensor in (*model.parameters(), *model.buffers())):
        return {}  # elsewhere a call is over before its work is done
    spent: dict[str, float] = defaultdict(float)
    begun: dict[str, float] = {}

    def start(name: str, *call: Any) -> None:
        begun[name] = perf_counter()

    def stop(name: str, *call: Any) -> None:
        spent[name] += perf_counter() - begun[name]

    whole, runs = 0.0, 0
    modules = {name: module for name, module in model.named_modules() if name}
    timed = {n: m for n, m in modules.items() if isinstance(m, QuantModule) or not any(True for _ in m.children())}
    with hooked(timed, start, stop), torch.no_grad(), evaluating(model):
        feed(model, inputs)  # what a first run builds is not counted
        spent.clear()
        while runs < _TIMED_RUNS and whole < _TIMED_SECONDS:
            started = perf_counter()
            feed(model, inputs)
            whole, runs = whole + perf_counter() - started, runs + 1
    return {name: seconds / whole for name, seconds in spent.items()}


def set_tensors(model: nn.Module, tensor_dict: Mapping[str, Any]) -> nn.Module:
    """A copy of ``model`` with other values in the tensors that are named."""
    new = copy_of(model)
    state = new.state_dict()
    with torch.no_grad():
        for name, value in tensor_dict.items():
            if name not in state:
                raise ConfigError(f"the model has no tensor {name!r}; {close_matches(name, state)}")
            given = torch.as_tensor(value)
            if given.shape != state[name].shape:
                raise ConfigError(f"tensor {name!r} has shape {tuple(state[name].shape)}, not {tuple(given.shape)}")
            state[name].copy_(given)
    return new


def fingerprint(model: nn.Module) -> str:
    """A digest of what a model is: its classes with their code, its structure and every value in it."""
    classes = sorted(identity(kind) for kind in {type(module) for module in model.modules()})
    patched = [identity(module.forward) for module in model.modules() if "forward" in vars(module)]
    digest = hashlib.sha256(f"{classes} {patched} {model!r}".encode())
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {tensor!r}".encode())
            continue
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
