"""Language models evaluated by the package ``lm-eval``, which is the extra ``lm-eval`` of this one."""

from neural_compressor.evaluation.lm_eval.arguments import LMEvalParser
from neural_compressor.evaluation.lm_eval.evaluate import evaluate

__all__ = ["LMEvalParser", "evaluate"]
