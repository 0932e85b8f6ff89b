"""Quantization of ONNX models for ONNX Runtime."""

from contextlib import suppress

from neural_compressor.onnx.deferred_import import deferred

# onnx_ir imports sympy for arithmetic on symbolic shapes, which is not done here: a quarter of a second and 33 MiB.
# Where onnx_ir is not installed, the modules that need it say so.
with suppress(ImportError), deferred("sympy", "onnx_ir._symbolic_shapes"):
    import onnx_ir as _ir  # noqa: F401
