"""Facts that several parts share: formats, stages, inputs, metadata, summaries, units. Standard library only."""
