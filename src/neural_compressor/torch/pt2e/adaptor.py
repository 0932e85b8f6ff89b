"""Exported graphs behind the adaptor contract: the tuning function tries plans on them as on other models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from neural_compressor.adaptor.contract import Adaptor
from neural_compressor.adaptor.records import OpRecord
from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.errors import CalibrationError
from neural_compressor.schemes import OpKey, Plan
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.batches import feed, run_batches
from neural_compressor.torch.pt2e.checkpoint import load_graph, save_graph
from neural_compressor.torch.pt2e.eager_passes import execution_of
from neural_compressor.torch.pt2e.exported import is_exported
from neural_compressor.torch.pt2e.ops import InductorQuery, find_graph_ops, graph_opwise
from neural_compressor.torch.pt2e.records import graph_records


class ExportedAdaptor(Adaptor):
    """Quantizes graphs that :func:`~neural_compressor.torch.export.export` made.

    ``framework_specific_info`` may hold ``reasons``, which says of a plan why ops that it does not name stay in float.
    Graphs are evaluated as they are, op by op: the numbers are those of the compiled graph but for roundings, the times are
    not, and so none is taken.
    """

    def __init__(self, framework_specific_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(framework_specific_info)
        self.query_handler = InductorQuery()
        self._modules = PyTorchAdaptor()  # what holds of every module
        self._skipped: dict[OpKey, str] = {}

    @classmethod
    def handles(cls, model: Any) -> bool:
        return isinstance(model, GraphModule) and is_exported(model)

    def query_fw_capability(self, model: GraphModule) -> dict[str, Any]:
        ops, self._skipped = find_graph_ops(model)
        details = graph_opwise(ops)
        return {"opwise": details, "optypewise": self.get_optype_wise_ability(details), "skipped": dict(self._skipped)}

    def quantize(
        self,
        tune_cfg: Mapping[str, Any],
        model: GraphModule,
        dataloader: Iterable[Any] | None = None,
        q_func: Callable[[GraphModule], Any] | None = None,
    ) -> GraphModule:
        plan = Plan.from_tune_cfg(tune_cfg)
        fallen = {key: "tuning has it in float" for key, scheme in plan.items() if scheme.is_float}
        kept = Plan(
            {key: scheme for key, scheme in plan.items() if key not in fallen}, plan.calib_sampling_size, plan.passes
        )
        reasons = self.info["reasons"](plan) if "reasons" in self.info else self._skipped
        execution = execution_of(model, kept, {**reasons, **fallen})
        if execution.needs_data:
            _run(execution, dataloader, q_func)
        new = execution.apply()
        self.tuning_cfg_to_fw(tune_cfg)
        return new

    def predict(self, model: GraphModule, inputs: Any) -> Any:
        with torch.no_grad():
            return feed(model, inputs)

    def save(self, model: GraphModule, path: str | Path) -> None:
        save_graph(model, Path(path))

    def load(self, path: str | Path, model: GraphModule) -> GraphModule:
        return load_graph(Path(path))

    def model_size(self, model: GraphModule) -> int:
        return self._modules.model_size(model)

    def summary(self, model: GraphModule) -> list[OpRecord]:
        return graph_records(model)

    def nodes(self, model: GraphModule) -> list[Any]:
        return self._modules.nodes(model)

    def describe(self, model: GraphModule) -> str:
        return str(model.graph)

    def fingerprint(self, model: GraphModule) -> str:
        return self._modules.fingerprint(model)

    def load_snippet(self, path: str) -> str:
        return f"from neural_compressor.torch.quantization import load\n\nmodel = load({path!r})\n"


def _run(execution: Any, data: Iterable[Any] | None, q_func: Callable[[GraphModule], Any] | None) -> None:
    """Run the graph of an execution on what it is to be calibrated with."""
    if q_func is not None:
        with torch.no_grad(), calibrating(q_func, "run_fn", lambda: execution.runs):
            q_func(execution.model)
    elif data is not None:
        run_batches(execution.model, data, execution.plan.calib_sampling_size)
    else:
        raise CalibrationError("static quantization needs calibration data: give a run_fn that runs the model on some")
