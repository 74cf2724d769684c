"""The command `transload abi` as `python -m transload_abi`."""

import sys

from transload_abi.cli import main

if __name__ == "__main__":
    sys.exit(main())
