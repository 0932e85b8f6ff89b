"""The log, as a module whose functions write to it."""

from neural_compressor.common.log import Logger, logger

__all__ = ["Logger", "critical", "debug", "error", "exception", "info", "log", "logger", "warning"]

critical, debug, error, exception = logger.critical, logger.debug, logger.error, logger.exception
info, log, warning = logger.info, logger.log, logger.warning
