"""Run a command in a fresh process and print what it cost as one JSON document: python benchmarks/process.py COMMAND [ARGUMENT ...].

Standard library only: the peak that the kernel reports for a process counts the one that started it, so that one must be small.
"""

import json
import os
import subprocess
import sys
import time


def cost(command: list[str]) -> dict[str, float]:
    """Run a command to its end.

    Args:
        command: the program and its arguments.

    Returns:
        peak_bytes (the largest resident memory), cpu_seconds (user and system), first_output_s and total_s (wall time until it printed
        something on standard output, and until it ended).
    """
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        first = time.perf_counter() - start
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        total = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command}: exit status {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "peak_bytes": usage.ru_maxrss * unit,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "first_output_s": first,
        "total_s": total,
    }


if __name__ == "__main__":
    print(json.dumps(cost(sys.argv[1:])))
