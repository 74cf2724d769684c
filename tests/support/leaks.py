"""What a test may leave behind: nothing. Counts TCP sockets and asyncio tasks of this process."""

import asyncio
import contextlib
import os
from pathlib import Path


def tcp_sockets() -> dict[str, str]:
    """This process's TCP sockets: inode to `local remote state`, from /proc."""
    own = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            name = os.readlink(fd)
            if name.startswith("socket:["):
                own.add(name[len("socket:[") : -1])
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in own:
                found[fields[9]] = f"{fields[1]} {fields[2]} state {fields[3]}"
    return found


def other_tasks() -> set[asyncio.Task[object]]:
    """All tasks of the running loop but the caller's."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
