"""LiteRT files: converted from float models, quantized by plans with the field's quantizer, run and compared."""
