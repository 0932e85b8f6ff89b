"""Methods that quantize ops: static, dynamic and weight-only."""
