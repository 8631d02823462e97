"""The jobs behind the commands: run, quantize, plan, predict, compare."""
