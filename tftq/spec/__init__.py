"""What several parts agree on: formats, stages, inputs, metadata, summaries, units. Standard library only."""
