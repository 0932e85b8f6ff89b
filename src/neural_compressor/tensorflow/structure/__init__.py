"""The graph of a Keras model: traced flat, brought into the form that is quantized, its ops and their weights."""
