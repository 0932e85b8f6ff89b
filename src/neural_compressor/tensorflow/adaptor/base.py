"""Base of the adaptors of Keras models and of SavedModels: plans run by the one executor, and records of the result."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neural_compressor.adaptor.capability import op_configs
from neural_compressor.adaptor.contract import Adaptor
from neural_compressor.adaptor.inspection import save_inspected
from neural_compressor.adaptor.records import OpRecord
from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.config.process_options import options
from neural_compressor.config.recipes import with_recipes
from neural_compressor.schemes import OpKey, Pass, Plan, sqnr_db
from neural_compressor.tensorflow.adaptor.requirements import require_tensorflow

if TYPE_CHECKING:
    from neural_compressor.tensorflow.executor import Executor
    from neural_compressor.tensorflow.float_graph import FloatGraph, QuantizedGraph

RECIPES: Mapping[str, tuple[str, ...]] = {
    "smooth_quant": ("static", "dynamic"),
    "smooth_quant_args": ("static", "dynamic"),
    "fast_bias_correction": ("static",),
    "equalization": ("static", "dynamic"),
}
"""The recipes that are applied, with the modes of quantization they are about."""


class GraphAdaptor(Adaptor):
    """Quantizes models that the executor of this package has a float graph of."""

    def __init__(self, framework_specific_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(framework_specific_info)
        require_tensorflow()
        self._executor: Executor | None = None

    def query_fw_capability(self, model: Any) -> dict[str, Any]:
        executor = self._prepared(model)
        self.example = self._first_inputs(self.ready(model))
        graph = executor.graph
        details = {
            key: op_configs(self.query_handler, key[1], bool(graph.weights(op))) for key, op in graph.ops().items()
        }
        return {
            "opwise": details,
            "optypewise": self.get_optype_wise_ability(details),
            "skipped": graph.skipped(),
            "quantizable_types": self.query_handler.known_op_types(),
            "recipes": RECIPES,
            "passes": (Pass("correct_biases"),),
        }

    def quantize(
        self,
        tune_cfg: Mapping[str, Any],
        model: Any,
        dataloader: Iterable[Any] | None = None,
        q_func: Callable[[Any], Any] | None = None,
    ) -> Any:
        executor = self._prepared(model)
        loader = self.data_or_own(dataloader)
        self.info.setdefault("batch_size", getattr(loader, "batch_size", None) or 1)
        self.tuning_cfg_to_fw(tune_cfg)
        plan = with_recipes(Plan.from_tune_cfg(tune_cfg), tune_cfg.get("recipe_cfgs") or {})
        if q_func is not None:
            return executor.run(plan, lambda prepared: _by_function(prepared, q_func), q_func)
        if loader is None:
            return executor.run(plan)
        return executor.run(plan, lambda prepared: self._by_data(prepared, loader, plan.calib_sampling_size), loader)

    def inspect_tensor(
        self,
        model: Any,
        dataloader: Iterable[Any],
        op_list: Sequence[Any] = (),
        iteration_list: Sequence[int] = (1,),
        inspect_type: str = "activation",
        save_to_disk: bool = False,
    ) -> dict[str, Any]:
        from neural_compressor.tensorflow.inspection import inspect

        found = inspect(self._graph_of(model), dataloader, op_list, iteration_list, inspect_type)
        if save_to_disk:
            save_inspected(found, options.folder(self.info.get("workspace")))
        return found

    def set_tensor(self, model: Any, tensor_dict: Mapping[str, Any]) -> Any:
        """A new model, in inference form, with tensors written into it."""
        arrays = {name: np.asarray(value, np.float32) for name, value in tensor_dict.items()}
        return self._graph_of(model).with_arrays(arrays)

    def summary(self, model: Any) -> list[OpRecord]:
        assert self._executor is not None
        graph = self._executor.graph
        parts = self._parts(model)
        records = [self._record(key, model, parts) for key in graph.ops()]
        return [*records, *(OpRecord(*key, "fp32", reason=why) for key, why in graph.skipped().items())]

    def shared(self, model: Any) -> Mapping[str, str]:
        """The ops of a quantized model that read a tensor as another op has it, with what that changes."""
        return self._parts(model).shared

    def _record(self, key: OpKey, model: Any, parts: QuantizedGraph) -> OpRecord:
        assert self._executor is not None
        graph = self._executor.graph
        scheme, codes = parts.plan.get(key), parts.codes.get(key[0], {})
        views = graph.weights(graph.ops()[key])
        bits = 32 if scheme is None or scheme.weight is None else scheme.weight.dtype.bits
        size = sum(
            codes[name].array.nbytes_packed if name in codes else int(np.prod(view.shape)) * bits // 8
            for name, view in views.items()
        )
        if scheme is None:
            return OpRecord(*key, "fp32", reason="not in the tuning configuration", size_bytes=size)
        error = None
        if codes:
            tensor = next(iter(codes))
            error = sqnr_db(views[tensor].matrix(), np.asarray(codes[tensor].dequantize()))
        activation = scheme.activation.dtype.name if scheme.activation else "fp32"
        kept = f"the tuning configuration keeps it in {scheme.precision}" if scheme.is_float else ""
        if scheme.is_float and scheme.precision == "fp32":
            return OpRecord(*key, "fp32", activation, reason=kept, weight_sqnr=error, size_bytes=size)
        kernel, why = self._kernel(key, model)
        reason = "; ".join(filter(None, (kept, why, parts.shared.get(key[0], ""))))
        return OpRecord(
            *key, scheme.precision, activation, scheme.mode, kernel, bool(why), reason, error, size_bytes=size
        )

    @abstractmethod
    def ready(self, model: Any) -> Any:
        """The model itself, or what is in the file that was given."""

    @abstractmethod
    def deployed(self, model: Any) -> bytes:
        """The bytes of the LiteRT file that is written."""

    @abstractmethod
    def _kernel(self, key: OpKey, model: Any) -> tuple[str, str]:
        """What runs an op where the model is deployed, and why that is no kernel of its own."""

    def _parts(self, model: Any) -> QuantizedGraph:
        """What a quantized model was made with."""
        found: QuantizedGraph = model.quantization
        return found

    @abstractmethod
    def _graph_of(self, model: Any) -> FloatGraph:
        """The graph whose tensors are shown: that of a quantized model itself, of others the one that plans name."""

    def _prepared(self, model: Any) -> Executor:
        from neural_compressor.tensorflow.executor import Executor

        model = self.ready(model)
        if self._executor is None or self._executor.model is not model:
            self._executor = Executor(model)
        return self._executor

    def _first_inputs(self, model: Any) -> Any:
        from neural_compressor.tensorflow.batches import inputs_of, samples_in

        if self.info.get("example_inputs") is not None:
            return self.info["example_inputs"]
        for batch in self.info.get("dataloader") or ():
            inputs = inputs_of(batch, model)
            self.info.setdefault("batch_size", samples_in(inputs))
            return inputs
        return None

    def _by_data(self, prepared: Any, loader: Iterable[Any], samples: int) -> None:
        from neural_compressor.tensorflow.batches import feeds, run, samples_in

        seen = 0
        for inputs in feeds(prepared, loader, samples):
            run(prepared, inputs)
            seen += samples_in(inputs)
        self.samples_seen[samples] = seen


def _by_function(prepared: Any, function: Callable[[Any], Any]) -> None:
    with calibrating(function, "calib_func", lambda: 0):
        function(prepared)
