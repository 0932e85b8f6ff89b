"""What is collected where: modules that import TensorFlow are for its own environment (``make test-tensorflow``)."""

from importlib.util import find_spec

_HAS_TENSORFLOW = find_spec("tensorflow") is not None and find_spec("keras") is not None

collect_ignore_glob = [] if _HAS_TENSORFLOW else ["src/neural_compressor/tensorflow/*", "tests/tensorflow/test_*.py"]


def pytest_report_header():
    return (
        None
        if _HAS_TENSORFLOW
        else "tests/tensorflow: not collected, TensorFlow is not installed (make test-tensorflow)"
    )
