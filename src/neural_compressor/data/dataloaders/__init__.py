"""Loaders by the paths that existing programs import them from; see :mod:`neural_compressor.data.loader`."""
