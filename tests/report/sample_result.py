"""A tuning result with everything a report can show, hostile names included."""

from __future__ import annotations

import math
import random

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import OpScheme, Plan, TensorScheme
from neural_compressor.tuning.result import Measurement, Trial, TuningResult

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
INT8 = OpScheme(weight=TensorScheme(dtype("int8")), mode="weight_only")


def sample_result(trials: int = 9, *, hostile: str = "", met: bool = True) -> TuningResult:
    rng = random.Random(0)
    baseline = Measurement(0.9833, 4.21, 1_310_000)
    rows = []
    for number in range(1, trials + 1):
        loss = 0.034 * 0.8**number + rng.uniform(0, 0.006) + (0 if met else 0.011)
        measured = Measurement(
            0.9833 * (1 - loss), 1.4 + 0.06 * number + rng.uniform(0, 0.2), 1_310_000 - round(965_000 * 0.93**number)
        )
        stage = f"fall back to float: features.{number}.conv" if number > 1 else f"default{hostile}"
        passed = met and loss <= 0.01
        rows.append(
            Trial(
                number,
                stage,
                Plan({(f"op{place}{hostile}", "Conv2d"): INT8 for place in range(number, 12)}),
                measured,
                loss,
                passed,
                3.0 - 0.1 * number,
                0.81,
                number < 3,
            )
        )
    error = f"EvaluationError: eval_func returned nan; return one finite number{hostile}"
    rows.append(Trial(trials + 1, "all dynamic", Plan({}), None, math.inf, False, 0.0, 0.2, error=error))
    passing = [row for row in rows if row.passed]
    best = max(passing, key=lambda row: row.score) if passing else min(rows, key=lambda row: row.loss)
    word = "met: trial" if met else "not met: best is trial"
    ops = [
        OpRecord(
            "features.0.conv" + hostile,
            "Conv2d",
            "int8",
            "uint8",
            "static",
            "onednn.qconv",
            False,
            "",
            42.3,
            38.1,
            9408,
            0.25,
            0.5,
        ),
        OpRecord(
            "features.1.conv",
            "Conv2d",
            "int4",
            "uint4",
            "static",
            "simulated",
            True,
            "no 4-bit kernel",
            18.9,
            15.2,
            4704,
        ),
        OpRecord("features.2.conv", "Conv2d", "fp32", reason="taken back to float: without it the promise is kept"),
        OpRecord(
            "encoder.layers.0.attention.out_proj",
            "Linear",
            "int8",
            "uint8",
            "dynamic",
            "x86",
            False,
            "",
            44.0,
            None,
            65_536,
        ),
        OpRecord("norm", "LayerNorm", "fp32", reason="the framework YAML has no quantized LayerNorm"),
        OpRecord("head", "Linear", "bf16", "bf16", reason="excluded by op_name_dict rule 'head'"),
        OpRecord("identity", "Linear", "int8", "uint8", "static", "onednn.qlinear", False, "", math.inf, 51.0, 1024),
    ]
    return TuningResult(
        baseline=baseline,
        trials=rows,
        best=best,
        met=met,
        verdict=f"promise {word} {best.number} loses {100 * best.loss:.2f}% where 1.0% is allowed",
        criterion="at most 1.0% lost (relative, higher is better)",
        ops=ops,
        title=f"digits CNN{hostile}",
        seconds=12.34,
        metadata={
            "study": "digits-CNN-0123456789ab",
            "storage": "/home/me/nc_workspace/journal.log",
            "best_model": "/home/me/nc_workspace/digits-CNN-0123456789ab/best_model",
            "strategy": "BasicStrategy",
            "objective": {"performance": 1.0},
            "relative": True,
            "tolerable_loss": 0.01,
            "higher_is_better": True,
            "promise": 0.9833 * 0.99,
            "stopped": "the promise is kept",
            "notes": [f"one op could not be fused{hostile}"] if hostile else [],
            "batch_size": 32,
            "configuration": {
                "approach": "static",
                "op_name_dict": {f"head{hostile}": {"weight": {"dtype": ["fp32"]}}},
            },
            "loading": f"model = quantization.load('out{hostile}', float_model)\n",
            "environment": {
                "date": "2026-01-31 12:00 UTC",
                "machine": {"CPU": f"Some CPU{hostile}", "instructions": "AVX2, VNNI", "threads": "4 usable"},
                "versions": {"python": "3.11.9", "numpy": "2.0.0"},
            },
        },
    )
