"""Either side dies, hangs or starts anew: named errors, never wrong bytes, and no leak."""

import signal
import socket
import threading
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack

import pytest

from support.transport_process import ReaderProcess, holder_process
from support.transport_proxy import Proxy
from support.transport_world import (
    GROUP,
    LARGE,
    OVERWRITTEN,
    Holder,
    client,
    num_descriptors,
    open_,
    pair,
    shrink_buffers,
    soon,
    threads,
    until,
)
from transload_abi.wire.deadlines import HolderDeadlines, ReaderDeadlines, Terms
from transload_connector.transports import holder_connections
from transload_connector.transports.errors import (
    ClientClosed,
    LeaseGone,
    PeerFault,
    PeerRefused,
    PeerUnreachable,
    TimedOut,
)
from transload_connector.transports.reader_client import ReaderClient
from transload_connector.transports.reader_requests import OpenHandoff

BLOCKS = list(range(64))
BLOCK_BYTES = LARGE.pools[0].block_bytes
IMPATIENT = ReaderDeadlines(opening_s=0.4, answer_s=0.4, stall_s=0.4, read_s=20.0, idle_s=20.0)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No frame of `LARGE` is with the kernel at once."""
    shrink_buffers(monkeypatch)


def open_by(proxy: Proxy, reader: ReaderClient) -> OpenHandoff:
    """The handoff, in a session whose data streams are there: a block was read."""
    handoff = soon(reader.open(proxy.address, "h", "l-h", "r"))
    sink = bytearray(BLOCK_BYTES)
    soon(reader.read(handoff, GROUP, [(1, 1)], [memoryview(sink)], form="block"))
    return handoff


def read_all(reader: ReaderClient, handoff: OpenHandoff) -> tuple[Future[int], bytearray]:
    """All but the null block: 15.75 MiB."""
    sink = bytearray(63 * BLOCK_BYTES)
    return reader.read(handoff, GROUP, [(1, 63)], [memoryview(sink)], form="block"), sink


def test_a_holder_that_is_killed_in_the_middle_of_a_read_is_unreachable() -> None:
    with holder_process() as holder, Proxy(holder.address) as proxy, client(LARGE) as reader:
        holder.grant("h", BLOCKS)
        handoff = open_by(proxy, reader)
        before = proxy.num_bytes
        proxy.pause()
        reading, _ = read_all(reader, handoff)
        until(lambda: proxy.num_bytes > before + 1000, "the read has begun")
        holder.kill()
        proxy.resume()
        with pytest.raises(PeerUnreachable, match="read of group 'attention' of handoff 'h'"):
            soon(reading)
        with pytest.raises(PeerUnreachable):
            soon(reader.confirm(handoff))


def test_a_holder_that_hangs_is_given_up_in_time() -> None:
    with holder_process() as holder, client(LARGE, deadlines=IMPATIENT) as reader:
        holder.grant("h", BLOCKS)
        handoff = soon(reader.open(holder.address, "h", "l-h", "r"))
        holder.signal(signal.SIGSTOP)
        reading, _ = read_all(reader, handoff)
        with pytest.raises(TimedOut, match="read of group"):
            soon(reading)
        with pytest.raises((TimedOut, PeerUnreachable)):
            soon(reader.confirm(handoff))
        with pytest.raises(TimedOut, match="open of handoff 'other'"):
            soon(reader.open(holder.address, "other", "l", "r"))


def test_a_holder_that_starts_anew_on_its_port_is_found_and_old_handoffs_are_not() -> None:
    with holder_process() as old, client(LARGE) as reader:
        old.grant("h", BLOCKS)
        handoff = soon(reader.open(old.address, "h", "l-h", "r", generation="g1"))
        old.kill()
        with holder_process(port=old.address[1], generation="g2") as new:
            new.grant("h", BLOCKS)
            with pytest.raises(PeerUnreachable):
                soon(reader.renew(handoff))
            with pytest.raises(PeerRefused, match="not at its start 'g1'"):
                soon(reader.open(new.address, "h", "l-h", "r", generation="g1"))
            again = soon(reader.open(new.address, "h", "l-h", "r", generation="g2"))
            reading, _ = read_all(reader, again)
            assert soon(reading) == 63 * BLOCK_BYTES


def test_an_open_in_a_session_that_its_holder_has_ended_is_tried_once_more() -> None:
    with pair() as (holder, reader), Proxy(holder.address) as proxy:
        holder.grant("h1", [1])
        holder.grant("h2", [2])
        first = soon(reader.open(proxy.address, "h1", "l-h1", "r"))
        until(lambda: holder.server.stats().num_connections == 3, "all streams are there")
        soon(reader.confirm(first))
        before = proxy.num_bytes
        proxy.pause()
        opening = reader.open(proxy.address, "h2", "l-h2", "r")
        until(lambda: proxy.num_bytes > before, "the answer is under way")
        proxy.cut(0)
        proxy.resume()
        assert soon(opening).num_tokens == 4


@pytest.mark.usefixtures("small_buffers")
def test_the_blocks_of_a_reader_that_was_killed_are_freed_by_the_lease() -> None:
    holder = Holder(LARGE, terms=Terms(term_s=2.0, max_hold_s=2.0))
    process = ReaderProcess()
    with holder.server, Proxy(holder.address) as proxy:
        holder.grant("h", BLOCKS)
        process.open(proxy.address, "h")
        proxy.pause()
        process.read((1, 63))
        until(lambda: holder.server.stats().num_copied, "a frame is under way")
        process.kill()
        assert holder.wait_freed()[0].end == "expired"
        until(lambda: not holder.server.stats().num_connections, "its connections are closed")


@pytest.mark.usefixtures("small_buffers")
def test_a_lease_that_ends_in_the_middle_of_a_read_brings_no_bytes() -> None:
    holder = Holder(LARGE, terms=Terms(term_s=1.5, max_hold_s=1.5))
    holder.overwrites = True
    with holder.server, client(LARGE) as reader, Proxy(holder.address) as proxy:
        holder.grant("h", BLOCKS)
        handoff = open_by(proxy, reader)
        proxy.pause()
        reading, sink = read_all(reader, handoff)
        until(lambda: holder.server.stats().num_copied, "a frame is under way")
        until(lambda: not holder.server.stats().num_held, "the lease is over")
        assert not holder.freed, "nor is what is being copied"
        proxy.resume()
        with pytest.raises(LeaseGone):
            soon(reading)
        holder.wait_freed()
        assert OVERWRITTEN * 251 not in sink
        with pytest.raises(LeaseGone):
            soon(reader.confirm(handoff))


def test_a_spoiled_byte_is_found_by_a_checksum() -> None:
    with pair(LARGE) as (holder, reader), Proxy(holder.address) as proxy:
        holder.grant("h", BLOCKS)
        handoff = open_by(proxy, reader)
        sink = bytearray(BLOCK_BYTES)
        # Amid one of the proxy's pieces: a word of the control stream may come between two.
        proxy.spoil(BLOCK_BYTES // 2 + BLOCK_BYTES // 16)
        reading = reader.read(
            handoff, GROUP, [(7, 1)], [memoryview(sink)], form="block", checksums=True
        )
        with pytest.raises(PeerFault, match="checksum"):
            soon(reading)
        again = reader.read(
            handoff, GROUP, [(7, 1)], [memoryview(sink)], form="block", checksums=True
        )
        assert soon(again) == BLOCK_BYTES
        assert sink == holder.memory[7 * BLOCK_BYTES : 8 * BLOCK_BYTES]


def test_a_read_ends_with_its_data_stream_and_the_next_one_has_another() -> None:
    with pair(LARGE, num_streams=1) as (holder, reader), Proxy(holder.address) as proxy:
        holder.grant("h", BLOCKS)
        handoff = open_by(proxy, reader)
        proxy.pause()
        reading, _ = read_all(reader, handoff)
        until(lambda: holder.server.stats().num_bytes_sent > BLOCK_BYTES, "the read has begun")
        proxy.cut(1)
        proxy.resume()
        with pytest.raises(PeerUnreachable, match="data stream 1"):
            soon(reading)
        again, sink = read_all(reader, handoff)
        assert soon(again) == len(sink)
        assert sink == holder.memory[BLOCK_BYTES:]
        until(lambda: holder.server.stats().num_connections == 2, "there is another stream")


def test_a_cancelled_read_gives_its_memory_back_and_the_session_goes_on() -> None:
    with pair(LARGE) as (holder, reader), Proxy(holder.address) as proxy:
        holder.grant("h", BLOCKS)
        handoff = open_by(proxy, reader)
        proxy.pause()
        reading, sink = read_all(reader, handoff)
        until(lambda: holder.server.stats().num_bytes_sent > BLOCK_BYTES, "the read has begun")
        assert reading.cancel()
        with pytest.raises(CancelledError):
            soon(reading)
        sink[:] = bytes(len(sink))
        proxy.resume()
        again, other = read_all(reader, handoff)
        assert soon(again) == len(other)
        assert not any(sink)


def test_a_slow_reader_is_given_up_and_costs_no_memory() -> None:
    waits = HolderDeadlines(opening_s=5.0, stall_s=0.4, idle_s=20.0)
    with pair(LARGE, deadlines=waits) as (holder, reader), Proxy(holder.address) as proxy:
        holder.grant("h", BLOCKS)
        handoff = open_by(proxy, reader)
        proxy.pause()
        readings = [read_all(reader, handoff)[0] for _ in range(4)]
        until(lambda: holder.server.stats().ends, "the session is ended")
        assert holder.server.stats().num_bytes_sent < 16 << 20
        proxy.resume()
        for each in readings:
            with pytest.raises(PeerUnreachable):
                soon(each)
        until(lambda: not holder.server.stats().num_copied, "nothing is pinned")


def test_what_is_under_way_ends_with_the_client() -> None:
    with pair(LARGE) as (holder, reader), Proxy(holder.address) as proxy:
        holder.grant("h", BLOCKS)
        handoff = open_by(proxy, reader)
        proxy.pause()
        reading, _ = read_all(reader, handoff)
        confirming = reader.confirm(handoff)
        reader.close()
        for each in (reading, confirming, reader.done(handoff), read_all(reader, handoff)[0]):
            with pytest.raises(ClientClosed):
                each.result(0)
        with pytest.raises(ClientClosed):
            reader.open(proxy.address, "h", "l-h", "r").result(0)


def test_nobody_there_is_unreachable() -> None:
    holder = Holder()
    holder.server.close()
    with client() as reader:
        with pytest.raises(PeerUnreachable, match="ECONNREFUSED"):
            soon(reader.open(holder.address, "h", "l-h", "r"))
        with pytest.raises(PeerUnreachable, match="open of handoff 'h' at nowhere"):
            soon(reader.open(("nowhere.invalid", 1), "h", "l-h", "r"))
        with pytest.raises(PeerUnreachable, match="no host's name"):
            soon(reader.open(("a..b", 1), "h", "l-h", "r"))
        with pytest.raises(PeerUnreachable, match="no port"):
            soon(reader.open(("127.0.0.1", 2**70), "h", "l-h", "r"))


@pytest.mark.parametrize("accepts", [False, True])
def test_who_does_not_answer_at_all_is_given_up_in_time(accepts: bool) -> None:
    """A full backlog drops what would connect; who accepts and says nothing is as bad."""
    with ExitStack() as stack:
        backlog = 8 if accepts else 0
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=backlog))
        if not accepts:
            stack.enter_context(socket.create_connection(listener.getsockname()))
        reader = stack.enter_context(client(deadlines=IMPATIENT))
        opening = reader.open(listener.getsockname(), "h", "l-h", "r")
        with pytest.raises(TimedOut, match="no welcome" if accepts else "no connection in time"):
            soon(opening)


def test_a_share_that_nobody_waits_for_any_more_is_released() -> None:
    with pair() as (holder, reader), Proxy(holder.address) as proxy:
        holder.grant("h1", [1])
        holder.grant("h2", [2])
        first = soon(reader.open(proxy.address, "h1", "l-h1", "r"))
        proxy.pause()
        opening = reader.open(proxy.address, "h2", "l-h2", "r")
        assert opening.cancel()
        proxy.resume()
        (freed,) = holder.wait_freed()
        assert (freed.handoff, freed.end, freed.num_ended) == ("h2", "ended", 1)
        assert first.gone == ""


def test_a_session_that_takes_nothing_holds_up_no_other() -> None:
    with pair(LARGE) as (holder, slow), Proxy(holder.address) as proxy, client(LARGE) as quick:
        holder.grant("h", BLOCKS, readers=2)
        handoff = open_by(proxy, slow)
        proxy.pause()
        readings = [read_all(slow, handoff)[0] for _ in range(4)]
        other = soon(quick.open(holder.address, "h", "l-h", "r2"))
        reading, sink = read_all(quick, other)
        assert soon(reading) == len(sink)
        assert not any(each.done() for each in readings)
        proxy.resume()
        assert [soon(each) for each in readings] == [len(sink)] * 4


def test_nothing_is_left_behind_and_all_blocks_are_given_back() -> None:
    before = num_descriptors()
    with pair() as (holder, reader):
        for number in range(5):
            holder.grant(f"h{number}", [number + 1])
            open_(reader, holder, f"h{number}")
        assert len(threads()) == 2
    assert {(each.handoff, each.end) for each in holder.freed} == {
        (f"h{number}", "forgone") for number in range(5)
    }
    assert len(holder.freed) == 5
    assert threads() == set()
    assert num_descriptors() == before
    with pytest.raises(RuntimeError, match="closed"):
        holder.grant("late", [1])


@pytest.mark.parametrize("where", [(threading.Thread, "start"), (holder_connections, "BlockLists")])
def test_a_holder_that_cannot_be_made_leaves_nothing_open(
    where: tuple[object, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no more of it")

    before = num_descriptors()
    monkeypatch.setattr(*where, refuse)
    with pytest.raises(RuntimeError, match="no more of it") as kept:
        Holder()
    assert num_descriptors() == before, kept
