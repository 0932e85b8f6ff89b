"""Apache MXNet as Open Neural Compressor sees it: static int8 of Gluon networks on a CPU."""

from neural_compressor.errors import MissingDependencyError

try:
    import mxnet  # noqa: F401
except (ImportError, AttributeError) as error:  # with NumPy 1.24 or newer it is an AttributeError
    raise MissingDependencyError(
        f"MXNet cannot be imported: {error}. It needs NumPy below 1.24: pip install 'mxnet==1.9.1' 'numpy<1.24'"
    ) from error

from neural_compressor_mxnet.adaptor import MXNetAdaptor, MXNetQuery
from neural_compressor_mxnet.quantized import QuantizedBlock

__all__ = ["MXNetAdaptor", "MXNetQuery", "QuantizedBlock"]
