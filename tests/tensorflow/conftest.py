"""Tests of Keras and TensorFlow models run in an environment of their own: ``make test-tensorflow``."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("tensorflow") and find_spec("keras") else ["test_*.py"]
