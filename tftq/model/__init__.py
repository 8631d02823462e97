"""The network: tensors only."""
