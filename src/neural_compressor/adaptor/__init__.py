"""The contract between the tuning core and a framework, and the framework YAML that says what it can run."""

from neural_compressor.adaptor.capability import float_config, get_optype_wise_ability, op_configs
from neural_compressor.adaptor.contract import ADAPTORS, Adaptor, adaptor_for
from neural_compressor.adaptor.query import QueryBackendCapability
from neural_compressor.adaptor.records import OpRecord

__all__ = [
    "ADAPTORS",
    "Adaptor",
    "OpRecord",
    "QueryBackendCapability",
    "adaptor_for",
    "float_config",
    "get_optype_wise_ability",
    "op_configs",
]
