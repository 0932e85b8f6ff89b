"""Integers whose ranges are taken while the model runs."""
