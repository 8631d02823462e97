"""Losses and metrics, and forecasts to measure them on."""
