"""Time of a run by node, from ONNX Runtime's profile."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime as ort

from neural_compressor.onnx.files.scratch import scratch_folder

_RUNS = 3
MOST_BYTES = 1 << 28
"""A model is copied to be profiled; one with more bytes of weights is better left alone."""
_KERNEL = "_kernel_time"
_BLOCKED = "_nchwc"
"""The runtime names a node that it moves to blocked layouts after its output."""


def node_times(
    model: ir.Model, feed: Mapping[str, Any], providers: Sequence[str] = ("CPUExecutionProvider",), threads: int = 1
) -> dict[tuple[str, str], float]:
    """Microseconds of three runs on ``feed`` by the name and type of each node that the runtime executes."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level, options.enable_profiling = threads, 3, True
    with scratch_folder() as folder:
        options.profile_file_prefix = str(folder / "profile")
        session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=list(providers))
        for _ in range(_RUNS):
            session.run(None, dict(feed))
        try:
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        except ValueError:  # cut off, as where the temporary folder is full
            return {}
    spent: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith(_KERNEL):
            spent[event["name"].removesuffix(_KERNEL), event.get("args", {}).get("op_name", "")] += event.get("dur", 0)
    return dict(spent)


def time_shares(
    model: ir.Model, feed: Mapping[str, Any], ops: Collection[str], providers: Sequence[str]
) -> dict[str, float]:
    """The part of a run that each of ``ops`` takes, quantizers before it included."""
    times = node_times(model, feed, providers, threads=0)
    whole = sum(times.values())
    names = _Names(model, ops)
    spent: dict[str, float] = defaultdict(float)
    for (name, kind), microseconds in times.items():
        op = names.op_of(name, kind)
        if op is not None:
            spent[op] += microseconds
    return {op: microseconds / whole for op, microseconds in spent.items()} if whole else {}


class _Names:
    """The ops that the nodes of a profile belong to: by their own name, by their output, or by the op they feed."""

    def __init__(self, model: ir.Model, ops: Collection[str]) -> None:
        self.ops = ops
        self.nodes = {str(node.name): node for node in model.graph.all_nodes()}
        self.writers = {str(value.name): node for node in model.graph.all_nodes() for value in node.outputs}

    def op_of(self, name: str, kind: str) -> str | None:
        name = re.sub(r"_token_\d+$", "", name).removeprefix("fused ").removesuffix("/MatMulAddFusion")
        if name in self.ops:
            return name
        if name.endswith(_BLOCKED):
            return self._upstream(self.writers.get(name.removesuffix(_BLOCKED)), kind)
        return self._downstream(self.nodes.get(name))

    def _upstream(self, node: ir.Node | None, kind: str) -> str | None:
        """The nearest op of the type ``kind``; what stands behind it was fused into it."""
        waiting = [] if node is None else [node]
        for current in waiting:
            if current.op_type == kind:
                return str(current.name) if current.name in self.ops else None
            before = [value.producer() for value in current.inputs if value is not None]
            waiting += [each for each in before if each is not None and each not in waiting]
        return None

    def _downstream(self, node: ir.Node | None) -> str | None:
        """The first op on the way, which is followed only where it does not fork."""
        while node is not None and str(node.name) not in self.ops:
            users = list(dict.fromkeys(user for value in node.outputs for user in value.consumers()))
            node = users[0] if len(users) == 1 else None
        return None if node is None else str(node.name)
