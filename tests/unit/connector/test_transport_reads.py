"""A holder's blocks at a reader, over real sockets: every form, many at once, and who is told."""

import asyncio
import socket
from typing import Any

import pytest

from support.transport_world import (
    GROUP,
    LARGE,
    Holder,
    asked,
    client,
    open_,
    pair,
    payload,
    soon,
)
from transload_abi.wire.deadlines import Terms
from transload_abi.wire.errors import BadRead
from transload_abi.wire.messages import Table
from transload_connector.transports.errors import PeerRefused
from transload_connector.transports.reader_client import ReaderClient

BLOCKS = [5, 9, 10, 11, 3]


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        ("block", {}),
        ("page", {}),
        ("page", {"layers": (1, 1)}),
        ("elements", {}),
        ("elements", {"heads": (1, 1)}),
        ("elements", {"layers": (0, 1), "heads": (0, 1)}),
    ],
)
@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize("num_streams", [0, 2])
def test_a_read_brings_the_bytes_that_it_names(
    form: str, fields: dict[str, tuple[int, int]], checksums: bool, num_streams: int
) -> None:
    with pair(num_streams=num_streams) as (holder, reader):
        holder.grant("h", BLOCKS)
        handoff = open_(reader, holder, "h")
        message = asked([(0, 2), (3, 2)], form=form, **fields)
        expected = payload(holder.descriptor, holder.memory, message, [5, 9, 11, 3])
        sink = bytearray(len(expected))
        pieces = [memoryview(sink)[:100], memoryview(sink)[100:100], memoryview(sink)[100:]]
        future = reader.read(
            handoff,
            GROUP,
            message.blocks,
            pieces,
            form=message.form,
            checksums=checksums,
            **fields,
        )
        assert soon(future) == len(expected)
        assert sink == expected


def test_the_last_share_that_ends_frees_the_blocks_once() -> None:
    with pair() as (holder, reader):
        holder.grant("h", BLOCKS, readers=2)
        first = open_(reader, holder, "h", "r1")
        assert soon(reader.done(first)) == 1
        second = open_(reader, holder, "h", "r2")
        assert soon(reader.done(second)) == 0
        (freed,) = holder.wait_freed()
        assert (freed.handoff, freed.end, freed.num_ended) == ("h", "ended", 2)
    assert len(holder.freed) == 1


def test_a_reader_is_told_what_there_is() -> None:
    with pair() as (holder, reader):
        holder.server.grant("h", "l-h", {0: [0, 0, 7, 8]}, 13, 3)
        handoff = open_(reader, holder, "h")
        assert handoff.tables == (Table(0, 4, ((0, 2),)),)
        assert (handoff.num_tokens, handoff.answer.readers) == (13, 3)
        assert (handoff.generation, handoff.verdict) == ("g1", "identical")
        with pytest.raises(BadRead):
            reader.read(handoff, GROUP, [(1, 2)], [])


def test_many_handoffs_are_read_at_once() -> None:
    with pair() as (holder, reader):
        handoffs = [f"h{number}" for number in range(24)]
        for number, name in enumerate(handoffs):
            holder.grant(name, [number + 1, number + 20])
        opens = [
            reader.open(holder.address, name, f"l-{name}", "r", generation="g1")
            for name in handoffs
        ]
        sinks = [bytearray(2 * 2048) for _ in handoffs]
        opened = [soon(each) for each in opens]
        reads = [
            reader.read(each, GROUP, [(0, 2)], [memoryview(sink)], form="block")
            for each, sink in zip(opened, sinks, strict=True)
        ]
        assert [soon(each) for each in reads] == [4096] * 24
        for number, sink in enumerate(sinks):
            message = asked([(0, 2)], form="block")
            ids = [number + 1, number + 20]
            assert sink == payload(holder.descriptor, holder.memory, message, ids)
        ends = [reader.done(each) for each in opened]
        assert [soon(each) for each in ends] == [0] * 24
        assert {each.handoff for each in holder.wait_freed(24)} == set(handoffs)
        # A session: its control stream, and two for data.
        assert holder.server.stats().num_connections == 3


def test_more_reads_than_a_session_has_places_for_wait_for_their_turn() -> None:
    with pair() as (holder, reader):
        holder.grant("h", BLOCKS)
        handoff = open_(reader, holder, "h")
        sink = bytearray(2048)
        reads = [
            reader.read(handoff, GROUP, [(0, 1)], [memoryview(sink)], form="block")
            for _ in range(200)
        ]
        assert [soon(each) for each in reads] == [2048] * 200


