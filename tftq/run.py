"""Train, quantize, export and check what a recipe says: python -m tftq.run RECIPE [key=value ...] [--resume]."""

import sys

from tftq.jobs.run import main

if __name__ == "__main__":
    sys.exit(main())
