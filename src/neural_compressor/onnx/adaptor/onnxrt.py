"""ONNX Runtime behind the adaptor contract.

Nothing here imports onnx before there is a model to work on: whoever asks whether a model is one gets an answer first.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neural_compressor.adaptor.contract import Adaptor
from neural_compressor.adaptor.inspection import save_inspected
from neural_compressor.adaptor.records import OpRecord, with_time_shares
from neural_compressor.config.process_options import options
from neural_compressor.config.recipes import with_recipes
from neural_compressor.errors import CalibrationError, MissingDependencyError, WorkspaceError
from neural_compressor.schemes import OpKey, Pass, Plan

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from neural_compressor.onnx.adaptor.float_model import FloatModel
    from neural_compressor.onnx.executor import CalibrationData, RunOptions
    from neural_compressor.onnx.runtime.session import Runner

logger = logging.getLogger("neural_compressor")

FILE = "model.onnx"
"""What a saved model is called in its folder."""
_TYPES = {("onnx", "ModelProto"), ("onnx_ir", "Model")}
_STATIC, _ANY = ("static",), ("static", "dynamic", "weight_only")
RECIPES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("smooth_quant", "smooth_quant_args", "fast_bias_correction", "weight_correction"), _STATIC),
    **dict.fromkeys(("add_qdq_pair_to_weight", "dedicated_qdq_pair", "optypes_to_exclude_output_quant"), _STATIC),
    "layer_wise_quant": ("weight_only",),
    "target_cpu": ("static", "dynamic"),
    "graph_optimization_level": _ANY,
    "gemm_to_matmul": _ANY,  # a Gemm is quantized as it is, so there is nothing to do either way
}
"""The recipes that are applied, with the modes of quantization they are about."""


class ONNXRTAdaptor(Adaptor):
    """Quantizes ONNX models: paths of ``.onnx`` files, ``onnx.ModelProto``, ``onnx_ir.Model``. Results are ModelProtos.

    ``framework_specific_info`` may hold ``dataloader`` (calibration batches), ``example_inputs``, ``framework_yaml`` (laid
    over the built-in capability), ``workspace``, ``backend`` (an execution provider, or its name of the 2.x API),
    ``device``, ``quant_format`` ("QDQ", "QOperator"), ``recipes``, ``approach``, ``threads`` of sessions (0: one a
    core), and ``graph_only``: the quantized model need not run here, so that its provider may be missing.
    """

    settings = frozenset({"device", "backend", "quant_format"})

    def __init__(self, framework_specific_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(framework_specific_info)
        try:
            from neural_compressor.onnx.runtime.capability import OnnxQuery
            from neural_compressor.onnx.runtime.providers import choose_target
            from neural_compressor.onnx.runtime.session import Runner
        except ImportError as error:
            raise MissingDependencyError(
                f"{error}; install what ONNX models need with: pip install 'open-neural-compressor[onnx]'"
            ) from error
        info = self.info
        self.target = choose_target(
            info.get("backend"), device=info.get("device"), graph_only=bool(info.get("graph_only"))
        )
        self.quant_format: str | None = info.get("quant_format") if info.get("quant_format") != "default" else None
        self.query_handler = OnnxQuery(self.target.provider.name, self.quant_format, info.get("framework_yaml"))
        self._runner: Runner = Runner(self.target.sessions, info.get("threads", 0))
        self._floats: FloatModel | None = None
        self._feed: Mapping[str, Any] | None = None

    @classmethod
    def handles(cls, model: Any) -> bool:
        if isinstance(model, str | Path):
            return str(model).lower().endswith(".onnx")
        kind = type(model)
        return (kind.__module__.split(".", maxsplit=1)[0], kind.__name__) in _TYPES

    def ready(self, model: Any) -> onnx.ModelProto:
        """``model`` as an ``onnx.ModelProto`` with its weights in memory."""
        import onnx

        from neural_compressor.onnx.files.model_file import as_proto, read_model

        return model if isinstance(model, onnx.ModelProto) else as_proto(read_model(model))

    def nodes(self, model: Any) -> list[Any]:
        return list(self.ready(model).graph.node)

    def query_fw_capability(self, model: Any) -> dict[str, Any]:
        floats = self._float_model(model)
        self._feed = floats.first_feed(self.info)
        # A latency on another provider would say nothing.
        self.example = self._feed if self.target.runs_here else None
        found = floats.capability(self._passes)
        races = self.info.get("approach") in ("dynamic", "auto")
        found.check_finite()
        return {
            "opwise": {key: list(configs) for key, configs in found.opwise.items()},
            "optypewise": self.get_optype_wise_ability(found.opwise),
            "blocks": found.blocks(),
            "skipped": dict(found.skipped),
            "recipes": RECIPES,
            "passes": self._passes,
            "quantizable_types": sorted(self.query_handler.quantizable_types()),
            "in_float_unless_named": {
                mode: found.in_float_unless_named(mode, raced=None if races else {}) for mode in found.providers
            },
            "adds_in_pairs": found.adds_in_pairs(),
        }

    def quantize(
        self,
        tune_cfg: Mapping[str, Any],
        model: Any,
        dataloader: Iterable[Any] | None = None,
        q_func: Callable[[Any], Any] | None = None,
    ) -> onnx.ModelProto:
        from neural_compressor.onnx.files.model_file import as_proto

        executor, plan = self._float_model(model).executor, self._plan(tune_cfg)
        self.tuning_cfg_to_fw(tune_cfg)
        options = self._run_options(plan, dataloader, q_func)
        new = executor.run(plan, options)
        for data in options.data.values():
            if data.samples is not None and data.samples.count:
                self.samples_seen[plan.calib_sampling_size] = data.samples.count
        self._warn_if_saturating(new)
        return as_proto(new)

    def predict(self, model: Any, inputs: Any) -> Any:
        from neural_compressor.onnx.runtime.batches import Recorder

        return model(inputs) if isinstance(model, Recorder) else self._runner.predict(model, inputs)

    @contextmanager
    def on_one_thread(self, models: Sequence[Any]) -> Iterator[bool]:
        """In sessions of their own, which are given up at the end; not on another provider than the CPU."""
        from neural_compressor.onnx.runtime.session import Runner

        usual = self._runner
        if usual.providers != ("CPUExecutionProvider",):
            yield False
            return
        self._runner = Runner(usual.providers, threads=1, kept=len(models))
        try:
            yield True
        finally:
            self._runner = usual

    def batch_inputs(self, model: Any, batch: Any) -> tuple[Any, int]:
        return self._runner.batch_inputs(model, batch)

    def hand_over(self, model: Any, folder: Path) -> str:
        """The path of its file, which one in memory is written to."""
        if isinstance(model, str | Path):
            return str(Path(model).absolute())
        self.save(model, folder / FILE)
        return str(folder / FILE)

    def output_sqnr(self, model: Any) -> float | None:
        """On the first batch of the calibration data; not for models whose weights take over a gibibyte."""
        from neural_compressor.onnx.adaptor.op_records import exactness
        from neural_compressor.onnx.files.model_file import ONE_FILE_BYTES

        if self._feed is None or self._floats is None or not self.target.runs_here:
            return None
        source = self._floats.model
        if model is source or self.model_size(source) > ONE_FILE_BYTES:
            return None
        return exactness(*(self._runner.predict(each, self._feed) for each in (source, model)))

    def op_errors(self, plan: Plan, model: Any, dataloader: Iterable[Any] | None = None) -> dict[OpKey, float]:
        """Each op alone; biases are not corrected meanwhile, which would take up the error of ops before it."""
        from neural_compressor.onnx.adaptor.op_records import own_errors
        from neural_compressor.onnx.executor import one_by_one
        from neural_compressor.onnx.files.quantization_record import read_record

        executor, whole = self._float_model(model).executor, self._plan(plan.to_tune_cfg())
        quantized = executor.run(one_by_one(whole), self._run_options(whole, dataloader, None))
        record = read_record(quantized)
        original = None if record is None else executor.before_rounding(record.origin)
        data = self._calibration_data(plan.calib_sampling_size, dataloader, None).samples
        if data is None:
            raise CalibrationError("op_errors runs the model on data: pass a dataloader")
        ops = {key[0]: key for key, scheme in plan.items() if not scheme.is_float}
        if original is None or not ops:
            return {}
        found = own_errors(quantized, original, set(ops), data, self.target.sessions)
        return {ops[name]: error for name, error in found.items()}

    def load_snippet(self, path: str) -> str:
        file = path if path.lower().endswith(".onnx") else str(Path(path) / FILE)
        return (
            "import onnxruntime\n\n"
            f"session = onnxruntime.InferenceSession({file!r}, providers=[{self.target.provider.name!r}])\n"
            '# inputs: {"name of an input": array}\n'
            "outputs = session.run(None, inputs)\n"
        )

    def save(self, model: Any, path: str | Path) -> None:
        """Write the model as ``model.onnx`` into the folder ``path``, or as that file where it ends in ``.onnx``."""
        from neural_compressor.onnx.files.model_file import read_model, write_model

        path = Path(path)
        if path.suffix.lower() == ".onnx":
            write_model(read_model(model), path)
            return
        if path.is_dir() and any(path.iterdir()) and not (path / FILE).exists():
            raise WorkspaceError(f"{path} exists and holds no quantized model: choose another folder, or empty it")
        write_model(read_model(model), path / FILE)

    def load(self, path: str | Path, model: Any) -> onnx.ModelProto:
        from neural_compressor.onnx.files.model_file import read_model

        path = Path(path)
        found = read_model(path if path.suffix.lower() == ".onnx" else path / FILE)
        self._warn_if_saturating(found)
        return self.ready(found)

    def model_size(self, model: Any) -> int:
        from neural_compressor.onnx.files.model_file import read_model, stored_bytes

        return stored_bytes(read_model(model))

    def summary(self, model: Any) -> list[OpRecord]:
        from neural_compressor.onnx.adaptor.op_records import op_records
        from neural_compressor.onnx.files.model_file import read_model
        from neural_compressor.onnx.files.quantization_record import read_record

        quantized = read_model(model)
        record = read_record(quantized)
        if record is None:
            return []
        original = None if self._floats is None else self._floats.executor.before_rounding(record.origin)
        found = op_records(quantized, record, original, self._feed, self.target)
        before = {} if self._floats is None else self._time_shares(self._floats.model)
        return with_time_shares(found, before, self._time_shares(model))

    def _time_shares(self, model: Any) -> dict[str, float]:
        """On the first batch of the calibration data; not for models whose weights take over 256 MiB."""
        from neural_compressor.onnx.adaptor.op_records import op_time_shares
        from neural_compressor.onnx.graph.normalise import normalised
        from neural_compressor.onnx.runtime.profiling import MOST_BYTES

        if self._feed is None or not self.target.runs_here or self.model_size(model) > MOST_BYTES:
            return {}
        return op_time_shares(normalised(model), self._feed, self.target)

    def describe(self, model: Any) -> str:
        kinds = Counter(node.op_type for node in self.ready(model).graph.node)
        return f"ONNX model of {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}"

    def fingerprint(self, model: Any) -> str:
        from neural_compressor.onnx.files.model_file import fingerprint, read_model

        return fingerprint(read_model(model))

    def inspect_tensor(
        self,
        model: Any,
        dataloader: Iterable[Any],
        op_list: Sequence[Any] = (),
        iteration_list: Sequence[int] = (1,),
        inspect_type: str = "activation",
        save_to_disk: bool = False,
    ) -> dict[str, Any]:
        from neural_compressor.onnx.adaptor.inspection import inspect_tensors
        from neural_compressor.onnx.graph.normalise import normalised

        found = inspect_tensors(
            normalised(model), dataloader, op_list, iteration_list, inspect_type, self.target.sessions
        )
        if save_to_disk:
            save_inspected(found, options.folder(self.info.get("workspace")))
        return found

    def set_tensor(self, model: Any, tensor_dict: Mapping[str, Any]) -> onnx.ModelProto:
        from neural_compressor.onnx.adaptor.inspection import set_tensors
        from neural_compressor.onnx.files.model_file import as_proto
        from neural_compressor.onnx.graph.normalise import normalised

        return as_proto(set_tensors(normalised(model), tensor_dict))

    def convert_bf16(self, model: Any) -> onnx.ModelProto:
        from neural_compressor.onnx.files.model_file import as_proto
        from neural_compressor.onnx.graph.normalise import normalised
        from neural_compressor.onnx.passes.half import half_precision

        names = {name for name, _ in self.bf16_ops}
        return as_proto(half_precision(normalised(model), "bf16", names, self.target.provider.name))

    def _warn_if_saturating(self, quantized: ir.Model) -> None:
        from neural_compressor.onnx.runtime.providers import CPU
        from neural_compressor.onnx.runtime.saturation import warn_if_saturating

        if self.target.provider is CPU:
            warn_if_saturating(quantized)

    # -- preparation ------------------------------------------------------------------------------------------------

    @property
    def _passes(self) -> tuple[Pass, ...]:
        """The passes of a plan that asks for none.

        Without a ``quant_format`` weights alone are quantized for the kernels the runtime has for them, whatever form
        static quantization has.
        """
        from neural_compressor.onnx.executor import DEFAULT_PASSES
        from neural_compressor.onnx.runtime.capability import runs_in

        level = (self.info.get("recipes") or {}).get("graph_optimization_level")
        operators = self.quant_format is None and runs_in(self.target.provider.name, "QOperator", "weight_only")
        weights = (Pass("weight_layout", {"quant_format": "QOperator"}),) if operators else ()
        return tuple(with_recipes(Plan(passes=DEFAULT_PASSES), {"graph_optimization_level": level}).passes) + weights

    def _plan(self, tune_cfg: Mapping[str, Any]) -> Plan:
        """``tune_cfg`` as a plan: one that names no passes has those that are usual, and what its recipes say."""
        plan = Plan.from_tune_cfg(tune_cfg)
        plan = plan if plan.passes else replace(plan, passes=self._passes)
        return with_recipes(plan, tune_cfg.get("recipe_cfgs") or {})

    def _float_model(self, model: Any) -> FloatModel:
        """What runs plans on the float model; made once, as long as it is the same."""
        if self._floats is None or self._floats.model is not model:
            from neural_compressor.onnx.adaptor.float_model import FloatModel

            self._floats = FloatModel.read(model, self.target, self.query_handler)
        return self._floats

    def _run_options(
        self, plan: Plan, dataloader: Iterable[Any] | None, q_func: Callable[[Any], Any] | None
    ) -> RunOptions:
        assert self._floats is not None
        return self._floats.run_options(plan, self._calibration_data(plan.calib_sampling_size, dataloader, q_func))

    def _calibration_data(
        self, size: int, dataloader: Iterable[Any] | None, q_func: Callable[[Any], Any] | None
    ) -> CalibrationData:
        assert self._floats is not None
        return self._floats.calibration_data(size, self.data_or_own(dataloader), q_func, self._runner.predict)
