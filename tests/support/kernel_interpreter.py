"""Every light call by Triton's interpreter: a program of its own, for the mode is the process's.

    TRITON_INTERPRET=1 python -m support.kernel_interpreter [family ...]

Says how many calls were made; what differs from the reference ends it with a traceback.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from support.kernel_cases import MOVES, assert_same, run
from support.kernel_numbers import NUMBERS


def main(names: Sequence[str]) -> None:
    """Run families by name, or all of them."""
    families = {each.__name__: each for each in (*MOVES, *NUMBERS)}
    for name in names or families:
        started, calls = time.monotonic(), 0
        for case in families[name]():
            if case.is_light:
                assert_same(case, run(case, "triton"), run(case, "reference"))
                calls += 1
        sys.stdout.write(f"{name}: {calls} calls, {time.monotonic() - started:.1f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
