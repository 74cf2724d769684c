"""What a test may leave behind: nothing. Counts TCP sockets and asyncio tasks of this process."""

import asyncio
import contextlib
import os
from pathlib import Path


def sockets() -> set[str]:
    """Inodes of all sockets of this process."""
    own = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            name = os.readlink(fd)
            if name.startswith("socket:["):
                own.add(name[len("socket:[") : -1])
    return own


def new_tcp_sockets(before: set[str]) -> dict[str, str]:
    """TCP sockets that are not among those: inode to `local remote state`, from /proc."""
    new = sockets() - before
    found = {}
    # The tables list the whole network namespace, so they are read only if there is a reason.
    for table in ("tcp", "tcp6") if new else ():
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in new:
                found[fields[9]] = f"{fields[1]} {fields[2]} state {fields[3]}"
    return found


def other_tasks() -> set[asyncio.Task[object]]:
    """All tasks of the running loop but the caller's."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
