"""Weights in few bits, activations in float."""
