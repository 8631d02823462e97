"""Training: the loop, the optimizer, the schedule, validation and checkpoints."""
