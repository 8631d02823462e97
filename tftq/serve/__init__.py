"""Serving of exported models: sessions, forecasts, streams, without torch."""
