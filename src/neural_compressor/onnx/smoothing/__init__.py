"""Scales moved from activations to weights."""
