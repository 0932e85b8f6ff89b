"""Paths by which programs written for the 2.x API import what is in :mod:`neural_compressor.torch`."""
