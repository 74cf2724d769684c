"""Pools in memory that other processes of this host can map, by name.

A pool is a file in `/dev/shm`, owner only. Its name carries the engine and its generation, and its
creator holds a lock on it as long as it lives: what a dead engine left behind is told apart by the
lock, which the kernel lets go whatever the engine died of, and is removed at the next start.

Python's own `multiprocessing.shared_memory` is not used: up to 3.12 its resource tracker removes a
segment when any process that has mapped it ends, and a file that is made larger than what is free
fails with SIGBUS at its first touch, not with an error.
"""

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

FOLDER: Final = Path("/dev/shm")
PREFIX: Final = "transload-"
_DIGITS: Final = 12
"""Of the digest that stands for a name: names of engines may have any characters, and length."""


class NoSharedMemory(Exception):
    """The host does not have the memory, or no such pool.

    Attributes:
        name: Of the file.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{FOLDER / name}: {reason}")
        self.name = name


class SharedPool:
    """One pool's memory, mapped. `memory` must not be used, nor views of it kept, after `close`.

    Attributes:
        name: Of the file, for other processes of this host.
        memory: All of its bytes; writable.
    """

    def __init__(self, name: str, descriptor: int, num_bytes: int, *, is_owner: bool) -> None:
        self.name = name
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, num_bytes)
        self._is_owner = is_owner
        self.memory = memoryview(self._map)

    def close(self) -> None:
        """Unmap it; its creator removes its name as well, so nobody finds it any more.

        Raises:
            BufferError: Views of `memory` are in use.
        """
        if self._descriptor < 0:
            return
        if self._is_owner:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(FOLDER / self.name)
            self._is_owner = False
        self.memory.release()
        self._map.close()
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def create_pool(engine: str, generation: str, pool: str, num_bytes: int) -> SharedPool:
    """Make a pool; its memory is reserved when this returns, and zero.

    Args:
        engine: Whose it is.
        generation: Another one after each start of the engine.
        pool: Its id in the descriptor.
        num_bytes: Above 0.

    Raises:
        NoSharedMemory: There is not so much free, or this start of the engine has made it already.
    """
    name = f"{_beginning(engine)}{_digest(generation)}-{_digest(pool)}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(FOLDER / name, flags, 0o600)
    except FileExistsError:
        raise NoSharedMemory(name, f"pool {pool!r} of this generation is there already") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(descriptor, 0, num_bytes)
        return SharedPool(name, descriptor, num_bytes, is_owner=True)
    except OSError as error:
        os.close(descriptor)
        os.unlink(FOLDER / name)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise NoSharedMemory(name, _lack(num_bytes, pool)) from None


def open_pool(name: str, num_bytes: int) -> SharedPool:
    """Map a pool that another process has made.

    Args:
        name: As its creator told it.
        num_bytes: Likewise.

    Raises:
        NoSharedMemory: There is no such pool on this host, it is another's, or of another size.
    """
    if not name.startswith(PREFIX) or "/" in name:
        raise NoSharedMemory(name, f"expected a name that begins with {PREFIX}")
    try:
        descriptor = os.open(FOLDER / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise NoSharedMemory(name, str(error.strerror)) from None
    found = os.fstat(descriptor)
    if found.st_size != num_bytes or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise NoSharedMemory(
            name, f"expected {num_bytes} bytes of this user, got {found.st_size} of {found.st_uid}"
        )
    return SharedPool(name, descriptor, num_bytes, is_owner=False)


def remove_stale(engine: str) -> list[str]:
    """Remove what starts of an engine that are over have left; to be called at each start.

    Returns:
        The names of the files.
    """
    removed = []
    for path in sorted(FOLDER.glob(f"{_beginning(engine)}*")):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
                removed.append(path.name)
            finally:
                os.close(descriptor)
    return removed


def _beginning(engine: str) -> str:
    return f"{PREFIX}{_digest(engine)}-"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _lack(num_bytes: int, pool: str) -> str:
    free = os.statvfs(FOLDER)
    return (
        f"pool {pool!r} needs {num_bytes} bytes, {free.f_bavail * free.f_frsize} are free; "
        "make /dev/shm larger (in containers: --shm-size, or an emptyDir of medium Memory)"
    )
