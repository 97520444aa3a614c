"""Run the `datapipe` command as `python -m datapipe`, for launchers that start modules (`torchrun -m datapipe train ...`)."""

import sys

from datapipe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
