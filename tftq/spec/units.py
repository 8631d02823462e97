"""Units of memory in bytes: MiB for what a process holds and for budgets, MB for sizes of files and figures beside them."""

MIB = 2**20
MB = 1_000_000
