"""CPU time of a process tree, read from /proc. Linux only."""

import pathlib
import time

PROC = pathlib.Path("/proc")


def tree(root: int) -> list[int]:
    """`root` and all its descendants that live now."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # ended between the listing and the reading
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def cpu_s(root: int) -> float:
    """User and system CPU seconds of a process tree since its start.

    The processes are found in /proc; each one's time is its POSIX CPU clock, which is utime +
    stime of /proc/PID/stat in nanoseconds instead of clock ticks of 10 ms, dead threads included.
    A child that has ended is not counted, and a process that ends during the call raises OSError.
    """
    # CPUCLOCK_SCHED of a process: linux/posix-timers.h:make_process_cpuclock.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in tree(root))
