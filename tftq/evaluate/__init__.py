"""Losses and metrics of forecasts, and the loops that compute them."""
