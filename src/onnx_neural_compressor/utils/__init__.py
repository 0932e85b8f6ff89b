"""Paths that programs written for earlier versions import from."""
