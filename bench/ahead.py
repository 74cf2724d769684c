"""Runs a command ahead of whatever else a shared machine does: what latencies need to mean much.

    python bench/ahead.py python bench/flood.py

Its processes are scheduled round robin in real time (sched(7), SCHED_RR): whoever of them wakes up
takes the core from any other program at once. Needs the right to do that. On a machine without
other work it changes little.
"""

import os
import sys


def main() -> int:
    """Become the command."""
    if len(sys.argv) < 2:
        print("expected a command", file=sys.stderr)
        return 2
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
