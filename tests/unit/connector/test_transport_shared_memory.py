"""Pools in `/dev/shm`: seen by others, gone with their owner, and never promised but missing."""

import contextlib
import errno
import fcntl
import hashlib
import multiprocessing
import os
import secrets
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from support.transport_world import GROUP, LARGE, PATIENCE_S, client, num_descriptors, soon
from transload_connector.transports.holder_server import HolderServer
from transload_connector.transports.shared_memory import (
    FOLDER,
    PREFIX,
    NoSharedMemory,
    create_pool,
    map_pool,
    remove_stale,
)

NUM_BYTES = 10_000


@pytest.fixture
def engine() -> Iterator[str]:
    """A name that no other test has; nothing may be left of it."""
    name = f"tests {secrets.token_hex(8)}"
    yield name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    assert list(FOLDER.glob(f"{PREFIX}{digest}*")) == []


def _read(pipe: Connection, name: str) -> None:
    memory = map_pool(name, NUM_BYTES)
    pipe.send((bytes(memory[-3:]), memory.readonly))
    pipe.recv()
    pipe.send(bytes(memory[-3:]))


def _hold(pipe: Connection, engine: str) -> None:
    with create_pool(engine, "g1", "kv", NUM_BYTES) as pool:
        pipe.send(pool.name)
        with contextlib.suppress(EOFError):
            pipe.recv()


def test_another_process_reads_the_same_bytes(engine: str) -> None:
    context = multiprocessing.get_context("spawn")
    with create_pool(engine, "g1", "kv", NUM_BYTES) as pool:
        assert bytes(pool.memory) == bytes(NUM_BYTES)
        assert (FOLDER / pool.name).stat().st_mode & 0o777 == 0o600
        pipe, theirs = context.Pipe()
        process = context.Process(target=_read, args=(theirs, pool.name))
        pool.memory[-3:] = b"yes"
        process.start()
        assert pipe.poll(PATIENCE_S)
        assert pipe.recv() == (b"yes", True)
        pool.memory[-3:] = b"no!"
        pipe.send(None)
        assert pipe.poll(PATIENCE_S)
        assert pipe.recv() == b"no!"
        process.join(PATIENCE_S)
        pipe.close()
        theirs.close()
        assert process.exitcode == 0
        assert (FOLDER / pool.name).exists(), "the end of a reader removes nothing"


def test_nothing_is_left_of_a_pool_that_is_closed(engine: str) -> None:
    before = num_descriptors()
    with create_pool(engine, "g1", "kv", NUM_BYTES) as pool:
        mapped = map_pool(pool.name, NUM_BYTES)
        pool.memory[:1] = b"x"
        assert remove_stale(engine) == [], "its creator lives"
    assert not (FOLDER / pool.name).exists()
    assert bytes(mapped[:1]) == b"x", "who has it mapped keeps it"
    del mapped
    assert num_descriptors() == before
    assert pool.name not in Path("/proc/self/maps").read_text()


def test_a_pool_that_nobody_has_any_more_is_gone(engine: str) -> None:
    before = num_descriptors()
    pool = create_pool(engine, "g1", "kv", NUM_BYTES)
    name, memory = pool.name, pool.memory
    del pool
    assert not (FOLDER / name).exists()
    memory[:1] = b"x"
    del memory
    assert num_descriptors() == before


def test_a_pool_without_its_name_is_as_good_to_its_maker(engine: str) -> None:
    with create_pool(engine, "g1", "kv", NUM_BYTES) as pool:
        pool.unlink()
        pool.unlink()
        with pytest.raises(NoSharedMemory, match="No such file"):
            map_pool(pool.name, NUM_BYTES)
        pool.memory[:1] = b"x"


def test_what_a_killed_engine_has_left_is_removed_at_its_next_start(engine: str) -> None:
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(theirs, engine))
    process.start()
    theirs.close()
    assert pipe.poll(PATIENCE_S)
    name = pipe.recv()
    assert remove_stale(engine) == [], "it lives"
    process.kill()
    process.join(PATIENCE_S)
    pipe.close()
    assert (FOLDER / name).exists()
    with pytest.raises(NoSharedMemory, match="the engine that made it is gone"):
        map_pool(name, NUM_BYTES)
    assert remove_stale(f"{engine} too") == [], "another engine's"
    with create_pool(engine, "g2", "kv", NUM_BYTES):
        assert remove_stale(engine) == [name]


