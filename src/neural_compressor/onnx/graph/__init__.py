"""ONNX graphs: what is asked of them, found in them and changed in them."""
