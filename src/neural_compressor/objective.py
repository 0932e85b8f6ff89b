"""Objectives of tuning by the names of the 2.x API; see :mod:`neural_compressor.tuning.objective`."""

from neural_compressor.config.criteria import OBJECTIVES, Objective, objectives

__all__ = ["OBJECTIVES", "Objective", "objectives"]
