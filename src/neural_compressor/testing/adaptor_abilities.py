"""The part of the contract of an adaptor that is about optional abilities, and what the tests of both parts share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from neural_compressor.adaptor import Adaptor
from neural_compressor.schemes import Plan
from neural_compressor.testing.options import default_tune_cfg, float_choice, offers, quantizable


class AbilityContract:
    """What an adaptor that offers an ability must do, and one that does not."""

    def make_adaptor(self) -> Adaptor:
        """A fresh adaptor."""
        raise NotImplementedError

    def make_model(self) -> Any:
        """A small float model with at least two quantizable ops, the same at each call."""
        raise NotImplementedError

    def make_dataloader(self) -> Iterable[Any]:
        """Batches that fit the model."""
        raise NotImplementedError

    def make_metric(self) -> Any:
        """A metric with ``update(predictions, labels)`` and ``result()``."""
        raise NotImplementedError

    def to_numpy(self, predictions: Any) -> np.ndarray[Any, Any]:
        """What the model returns as one array."""
        return np.asarray(predictions)

    # -- what the tests share ---------------------------------------------------------------------------------------

    def predictions(self, adaptor: Adaptor, model: Any) -> np.ndarray[Any, Any]:
        """Predictions over all batches."""
        batches = [self.to_numpy(adaptor.predict(model, inputs)) for inputs, _ in self.make_dataloader()]
        return np.concatenate(batches).astype(np.float64)

    def quantized(self, adaptor: Adaptor, model: Any, tune_cfg: Mapping[str, Any] | None = None) -> Any:
        """The model quantized by ``tune_cfg``, by default each op with the first of its configs."""
        if tune_cfg is None:
            tune_cfg = default_tune_cfg(adaptor.query_fw_capability(model))
        return adaptor.quantize(tune_cfg, model, self.make_dataloader())

    # -- optional abilities -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "ability",
        [
            "train",
            "convert",
            "quantize_input",
            "inspect_tensor",
            "set_tensor",
            "convert_bf16",
            "op_errors",
            "op_gains",
        ],
    )
    def test_ability_that_is_not_offered_says_so(self, ability: str) -> None:
        adaptor = self.make_adaptor()
        if not offered(adaptor, ability):
            taken: dict[str, tuple[Any, ...]] = {
                "train": ([], {}, None),
                "convert": ("a", "b"),
                "quantize_input": (),
                "convert_bf16": (),
                "op_gains": (),
            }
            arguments = taken.get(ability, ({},))
            with pytest.raises(NotImplementedError, match=ability):
                getattr(adaptor, ability)(self.make_model(), *arguments)

    def test_op_errors_are_those_of_the_quantized_ops(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        if not offered(adaptor, "op_errors"):
            return
        capability = adaptor.query_fw_capability(model)
        plan = Plan.from_tune_cfg(default_tune_cfg(capability))
        before = self.predictions(adaptor, model)
        errors = adaptor.op_errors(plan, model, self.make_dataloader())
        quantized = {key for key, scheme in plan.items() if not scheme.is_float}
        assert errors
        assert set(errors) <= quantized
        assert all(0 <= error < 0.5 for error in errors.values())
        assert any(errors.values())
        assert adaptor.op_errors(plan, model, self.make_dataloader()) == errors
        in_float = {key: float_choice("fp32", configs) for key, configs in capability["opwise"].items()}
        assert adaptor.op_errors(Plan.from_tune_cfg({"op": in_float}), model, self.make_dataloader()) == {}
        np.testing.assert_array_equal(self.predictions(adaptor, model), before)

    def test_op_gains_are_of_ops_of_the_model(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        if not offered(adaptor, "op_gains"):
            return
        before = self.predictions(adaptor, model)
        gains = adaptor.op_gains(model, self.make_dataloader())
        assert gains
        assert set(gains) <= set(adaptor.query_fw_capability(model)["opwise"])
        assert all(np.isfinite(gain) and gain >= 0 for gain in gains.values())
        assert any(gains.values())
        assert adaptor.op_gains(model, self.make_dataloader()) == gains
        np.testing.assert_array_equal(self.predictions(adaptor, model), before)

    def test_inspect_tensor_shows_weights_and_activations(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        if not offered(adaptor, "inspect_tensor"):
            return
        name = next(iter(quantizable(adaptor.query_fw_capability(model))))[0]
        found = adaptor.inspect_tensor(model, self.make_dataloader(), [name], (1, 2), "all")
        assert set(found["weight"]) == {name}
        assert [set(activations) for activations in found["activation"]] == [{name}, {name}]
        arrays = [*found["weight"][name].values(), *found["activation"][1][name].values()]
        assert all(isinstance(array, np.ndarray) and array.size for array in arrays)
        assert len(arrays) >= 2

    def test_set_tensor_changes_a_copy(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        if not (offered(adaptor, "set_tensor") and offered(adaptor, "inspect_tensor")):
            return
        weights = adaptor.inspect_tensor(model, (), inspect_type="weight")["weight"]
        op, tensor, array = next((op, t, a) for op, tensors in weights.items() for t, a in tensors.items())
        changed = adaptor.set_tensor(model, {f"{op}.{tensor}": array + 1})
        after = adaptor.inspect_tensor(changed, (), inspect_type="weight")["weight"][op][tensor]
        np.testing.assert_array_equal(after, array + 1)
        assert adaptor.fingerprint(changed) != adaptor.fingerprint(model) == adaptor.fingerprint(self.make_model())

    def test_convert_bf16_stays_close(self) -> None:
        adaptor, model = self.make_adaptor(), self.make_model()
        adaptor.bf16_ops = [k for k, c in adaptor.query_fw_capability(model)["opwise"].items() if offers(c, "bf16")]
        if not (offered(adaptor, "convert_bf16") and adaptor.bf16_ops):
            return
        reference = self.predictions(adaptor, model)
        actual = self.predictions(adaptor, adaptor.convert_bf16(model))
        assert 0 < np.linalg.norm(actual - reference) < 0.05 * np.linalg.norm(reference)


def offered(adaptor: Adaptor, ability: str) -> bool:
    """Whether the adaptor implements an optional ability."""
    return getattr(type(adaptor), ability) is not getattr(Adaptor, ability)
