"""Train, quantize, export and check what a recipe describes: python -m tftq.run RECIPE [key=value ...] [--resume]."""

import sys

from tftq.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
