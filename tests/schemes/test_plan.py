"""Plans as plain data."""

from __future__ import annotations

import json

from neural_compressor.schemes import OpScheme, Pass, Plan, TensorScheme, float_op

INT8 = OpScheme.from_dict(
    {"weight": {"dtype": "int8", "granularity": "per_channel"}, "activation": {"dtype": "uint8", "scheme": "asym"}}
)
CONV, FC = ("conv", "Conv2d"), ("fc", "Linear")


def test_a_plan_is_a_mapping() -> None:
    plan = Plan({CONV: INT8, FC: float_op()})
    assert list(plan) == [CONV, FC]
    assert plan[CONV] is INT8
    assert len(plan) == 2


def test_a_plan_comes_back_from_json_and_from_a_tune_cfg() -> None:
    plan = Plan({CONV: INT8, FC: float_op("bf16")}, 50, [Pass("smooth", {"alpha": 0.5})])
    for back in (Plan.from_json(plan.to_json()), Plan.from_tune_cfg(plan.to_tune_cfg())):
        assert back == plan
        assert hash(back) == hash(plan)
    json.loads(plan.to_json())


def test_the_order_of_ops_does_not_matter() -> None:
    a, b = Plan({CONV: INT8, FC: float_op()}), Plan({FC: float_op(), CONV: INT8})
    assert a == b
    assert a.digest == b.digest


def test_what_differs_is_told_apart() -> None:
    plan = Plan({CONV: INT8})
    others = [Plan({CONV: float_op()}), Plan({CONV: INT8}, 7), Plan({CONV: INT8}, passes=[Pass("a")]), Plan({FC: INT8})]
    assert len({plan, *others}) == 5


def test_ops_can_be_changed_in_a_copy() -> None:
    plan = Plan({CONV: INT8, FC: INT8}, 30)
    changed = plan.with_ops({FC: float_op()})
    assert plan[FC] == INT8
    assert changed[FC] == float_op()
    assert (changed[CONV], changed.calib_sampling_size) == (INT8, 30)


def test_a_hand_written_tune_cfg_is_read() -> None:
    cfg = {
        "op": {
            ("conv", "Conv2d"): {
                "weight": {"dtype": "int4", "algorithm": "minmax", "granularity": "per_channel", "scheme": "sym"},
                "activation": {
                    "dtype": "uint4",
                    "quant_mode": "static",
                    "algorithm": "kl",
                    "granularity": "per_tensor",
                    "scheme": "sym",
                },
            }
        }
    }
    scheme = Plan.from_tune_cfg(cfg)[CONV]
    assert scheme.mode == "static"
    assert scheme.weight == TensorScheme.from_dict({"dtype": "int4", "granularity": "per_channel"})
    assert scheme.activation is not None
    assert (scheme.activation.dtype.name, scheme.activation.algorithm) == ("uint4", "kl")
