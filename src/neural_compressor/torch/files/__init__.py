"""Models on disk: quantized checkpoints, weights streamed from safetensors, Hugging Face folders, GGUF, ONNX."""
