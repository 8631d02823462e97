"""Quantization: parameters, observers, fake quantization, calibration and its schedule."""
