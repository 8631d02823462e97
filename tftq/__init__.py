"""tftq: quantization-aware training for the Temporal Fusion Transformer."""
