"""Paths by which programs written for the 3.x API import what algorithms need."""
