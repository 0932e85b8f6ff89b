"""A toy framework in NumPy: a network is a list of layers."""

from tinynet.network import Conv1D, DataLoader, Dense, Flatten, Layer, Network, Relu, Scale

__version__ = "0.1.0"

__all__ = ["Conv1D", "DataLoader", "Dense", "Flatten", "Layer", "Network", "Relu", "Scale"]
