"""`python -m datapipe`: the `datapipe` command, for launchers that start modules (`torchrun -m datapipe train ...`)."""

import sys

from datapipe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
