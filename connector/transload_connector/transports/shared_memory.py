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
import stat
import weakref
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from transload_abi.wire.limits import FILE_PREFIX

FOLDER: Final = Path("/dev/shm")
PREFIX: Final = FILE_PREFIX
_SAFELY: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""No links, and no waiting for the other end of what is no file."""

_MODE: Final = "-rw-------"
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
    """A pool's memory, made here; its name goes with `unlink`, `close` or this process's end.

    Attributes:
        name: Of the file, for other processes of this host.
        memory: All of its bytes; writable. Mapped as long as there are views of it.
    """

    def __init__(self, name: str, descriptor: int, num_bytes: int) -> None:
        self.name = name
        # A map has a descriptor of its own, and with it the lock.
        self._map = mmap.mmap(descriptor, num_bytes)
        os.close(descriptor)
        self.memory = memoryview(self._map)
        self.unlink = weakref.finalize(self, _unlink, name)
        """Remove the name, so nobody finds it any more."""

    def close(self) -> None:
        """Unmap it and remove its name.

        Raises:
            BufferError: Views of `memory` are in use; the name is gone none the less.
        """
        self.unlink()
        self.memory.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _unlink(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(FOLDER / name)


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
    try:
        descriptor = _locked(name)
    except FileExistsError:
        raise NoSharedMemory(name, f"pool {pool!r} of this generation is there already") from None
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
        return SharedPool(name, descriptor, num_bytes)
    except OSError as error:
        os.close(descriptor)
        os.unlink(FOLDER / name)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise NoSharedMemory(name, _lack(num_bytes, pool)) from None


def _locked(name: str) -> int:
    """Make a file that has a lock on it.

    Before the lock it looks like a dead engine's: whoever starts under the same name meanwhile
    removes it, and it is made again.
    """
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(FOLDER / name, flags, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)


def map_pool(name: str, num_bytes: int) -> memoryview:
    """Map a pool that another process has made, to be read alone.

    Args:
        name: As its creator told it.
        num_bytes: Likewise.

    Returns:
        Its bytes; unmapped when nobody has them any more.

    Raises:
        NoSharedMemory: There is no such pool on this host, others than this user may have it, it is
            of another size, or who made it is gone.
    """
    if not name.startswith(PREFIX) or "/" in name or "\0" in name:
        raise NoSharedMemory(name, f"expected a name that begins with {PREFIX}")
    try:
        descriptor = os.open(FOLDER / name, os.O_RDONLY | _SAFELY)
    except OSError as error:
        raise NoSharedMemory(name, str(error.strerror)) from None
    try:
        _check_file(name, descriptor, num_bytes)
        return memoryview(mmap.mmap(descriptor, num_bytes, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)


def _check_file(name: str, descriptor: int, num_bytes: int) -> None:
    found = os.fstat(descriptor)
    mode, user = stat.filemode(found.st_mode), os.geteuid()
    if mode != _MODE or found.st_uid != user:
        raise NoSharedMemory(
            name, f"expected {_MODE} of user {user}, got {mode} of user {found.st_uid}"
        )
    if found.st_size != num_bytes:
        raise NoSharedMemory(name, f"expected {num_bytes} bytes, got {found.st_size}")
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        raise NoSharedMemory(name, "the engine that made it is gone")


def remove_stale(engine: str) -> list[str]:
    """Remove what starts of an engine that are over have left; to be called at each start.

    Another user's engine may have the same name: its files are that user's to remove.

    Returns:
        The names of the files.

    Raises:
        OSError: One may not be opened or removed, so its memory stays taken.
    """
    removed = []
    for path in sorted(FOLDER.glob(f"{_beginning(engine)}*")):
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            if path.lstat().st_uid != os.geteuid():
                continue
            descriptor = os.open(path, os.O_RDWR | _SAFELY)
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
