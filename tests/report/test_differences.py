"""What a trial changed is told shortly, and from the plan that is nearest."""

from dataclasses import replace

import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.report.differences import changes, differences
from neural_compressor.schemes import Method, OpScheme, Pass, Plan, TensorScheme, float_op
from neural_compressor.tuning.result import Trial

ACTIVATION = TensorScheme(dtype("uint8"), symmetric=False)
INT8 = OpScheme(weight=TensorScheme(dtype("int8")), activation=ACTIVATION, mode="static")
NAMES = [("a", "Conv2d"), ("b", "Conv2d"), ("c", "Linear"), ("d", "Linear"), ("e", "Linear")]
BASE = Plan(dict.fromkeys(NAMES, INT8), passes=[Pass("smooth", {"alpha": 0.4})])


def found_by(*method):
    return OpScheme(weight=INT8.weight, mode="weight_only", method=Method(*method))


GPTQ = BASE.with_ops({NAMES[2]: found_by("gptq", {"percdamp": 0.1})})


def trial(number, plan):
    return Trial(number, "", plan, None, 0.0, True, 1.0, 1.0)


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (BASE, []),
        (BASE.with_ops({NAMES[0]: float_op()}), ["a: static int8 → fp32"]),
        (BASE.with_ops(dict.fromkeys(NAMES, float_op())), ["a, b, c and 2 more: static int8 → fp32"]),
        (
            BASE.with_ops({NAMES[1]: replace(INT8, activation=replace(ACTIVATION, algorithm="kl"))}),
            ["b: activation.algorithm: minmax → kl"],
        ),
        (replace(BASE, calib_sampling_size=7), ["calibration samples: 100 → 7"]),
        (replace(BASE, passes=[Pass("smooth", {"alpha": 0.6})]), ["smooth.alpha: 0.4 → 0.6"]),
        (replace(BASE, passes=[Pass("smooth")]), ["smooth.alpha: 0.4 → not set"]),
    ],
    ids=["nothing", "one op", "many ops", "a detail", "samples", "a value", "a value that went"],
)
def test_changes(new, told):
    assert changes(BASE, new) == told


def test_each_trial_is_compared_with_the_one_that_is_nearest():
    alone = [BASE.with_ops({name: float_op()}) for name in NAMES[:3]]
    grown = alone[0].with_ops({NAMES[1]: float_op(), NAMES[2]: float_op()})
    more = grown.with_ops({NAMES[3]: float_op()})
    told = differences([trial(n, plan) for n, plan in enumerate([BASE, *alone, grown, more, more], 1)])
    assert told == [
        "",
        "from 1: a: static int8 → fp32",
        "from 1: b: static int8 → fp32",
        "from 1: c: static int8 → fp32",
        "from 4: a, b: static int8 → fp32",
        "from 5: d: static int8 → fp32",
        "from 6: nothing",
    ]


def test_another_method_is_told_without_options_that_the_two_do_not_share():
    assert changes(GPTQ, GPTQ.with_ops({NAMES[2]: found_by("gptq")})) == ["c: method.options.percdamp: 0.1 → not set"]
    assert changes(GPTQ, GPTQ.with_ops({NAMES[2]: found_by("rtn")})) == ["c: method: gptq → rtn"]
