"""Names that programs written for the 2.x API import from here."""

from neural_compressor.common.log import logger

__all__ = ["logger"]
