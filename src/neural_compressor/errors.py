"""The exceptions of the toolkit: each message says what is wrong, where, and what would be right."""

from __future__ import annotations


class NeuralCompressorError(Exception):
    """Base of every error the toolkit raises on purpose."""


class ConfigError(NeuralCompressorError, ValueError):
    """The user asked for something that does not exist or does not make sense."""


class CapabilityError(ConfigError):
    """The user asked for something the framework YAML does not admit."""


class NothingToQuantizeError(ConfigError):
    """A configuration finds nothing in this model to do what it says on; where others are tried too, it is passed over."""


class CalibrationError(NeuralCompressorError):
    """Calibration data is missing, does not fit the model, or yields NaN/Inf."""


class EvaluationError(NeuralCompressorError):
    """The evaluation raised or returned something that is not a finite number."""


class QuantizationError(NeuralCompressorError):
    """A tensor or an op cannot be quantized as the plan says."""


class WorkspaceError(NeuralCompressorError):
    """The workspace cannot be written, or its journal cannot be read."""


class FormatError(NeuralCompressorError):
    """A model file is missing, truncated, corrupted or of another format."""


class MissingDependencyError(NeuralCompressorError, ImportError):
    """An optional framework is needed and not installed."""