def test_a_pool_outlives_another_start_that_looks_before_it_is_locked(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = fcntl.flock, list[str]()

    def start_another(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        removed.extend(remove_stale(engine))
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", start_another)
    with create_pool(engine, "g1", "kv", NUM_BYTES) as pool:
        assert removed == [pool.name]
        assert remove_stale(engine) == []
        assert len(map_pool(pool.name, NUM_BYTES)) == NUM_BYTES


def test_what_cannot_be_removed_is_told(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    left = _left_behind(engine)
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError, match=left.name):
            remove_stale(engine)
    assert remove_stale(engine) == [left.name]


def test_what_another_user_has_left_is_not_touched(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, user = _left_behind(engine), os.geteuid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: user + 1)
        assert remove_stale(engine) == []
    assert remove_stale(engine) == [left.name]


def _left_behind(engine: str) -> Path:
    """A file as a killed engine leaves it."""
    digest = hashlib.sha256(engine.encode()).hexdigest()[:12]
    path = FOLDER / f"{PREFIX}{digest}-0-0"
    path.touch(0o600)
    return path


def test_more_than_there_is_fails_at_once_and_says_how_much(engine: str) -> None:
    before = num_descriptors()
    with pytest.raises(NoSharedMemory, match=r"'kv' needs \d+ bytes, \d+ are free"):
        create_pool(engine, "g1", "kv", 1 << 44)
    assert num_descriptors() == before


def test_one_start_makes_a_pool_once(engine: str) -> None:
    with (
        create_pool(engine, "g1", "kv", NUM_BYTES) as pool,
        create_pool(engine, "g1", "other", NUM_BYTES),
        pytest.raises(NoSharedMemory, match="there already"),
    ):
        create_pool(engine, "g1", "kv", NUM_BYTES)
    assert not (FOLDER / pool.name).exists()


def test_both_ends_of_a_read_let_go_of_their_memory(engine: str) -> None:
    num_bytes = LARGE.pools[0].num_bytes
    with (
        create_pool(engine, "g1", "kv", num_bytes) as ours,
        create_pool(engine, "g2", "kv", num_bytes) as theirs,
    ):
        ours.memory[-4:] = b"last"
        server = HolderServer(
            LARGE,
            {"kv": ours.memory},
            name="P",
            generation="g1",
            on_freed=lambda freed: None,
        )
        with server, client(LARGE) as reader:
            server.grant("h", "l", {0: range(64)}, 256)
            handoff = soon(reader.open(server.address, "h", "l", "r"))
            sink = [theirs.memory[num_bytes // 64 :]]
            reading = reader.read(handoff, GROUP, [(1, 63)], sink, form="block")
            assert soon(reading) == num_bytes // 64 * 63
            assert bytes(theirs.memory[-4:]) == b"last"
            sink.clear()
            theirs.close()
        ours.close()
        assert reading.done(), "which is still there"


@pytest.mark.parametrize(
    "name",
    [
        "transload-nothing",
        "../etc/passwd",
        "transload-/../../etc/passwd",
        "psm_other",
        "transload-\0",
    ],
)
def test_what_is_no_pool_is_not_mapped(name: str) -> None:
    with pytest.raises(NoSharedMemory):
        map_pool(name, NUM_BYTES)


def test_a_pool_of_another_size_is_not_mapped(engine: str) -> None:
    with (
        create_pool(engine, "g1", "kv", NUM_BYTES) as pool,
        pytest.raises(NoSharedMemory, match="expected 9999 bytes"),
    ):
        map_pool(pool.name, NUM_BYTES - 1)


def test_a_pool_that_others_may_have_is_not_mapped(engine: str) -> None:
    before = num_descriptors()
    with create_pool(engine, "g1", "kv", NUM_BYTES) as pool:
        (FOLDER / pool.name).chmod(0o640)
        during = num_descriptors()
        with pytest.raises(
            NoSharedMemory, match=r"expected -rw------- of user \d+, got -rw-r-----"
        ):
            map_pool(pool.name, NUM_BYTES)
        assert num_descriptors() == during
    assert num_descriptors() == before


def test_what_is_no_file_is_not_waited_for(engine: str) -> None:
    pipe = FOLDER / f"{PREFIX}{secrets.token_hex(8)}"
    os.mkfifo(pipe, 0o600)
    try:
        with pytest.raises(NoSharedMemory, match="got prw-------"):
            map_pool(pipe.name, NUM_BYTES)
    finally:
        pipe.unlink()
    assert engine


def test_a_link_is_not_followed(engine: str, tmp_path: Path) -> None:
    target = tmp_path / "secret"
    target.write_bytes(bytes(NUM_BYTES))
    link = FOLDER / f"{PREFIX}{secrets.token_hex(8)}"
    link.symlink_to(target)
    try:
        with pytest.raises(NoSharedMemory):
            map_pool(link.name, NUM_BYTES)
    finally:
        link.unlink()
    assert engine
