"""Agents: policies that hold a position from bar to bar, trained by reinforcement learning."""
