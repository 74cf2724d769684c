"""Run a module that ends with whoever started it: `python -m transload_engine.demo.child MODULE`.

The kernel sends SIGTERM when the parent has gone, however that ended.
"""

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
"""`prctl(2)`."""


def main() -> None:
    """Be the module that the arguments name, with the arguments behind it."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
