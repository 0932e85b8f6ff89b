"""Paths by which programs written for the 3.x API import what weight-only algorithms need."""
