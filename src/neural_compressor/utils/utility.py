"""Names that programs written for the 2.x API import from here."""

from neural_compressor.common.utils import LazyImport, dump_elapsed_time

__all__ = ["LazyImport", "dump_elapsed_time"]
