"""The bridge: MXNet as Open Neural Compressor sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon import HybridBlock

from neural_compressor.adaptor import Adaptor, OpRecord, QueryBackendCapability, op_configs
from neural_compressor.config.op_options import op_options
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpScheme, Plan, sqnr_db
from neural_compressor_mxnet.calibration import ObservedNetwork, inputs_of, run_samples, watched_tensors
from neural_compressor_mxnet.graph import Graph, Op, as_inputs, as_outputs, traced
from neural_compressor_mxnet.inspection import inspect, write_tensors
from neural_compressor_mxnet.quantized import (
    QuantizedBlock,
    build_block,
    input_dtypes,
    int8_nodes,
    int8_symbol,
    rounded_weights,
    supported_nodes,
)
from neural_compressor_mxnet.storage import file_size, float_arrays, load_block, save_block, stored_arrays

QUANTIZABLE = ("Convolution", "FullyConnected", "Pooling")
_NO_KERNEL = "MXNet's int8 pass leaves it in float"


class MXNetQuery(QueryBackendCapability):
    """Reads mxnet.yaml."""

    def config_file(self) -> Path:
        return Path(__file__).with_name("mxnet.yaml")

    def installed_version(self) -> str:
        return mx.__version__


class MXNetAdaptor(Adaptor):
    """Quantizes Gluon networks (:class:`mxnet.gluon.HybridBlock`) to int8, run by MXNet's oneDNN kernels."""

    def __init__(self, framework_specific_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(framework_specific_info)
        self.query_handler = MXNetQuery(overlay=self.info.get("framework_yaml"))
        self._source: HybridBlock | None = None
        self._graph: Graph | None = None

    @classmethod
    def handles(cls, model: Any) -> bool:
        return isinstance(model, HybridBlock)

    def query_fw_capability(self, model: HybridBlock) -> dict[str, Any]:
        graph = self._trace(model)
        self.example = next((inputs_of(batch) for batch in self.info.get("dataloader") or ()), None)
        supported = self._supported(graph)
        details = {op.key: self._configs(graph, op) for op in supported}
        skipped = {op.key: self._reason(op) for op in graph.ops.values() if op not in supported}
        return {"opwise": details, "optypewise": self.get_optype_wise_ability(details), "skipped": skipped}

    def quantize(
        self,
        tune_cfg: Mapping[str, Any],
        model: HybridBlock,
        dataloader: Iterable[Any] | None = None,
        q_func: Callable[[Any], Any] | None = None,
    ) -> QuantizedBlock:
        graph = self._trace(model)
        self.info["batch_size"] = getattr(dataloader, "batch_size", None) or self.info.get("batch_size") or 1
        self.tuning_cfg_to_fw(tune_cfg)
        plan = Plan.from_tune_cfg(tune_cfg)
        if plan.passes:
            raise ConfigError(
                f"MXNetAdaptor has no passes over the model; leave out {', '.join(p.name for p in plan.passes)}"
            )
        quantized = self._checked(graph, plan)
        nodes = int8_nodes(graph, quantized)
        calib_model = ObservedNetwork(graph, watched_tensors(graph, quantized, nodes))
        if q_func is not None:
            q_func(calib_model)
        elif quantized:
            asked = plan.calib_sampling_size
            iterations = self.quantize_config["calib_iteration"]
            self.samples_seen[asked] = run_samples(calib_model, dataloader, iterations, asked)
        if quantized and not calib_model.batches:
            raise CalibrationError("the calibration data is empty; static quantization needs at least one batch")
        symbol = int8_symbol(graph, nodes, calib_model.ranges() if quantized else {})
        codes = rounded_weights(graph, quantized)
        block = build_block(
            symbol, graph.inputs, {**graph.arguments, **graph.auxiliary}, codes, plan, graph.ops.values()
        )
        _check_result(block, quantized)
        return block

    def predict(self, model: Any, inputs: Any) -> Any:
        return as_outputs(model(*as_inputs(inputs)))

    def save(self, model: QuantizedBlock, path: str | Path) -> None:
        if not isinstance(model, QuantizedBlock):
            raise ConfigError(f"a {type(model).__name__} is not a network that was quantized here; use its export()")
        save_block(model, Path(path))

    def load(self, path: str | Path, model: HybridBlock) -> QuantizedBlock:
        return load_block(Path(path), self._trace(model))

    def model_size(self, model: HybridBlock) -> int:
        arrays = stored_arrays(model) if isinstance(model, QuantizedBlock) else float_arrays(self._trace(model))
        return file_size(arrays)

    def summary(self, model: QuantizedBlock) -> list[OpRecord]:
        dtypes = input_dtypes(model)
        return [self._record(op, model, dtypes) for op in model.ops]

    def output_sqnr(self, model: QuantizedBlock) -> float | None:
        if self.example is None or self._source is None:
            return None
        outputs = [self.predict(each, self.example) for each in (self._source, model)]
        reference, actual = (
            np.concatenate([np.ravel(a) for a in (o if isinstance(o, list) else [o])]) for o in outputs
        )
        return sqnr_db(reference, actual)

    def fingerprint(self, model: HybridBlock) -> str:
        return traced(model).fingerprint()

    def inspect_tensor(
        self,
        model: HybridBlock,
        dataloader: Iterable[Any],
        op_list: Sequence[Any] = (),
        iteration_list: Sequence[int] = (1,),
        inspect_type: str = "activation",
        save_to_disk: bool = False,
    ) -> dict[str, Any]:
        watched = model if isinstance(model, QuantizedBlock) else self._trace(model)
        found = inspect(watched, dataloader, op_list, iteration_list, inspect_type)
        if save_to_disk:
            write_tensors(found, Path(self.info.get("workspace") or ".") / "inspect_saved")
        return found

    def _trace(self, model: HybridBlock) -> Graph:
        if not isinstance(model, HybridBlock):
            raise ConfigError(f"a {type(model).__name__} is not a Gluon network (mxnet.gluon.HybridBlock)")
        if isinstance(model, QuantizedBlock):
            raise ConfigError("the network is quantized already; quantize the float one")
        if self._source is not model or self._graph is None:
            self._source, self._graph = model, traced(model)
        return self._graph

    def _supported(self, graph: Graph) -> list[Op]:
        wanted = {op.node for op in graph.ops.values() if op.op_type in QUANTIZABLE}
        nodes = supported_nodes(graph, wanted)
        return [op for op in graph.ops.values() if op.op_type in QUANTIZABLE and op.node in nodes]

    def _configs(self, graph: Graph, op: Op) -> list[dict[str, Any]]:
        """What the YAML offers, with the data type that the input of this op has."""
        configs = op_configs(self.query_handler, op.op_type)
        kinds = self._input_kinds(graph, op)
        for config in configs:
            if "quant_mode" in config["activation"]:
                config["activation"]["dtype"] = kinds
        return configs

    def _input_kinds(self, graph: Graph, op: Op) -> list[str]:
        source = graph.nodes[op.node].inputs[0][0]
        if graph.without_negatives(source):
            return ["uint8"]
        if source in graph.inputs and self.example is not None:
            array = as_inputs(self.example)[graph.inputs.index(source)].asnumpy()
            return ["uint8", "int8"] if array.min(initial=0) >= 0 else ["int8"]
        # Data that nobody has seen yet: int8 serves all, uint8 only what turns out to be without negative values.
        return ["int8", "uint8"] if source in graph.inputs else ["int8"]

    def _checked(self, graph: Graph, plan: Plan) -> dict[Op, OpScheme]:
        """The ops that ``plan`` quantizes, after a look at whether they can be as it says."""
        known = {op.key: op for op in self._supported(graph)}
        for key, scheme in plan.items():
            if key not in known and key[0] not in graph.ops:
                near = close_matches(key[0], [name for name, _ in known])
                raise ConfigError(f"the network has no {key[1]} called {key[0]!r} to quantize; {near}")
            if scheme.is_float and scheme.precision == "fp32":
                continue
            offered = op_options(self._configs(graph, known[key])) if key in known else ()
            if scheme not in offered:
                choices = "; ".join(str(each.to_dict()) for each in offered) or _NO_KERNEL
                raise ConfigError(f"{key[1]} {key[0]!r} cannot run with {scheme.to_dict()}. Offered: {choices}")
        return {known[key]: scheme for key, scheme in plan.items() if not scheme.is_float}

    def _record(self, op: Op, model: QuantizedBlock, dtypes: Mapping[str, str]) -> OpRecord:
        array = model.codes.get(op.weight or "")
        size = 0
        if array is not None:
            size = sum(np.asarray(part).nbytes for part in array.pack().arrays().values())
        elif op.weight is not None:
            size = model.collect_params()[op.weight].data().size * 4
        scheme = model.plan.get(op.key)
        if scheme is None or scheme.is_float:
            reason = "the tuning configuration keeps it in fp32" if scheme else self._reason(op)
            return OpRecord(*op.key, "fp32", reason=reason, size_bytes=size)
        error = None
        if array is not None and self._graph is not None and op.weight in self._graph.arguments:
            error = sqnr_db(self._graph.arguments[op.weight].asnumpy(), np.asarray(array.dequantize()))
        activation = dtypes[op.name]
        return OpRecord(
            *op.key, scheme.precision, activation, scheme.mode, "oneDNN", weight_sqnr=error, size_bytes=size
        )

    @staticmethod
    def _reason(op: Op) -> str:
        return "not in the tuning configuration" if op.op_type in QUANTIZABLE else _NO_KERNEL


def _check_result(block: QuantizedBlock, quantized: Mapping[Op, OpScheme]) -> None:
    """Refuse a graph that is not what the plan says: an op in float, or with codes of another kind."""
    found = input_dtypes(block)
    for op, scheme in quantized.items():
        wanted = scheme.activation.dtype.name if scheme.activation else ""
        # The input of a pooling has the codes it came with.
        if op.name not in found or (op.weight is not None and found[op.name] != wanted):
            raise QuantizationError(
                f"{op.op_type} {op.name!r} should read {wanted} codes, and reads {found.get(op.name, 'float')} in the graph "
                "that MXNet made"
            )
