"""The commands `transload abi` and `transload wire`, as `python -m transload_abi [wire]`."""

import sys

from transload_abi.cli import main
from transload_abi.wire.cli import main as main_of_wire

if __name__ == "__main__":
    is_wire = sys.argv[1:2] == ["wire"]
    sys.exit(main_of_wire(sys.argv[2:]) if is_wire else main())
