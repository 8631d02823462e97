"""Parquet or CSV to windows: bars, segments, features, roles, splits and scalings."""
