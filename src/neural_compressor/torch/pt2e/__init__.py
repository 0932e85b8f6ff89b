"""PyTorch 2 export: exported graphs quantized by torchao's flow, compiled by Inductor."""
