"""ONNX: the integer graph and the gate it must pass."""
