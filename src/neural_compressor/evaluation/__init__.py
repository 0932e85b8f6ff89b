"""Evaluation of language models by packages of others."""