def test_several_readers_read_the_same_blocks() -> None:
    with pair() as (holder, first), client() as second:
        holder.grant("h", BLOCKS, readers=2)
        for reader, share in ((first, "r1"), (second, "r2")):
            handoff = open_(reader, holder, "h", share)
            sink = bytearray(2048)
            soon(reader.read(handoff, GROUP, [(1, 1)], [memoryview(sink)], form="block"))
            assert sink == holder.memory[9 * 2048 : 10 * 2048]
            soon(reader.done(handoff))
        assert holder.wait_freed()[0].num_ended == 2


def test_a_lease_is_renewed_while_the_handoff_is_open() -> None:
    with pair(terms=Terms(term_s=1.0, max_hold_s=60.0)) as (holder, reader):
        holder.grant("h", BLOCKS)
        handoff = open_(reader, holder, "h")
        first = handoff.expires
        while soon(reader.confirm(handoff)) < first + 1.5:
            assert not holder.freed
        del handoff
        assert holder.wait_freed()[0].end == "expired"


def test_a_router_forgoes_without_a_descriptor() -> None:
    holder = Holder()
    with holder.server, ReaderClient(None, name="router", generation="g0") as reader:
        holder.grant("h", BLOCKS)
        assert soon(reader.forgo(holder.address, "h", "l-h")) == 0
        assert holder.wait_freed()[0].end == "forgone"


def test_futures_serve_a_loop() -> None:
    async def run() -> bytes:
        opening = reader.open(holder.address, "h", "l-h", "r")
        handoff = await asyncio.wrap_future(opening)
        sink = bytearray(2048)
        reading = reader.read(handoff, GROUP, [(0, 1)], [memoryview(sink)], form="block")
        await asyncio.wrap_future(reading)
        return bytes(sink)

    with pair() as (holder, reader):
        holder.grant("h", BLOCKS)
        assert asyncio.run(run()) == holder.memory[5 * 2048 : 6 * 2048]


def test_a_token_is_shared() -> None:
    with pair(token=b"secret") as (holder, reader), client(token=b"other") as stranger:
        holder.grant("h", BLOCKS)
        with pytest.raises(PeerRefused, match="token"):
            soon(stranger.open(holder.address, "h", "l-h", "r"))
        with client() as nobody, pytest.raises(PeerRefused, match="bad_proof"):
            soon(nobody.open(holder.address, "h", "l-h", "r"))
        assert open_(reader, holder, "h").num_tokens == 20


@pytest.mark.skipif(not socket.has_ipv6, reason="this host has no IPv6")
@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_hosts_have_numbers_of_either_kind_and_names(host: str) -> None:
    listening = "::1" if host == "::1" else ""
    holder = Holder(LARGE, host=listening)
    with holder.server, client(LARGE) as reader:
        holder.grant("h", [1])
        address = (host, holder.address[1])
        assert soon(reader.open(address, "h", "l-h", "r")).num_tokens == 4


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"num_tokens": 0}, r"lease\.num_tokens: expected 1 to"),
        ({"num_tokens": 1 << 53}, r"lease\.num_tokens: "),
        ({"num_encoder_tokens": -1}, r"lease\.num_encoder_tokens: "),
        ({"blocks_by_table": {0: [0, 1] * 4097}}, r"lease\.tables: .* 4096 null ranges"),
        ({"handoff": ""}, r"forgo\.handoff: expected 1 to 256 characters, got 0"),
        ({"handoff": "h" * 257}, r"forgo\.handoff: expected 1 to 256 characters, got 257"),
        ({"handoff": "\ud800"}, r"forgo\.handoff: .*half a character"),
        ({"lease": ""}, r"forgo\.lease: expected 1 to 256 characters, got 0"),
        ({"lease": "l" * 257}, r"forgo\.lease: expected 1 to 256 characters, got 257"),
        ({"lease": "\udfff"}, r"forgo\.lease: .*half a character"),
    ],
)
def test_what_no_reader_could_be_told_is_not_granted(fields: dict[str, Any], problem: str) -> None:
    grant = {"handoff": "h", "lease": "l", "blocks_by_table": {0: [1]}, "num_tokens": 4, **fields}
    holder = Holder()
    with holder.server:
        with pytest.raises(ValueError, match=problem):
            holder.server.grant(**grant)
        assert holder.server.stats().num_held == 0


@pytest.mark.parametrize("term_s", [-1.0, 1e9, float("inf"), float("nan")])
def test_a_term_that_no_message_can_say_is_refused(term_s: float) -> None:
    with pytest.raises(ValueError, match=r"term_s: expected 0 to 4294967\.295 seconds, got "):
        Terms(term_s=term_s)
