"""The bridge: tinynet as Open Neural Compressor sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tinynet
from neural_compressor.adaptor import Adaptor, OpRecord, QueryBackendCapability, op_configs
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, Plan, float_op, sqnr_db
from tinynet.calibration import calibrated, insert_fake_quants, run_samples
from tinynet.folding import fold_scales
from tinynet.inspection import inspect_network, with_tensors, write_tensors
from tinynet.network import Array, Network
from tinynet.quantized import QuantizedNetwork, quantize_layers
from tinynet.storage import layer_arrays, load_network, save_network, stored_arrays

QUANTIZABLE = ("Dense", "Conv1D")


class TinyNetQuery(QueryBackendCapability):
    """Reads tinynet.yaml."""

    def config_file(self) -> Path:
        return Path(tinynet.__file__).with_name("tinynet.yaml")

    def installed_version(self) -> str:
        return tinynet.__version__


class TinyNetAdaptor(Adaptor):
    """Quantizes :class:`tinynet.Network`. The kernels compute in float on quantized values: simulated."""

    def __init__(self, framework_specific_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(framework_specific_info)
        self.query_handler = TinyNetQuery(overlay=self.info.get("framework_yaml"))
        self._source: Network | None = None
        self.pre_optimized_model = Network()

    @classmethod
    def handles(cls, model: Any) -> bool:
        return isinstance(model, Network)

    def query_fw_capability(self, model: Network) -> dict[str, Any]:
        self._optimize(model)
        self.example = next((inputs for inputs, _ in self.info.get("dataloader") or ()), None)
        details = {key: op_configs(self.query_handler, key[1]) for key in self._ops()}
        return {"opwise": details, "optypewise": self.get_optype_wise_ability(details)}

    def quantize(
        self,
        tune_cfg: Mapping[str, Any],
        model: Network,
        dataloader: Iterable[Any] | None = None,
        q_func: Callable[[Network], Any] | None = None,
    ) -> QuantizedNetwork:
        self._optimize(model)
        self.info["batch_size"] = getattr(dataloader, "batch_size", 1)
        self.tuning_cfg_to_fw(tune_cfg)
        plan = Plan.from_tune_cfg(tune_cfg)
        self._check(plan)
        watched = {name: op.activation for (name, _), op in plan.items() if op.mode == "static" and op.activation}
        # One: a FakeQuant before each dispatched op. Two: run the float network on samples.
        calib_model = insert_fake_quants(self.pre_optimized_model, watched)
        if q_func is not None:
            q_func(calib_model)
        elif watched and run_samples(calib_model, dataloader, self.quantize_config["calib_iteration"]) == 0:
            raise CalibrationError("the calibration data is empty; static quantization needs at least one batch")
        # Three: Quantize and DeQuantize in their place. The ops in self.bf16_ops are left to convert_bf16.
        plan = plan.with_ops({key: float_op() for key in self.bf16_ops})
        return self.convert_bf16(quantize_layers(self.pre_optimized_model, plan, calibrated(calib_model, watched)))

    def convert_bf16(self, model: Network) -> QuantizedNetwork:
        """Round the inputs and weights of the ops in ``self.bf16_ops`` to bf16."""
        ops = {key: float_op("bf16") for key in self.bf16_ops}
        converted = quantize_layers(model, Plan(ops), {})
        converted.plan = getattr(model, "plan", Plan()).with_ops(ops)
        return converted

    def predict(self, model: Network, inputs: Any) -> Array:
        return model.predict_on_batch(inputs)

    def save(self, model: QuantizedNetwork, path: str | Path) -> None:
        save_network(model, Path(path))

    def load(self, path: str | Path, model: Network) -> QuantizedNetwork:
        return load_network(Path(path), fold_scales(model))

    def model_size(self, model: Network) -> int:
        return sum(array.nbytes for array in stored_arrays(model).values())

    def summary(self, model: QuantizedNetwork) -> list[OpRecord]:
        return [self._record(key, model) for key in self._ops()]

    def _record(self, key: OpKey, model: QuantizedNetwork) -> OpRecord:
        layer, original = model[key[0]], self.pre_optimized_model[key[0]]
        size = sum(array.nbytes for array in layer_arrays(layer).values())
        scheme = model.plan.get(key)
        if scheme is None:
            return OpRecord(*key, "fp32", reason="not in the tuning configuration", size_bytes=size)
        activation = scheme.activation.dtype.name if scheme.activation else "fp32"
        if scheme.is_float:
            reason = f"the tuning configuration keeps it in {scheme.precision}"
            return OpRecord(*key, scheme.precision, activation, reason=reason, size_bytes=size)
        error = sqnr_db(original.weight, np.asarray(layer.weight)) if scheme.weight else None
        kernel, why = "float on quantized values", "TinyNet has no integer kernels"
        return OpRecord(*key, scheme.precision, activation, scheme.mode, kernel, True, why, error, size_bytes=size)

    def fingerprint(self, model: Network) -> str:
        digest = hashlib.sha256(repr([(layer.name, layer.op_type) for layer in model]).encode())
        for name, array in stored_arrays(model).items():
            digest.update(f"{name} {array.shape} {array.dtype}".encode() + array.tobytes())
        return digest.hexdigest()[:16]

    def inspect_tensor(
        self,
        model: Network,
        dataloader: Iterable[Any],
        op_list: Sequence[Any] = (),
        iteration_list: Sequence[int] = (1,),
        inspect_type: str = "activation",
        save_to_disk: bool = False,
    ) -> dict[str, Any]:
        found = inspect_network(model, dataloader, op_list, iteration_list, inspect_type)
        if save_to_disk:
            write_tensors(found, Path(self.info.get("workspace") or ".") / "inspect_saved")
        return found

    def set_tensor(self, model: Network, tensor_dict: Mapping[str, Any]) -> Network:
        return with_tensors(model, tensor_dict)

    def _optimize(self, model: Network) -> None:
        if self._source is not model:
            self._source, self.pre_optimized_model = model, fold_scales(model)

    def _check(self, plan: Plan) -> None:
        known = self._ops()
        for name, op_type in plan:
            if (name, op_type) not in known:
                near = close_matches(name, [known_name for known_name, _ in known])
                raise ConfigError(f"the network has no {op_type} called {name!r} to quantize; {near}")

    def _ops(self) -> list[OpKey]:
        return [(layer.name, layer.op_type) for layer in self.pre_optimized_model if layer.op_type in QUANTIZABLE]
