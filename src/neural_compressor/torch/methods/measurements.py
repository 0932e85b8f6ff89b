"""Statistics of the tensors of ops in files, so that measuring and quantizing can be two runs, or several on many machines.

Files are JSON with a checksum; tensors, where they are kept whole, are safetensors. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from neural_compressor.errors import CalibrationError, FormatError
from neural_compressor.formats.json_files import read_json, write_json
from neural_compressor.observers.minmax import MinMaxObserver
from neural_compressor.paths import write_errors
from neural_compressor.schemes import OpKey, Plan
from neural_compressor.torch.hooks import evaluating, hooked
from neural_compressor.torch.modules.function_products import opened_products

logger = logging.getLogger("neural_compressor")

FORMAT, VERSION = "neural_compressor.measurements", 1
Range = tuple[float, float]
_WEIGHTS_DIFFER = 0.01
"""Relative: a model that was cast to bfloat16 meanwhile is the same one."""


@dataclass(frozen=True)
class MeasurementFiles:
    """Where statistics are, and which of them: ``prefix`` is a path without an ending; ranks have a file each."""

    prefix: str
    observer: str = "maxabs"
    exclude: str = "OUTPUT"
    every: int = 1
    rank: int | None = None
    world_size: int | None = None

    def path(self, rank: int | None, ending: str = ".json") -> Path:
        """The file of a rank."""
        of_rank = "" if rank is None else f"_{rank}_{self.world_size}"
        return Path(f"{self.prefix}_hooks_{self.observer}{of_rank}{ending}")

    @property
    def own(self) -> Path:
        """The file that this process writes."""
        return self.path(None if self.world_size is None else self.rank)

    @property
    def scales(self) -> Path:
        """The file of the scales that were found from the statistics."""
        return self.path(None, "_scales.json")

    def includes(self, tensors: str) -> bool:
        """Whether INPUT, OUTPUT or PARAMS are measured."""
        return self.exclude not in (tensors, "ALL")


class Measuring:
    """Looks at the ops of ``plan`` while a model runs, between :meth:`start` and :meth:`finish`, which writes the file.

    ``caches`` has the largest key and value of attentions by then.
    """

    def __init__(
        self, model: nn.Module, plan: Plan, files: MeasurementFiles, caches: Mapping[str, Sequence[Tensor]]
    ) -> None:
        self._model, self._files, self._caches = model, files, caches
        self._ops = {key: model.get_submodule(key[0]) for key, op in plan.items() if not op.is_float}
        self._seen: dict[str, dict[str, Any]] = {}
        self._saved: Counter[tuple[str, int]] = Counter()
        self._stack: ExitStack | None = None
        self.runs = 0

    def start(self) -> None:
        """Take all further calls of the model into account; the file says until :meth:`finish` that it is not complete."""
        self._write(complete=False)
        with ExitStack() as stack:
            stack.enter_context(evaluating(self._model))
            stack.enter_context(hooked(self._ops, after=self._see))
            stack.callback(self._model.register_forward_hook(self._count).remove)
            self._stack = stack.pop_all()

    def finish(self) -> Path:
        """End of calibration: the file it is in."""
        self.stop()
        if not self._seen:
            raise CalibrationError(
                "nothing was measured: run the prepared model on data that reaches the ops to quantize, then finalize"
            )
        for name, op in self._seen.items():
            for low, high in _ranges_of(op):
                if low == high:
                    logger.warning(
                        "op %r: its input was %g in every sample; a scale for it fits no other data", name, low
                    )
        self._write(complete=True)
        return self._files.own

    def stop(self) -> None:
        """No longer look at the model; the file stays one that is not complete."""
        if self._stack is not None:
            self._stack.close()
            self._stack = None

    def _count(self, *call: Any) -> None:
        self.runs += 1

    def _see(self, key: OpKey, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.runs % self._files.every:
            return
        inputs = [t for t in (*args, *kwargs.values()) if _is_float(t)] if self._files.includes("INPUT") else []
        outputs = [output] if self._files.includes("OUTPUT") and _is_float(output) else []
        seen = self._seen.setdefault(key[0], {"type": key[1], "inputs": [], "outputs": []})
        axis = 1 if key[1].startswith("Conv") else -1
        for kind, tensors in (("inputs", inputs), ("outputs", outputs)):
            for place, tensor in enumerate(tensors):
                if place == len(seen[kind]):
                    # The operands of an op without a weight have no channels that stay the same.
                    per_channel = self._files.observer == "maxabs_per_channel" and hasattr(module, "weight")
                    seen[kind].append({"observer": MinMaxObserver(axis if per_channel else None), "shapes": []})
                self._update(seen[kind][place], tensor, f"op {key[0]!r} ({key[1]})")
        if self._files.observer == "save":
            held = {
                f"{key[0]}:{kind}{i}": t
                for kind, ts in (("input", inputs), ("output", outputs))
                for i, t in enumerate(ts)
            }
            self._saved[key[0], self.runs] += 1
            again = f"_{number}" if (number := self._saved[key[0], self.runs]) > 1 else ""
            file = self._files.path(self._files.rank, f"_{key[0]}_{self.runs}{again}.safetensors")
            save_file({name: t.detach().cpu().contiguous() for name, t in held.items()}, file)

    def _update(self, seen: dict[str, Any], tensor: Tensor, what: str) -> None:
        shape = list(tensor.shape)
        if shape not in seen["shapes"]:
            seen["shapes"].append(shape)
        if self._files.observer == "shape" or not tensor.numel():
            return
        try:
            seen["observer"].update(tensor.detach().float())
        except CalibrationError as error:
            raise CalibrationError(f"{what}: {error}") from error

    def _params(self, module: nn.Module) -> dict[str, float]:
        weight = getattr(module, "weight", None)
        if not self._files.includes("PARAMS") or not isinstance(weight, Tensor):
            return {}
        return {"weight": float(weight.detach().abs().max())}

    def _write(self, complete: bool) -> None:
        modules = {key[0]: module for key, module in self._ops.items()}
        ops = {
            name: {
                "type": seen["type"],
                **{kind: [_plain(each) for each in seen[kind]] for kind in ("inputs", "outputs")},
                "params": self._params(modules[name]),
            }
            for name, seen in self._seen.items()
        }
        files = self._files
        write_measurements(
            files.own,
            {
                "observer": files.observer,
                "exclude": files.exclude,
                "rank": files.rank,
                "world_size": files.world_size,
                "model": model_digest(self._model),
                "complete": complete,
                "runs": self.runs,
                "ops": ops,
                "caches": {name: [float(side) for side in pair] for name, pair in self._caches.items()},
            },
        )


def write_measurements(file: Path, content: dict[str, Any]) -> None:
    """Write ``content`` with what :func:`read_measurements` checks."""
    content = {"format": FORMAT, "version": VERSION, **content}
    with write_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {**content, "checksum": _checksum(content)})


def read_measurements(file: Path, model: nn.Module, instead: str) -> dict[str, Any]:
    """The content of a file about ``model``; what is missing, half, changed or of another model is an error.

    ``instead`` says what would make the file.
    """
    if not file.exists():
        raise FormatError(f"there are no statistics in {file}: {instead}")
    content = read_json(file)
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise FormatError(f"{file} is no file of statistics that this version reads: {instead}")
    if content.pop("checksum", None) != _checksum(content):
        raise FormatError(f"{file} was changed since it was written, or is truncated: {instead}")
    if not content.get("complete"):
        raise FormatError(f"{file} is of a measuring run that did not end with finalize_calibration(model): {instead}")
    if content["model"] != model_digest(model):
        raise FormatError(
            f"{file} has the statistics of another model: its modules and the shapes of their parameters are not those of "
            f"this {type(model).__name__}"
        )
    return content


def measured_ranges(files: MeasurementFiles, model: nn.Module, plan: Plan) -> tuple[dict[OpKey, list[Range]], str]:
    """The ranges of the inputs of the static ops of ``plan`` that were measured, of all ranks merged, and their digest."""
    ranks: list[int | None] = [None] if files.world_size is None else list(range(files.world_size))
    step = "run prepare with mode='MEASURE', data and finalize_calibration first"
    contents = [
        read_measurements(files.path(rank), model, step if rank is None else f"{step}, on rank {rank} too")
        for rank in ranks
    ]
    if files.observer == "shape":
        raise FormatError(f"{files.own} has shapes alone (observer 'shape'): measure with observer='maxabs'")
    try:
        found = _merged(contents, model, plan)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{files.own} is not laid out as statistics are ({error!r}): {step}") from error
    return found, hashlib.sha256("".join(_checksum(content) for content in contents).encode()).hexdigest()


def _merged(contents: Sequence[Mapping[str, Any]], model: nn.Module, plan: Plan) -> dict[OpKey, list[Range]]:
    found: dict[OpKey, list[Range]] = {}
    for key in plan:
        parts = [content["ops"][key[0]] for content in contents if key[0] in content["ops"]]
        for part in parts:
            _check_weight(part, model.get_submodule(key[0]), key)
        # On a rank whose data gave an op nothing but empty tensors there is no range of it.
        if ranges := [each for part in parts if (each := list(_ranges_of(part)))]:
            found[key] = [
                (min(low for low, _ in each), max(high for _, high in each)) for each in zip(*ranges, strict=True)
            ]
    return found


def measured_caches(files: MeasurementFiles, model: nn.Module) -> dict[str, list[Tensor]]:
    """The largest key and value of attentions that were measured, of all ranks."""
    ranks: list[int | None] = [None] if files.world_size is None else list(range(files.world_size))
    found: dict[str, list[Tensor]] = {}
    for rank in ranks:
        for name, pair in read_measurements(files.path(rank), model, "measure first").get("caches", {}).items():
            now = [torch.tensor(float(side)) for side in pair]
            found[name] = [torch.maximum(*both) for both in zip(found.get(name, now), now, strict=True)]
    if not found:
        raise FormatError(
            f"{files.path(ranks[0])} has no statistics of keys and values: measure with kv_cache=True too"
        )
    return found


def _check_weight(part: Mapping[str, Any], module: nn.Module, key: OpKey) -> None:
    weight, measured = getattr(module, "weight", None), part["params"].get("weight")
    if measured is None or not isinstance(weight, Tensor):
        return
    found = float(weight.detach().abs().max())
    if abs(found - measured) > _WEIGHTS_DIFFER * max(abs(found), abs(measured)):
        raise FormatError(
            f"op {key[0]!r} ({key[1]}): the weight that was measured has a largest magnitude of {measured:g}, and that of "
            f"this model {found:g}: the statistics are of another model"
        )


def _ranges_of(op: Mapping[str, Any]) -> Iterator[Range]:
    """The range of each input, of statistics as they are held or stored."""
    for each in op["inputs"]:
        stored = _plain(each) if "observer" in each else each
        if stored.get("low") is not None:
            yield float(np.min(stored["low"])), float(np.max(stored["high"]))


def _plain(seen: Mapping[str, Any]) -> dict[str, Any]:
    observer: MinMaxObserver = seen["observer"]
    low, high = (
        None if side is None else np.asarray(side, np.float64).tolist() for side in (observer.low, observer.high)
    )
    return {"shapes": seen["shapes"], "low": low, "high": high}


def model_digest(model: nn.Module) -> str:
    """What tells models apart: their modules, and the shapes of what these hold; not which products are modules now."""
    opened = opened_products(model)
    modules = [
        [name, type(module).__name__, *([own, *p.shape] for own, p in module.named_parameters(recurse=False))]
        for name, module in model.named_modules()
        if name not in opened and name.rpartition(".")[0] not in opened
    ]
    return hashlib.sha256(json.dumps(modules).encode()).hexdigest()


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
