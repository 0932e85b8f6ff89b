"""How a float model is built: its ops, layers and blocks, and what was seen of its runs."""
