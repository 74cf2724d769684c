"""The wire protocol spoken over sockets by two implementations that share nothing but documents.

The one was written from `connector/WIRE.md` alone (`wire_from_the_document`), the other is ours.
Each is the holder once; what the reader has in the end is held against the holder's bytes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from conformance.wire_from_the_document import read_handoff, serve_handoff
from conformance.wire_from_the_document_payload import put, runs_of
from conformance.wire_from_the_document_reader import EndedError
from support import abi_placements
from support.transport_world import HOLDER_WAITS, READER_WAITS, TERMS, soon
from support.wire_payloads import shared, tables
from transload_abi import oracle
from transload_abi.text import encode_json, read
from transload_abi.types import Descriptor
from transload_connector.transports.errors import LeaseGone, PeerFault, PeerRefused
from transload_connector.transports.holder_server import HolderServer
from transload_connector.transports.mover import Mover, Request
from transload_connector.transports.reader_client import ReaderClient

WIRE: Final = Path(__file__).parents[1] / "vectors" / "wire"
TOKEN: Final = b"between two who have never met"
HANDOFF, LEASE = "request-1", "lease-1"
LIST: Final = [2, 1]
"""Block ids of the handoff, of which no descriptor here has its null block."""

OURS_HOLDS: Final = (
    "padded-blocks-bf16",
    "padded-pages-bf16",
    "mla-656-planes",
    "rocm-x8-bf16",
    "sglang-bf16",
    "slice-of-heads",
    "vllm-bhlnc-bf16",
    "vllm-cpu-bf16",
    "vllm-lhbnc-bf16",
)


def described(name: str) -> Descriptor:
    return read((WIRE / "descriptors" / f"{name}.json").read_bytes())


def tree(d: Descriptor) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode_json(d))
    return found


def filled(d: Descriptor) -> dict[str, bytearray]:
    """Pools of bytes by chance, the same in each run."""
    chance = np.random.default_rng(5)
    return {pool.id: bytearray(chance.bytes(pool.num_bytes)) for pool in d.pools}


def held(d: Descriptor, memory: dict[str, bytearray], **options: Any) -> HolderServer:
    """Our holder, with one handoff in it."""
    server = HolderServer(
        d,
        memory,
        name="ours",
        generation="g1",
        on_freed=lambda _freed: None,
        deadlines=HOLDER_WAITS,
        terms=TERMS,
        token=TOKEN,
        **options,
    )
    counts = {group.table: group.tokens_per_block for group in d.groups}
    server.grant(HANDOFF, LEASE, dict.fromkeys(counts, LIST), 2 * max(counts.values()))
    return server


def forms_of(d: Descriptor) -> Iterator[dict[str, Any]]:
    """Reads of the first group in each form that it allows, on every stream."""
    group = d.groups[0]
    blocks = [[0, len(LIST)]]
    yield {"group": group.id, "blocks": blocks, "form": "elements", "checksums": True}
    yield {"group": group.id, "blocks": [[1, 1]], "form": "elements", "stream": 2}
    if all(place.page_bytes for place in group.places):
        yield {"group": group.id, "blocks": blocks, "form": "page", "stream": 1, "checksums": True}
    if len({pool for place in group.places for pool in place.pools}) == 1 and all(
        pool.block_bytes for pool in d.pools
    ):
        yield {"group": group.id, "blocks": blocks, "form": "block", "stream": 2}
    if group.owner.heads[1] - group.owner.heads[0] > 1:
        yield {
            "group": group.id,
            "blocks": blocks,
            "form": "elements",
            "heads": [group.owner.heads[1] - 1, 1],
        }


@pytest.mark.parametrize("name", OURS_HOLDS)
def test_a_stranger_reads_what_we_hold(name: str) -> None:
    d = described(name)
    memory = filled(d)
    reads = list(forms_of(d))
    with held(d, memory) as server:
        found = read_handoff(*server.address, TOKEN, tree(d), HANDOFF, LEASE, reads)
    assert found["verdict"] == "identical"
    assert found["ended"]["left"] == 0
    assert None not in found["payloads"]
    theirs = found["descriptor"]
    for asked, payload in zip(reads, found["payloads"], strict=True):
        ids = [LIST[at] for first, count in asked["blocks"] for at in range(first, first + count)]
        runs = runs_of(theirs, {"layers": None, "heads": None} | asked, ids)
        copy = {pool: bytearray(len(bytes_)) for pool, bytes_ in memory.items()}
        put(copy, runs, payload)
        assert sum(count for _, _, count in runs) == len(payload) > 0
        for pool, first, count in runs:
            assert copy[pool][first : first + count] == memory[pool][first : first + count]


def test_a_stranger_with_another_token_gets_nothing_of_ours() -> None:
    d = described("vllm-lbhnc-bf16")
    with held(d, filled(d)) as server, pytest.raises(EndedError):
        read_handoff(*server.address, b"another", tree(d), HANDOFF, LEASE, [])


def test_a_stranger_of_another_model_is_refused_by_us_at_the_field() -> None:
    d = described("vllm-lbhnc-bf16")
    other = tree(d)
    other["model"]["weights"] = f"sha256:{0:064}"
    with held(d, filled(d)) as server, pytest.raises(EndedError, match=r"model\.weights"):
        read_handoff(*server.address, TOKEN, other, HANDOFF, LEASE, [])


def test_a_stranger_is_told_that_a_lease_is_gone() -> None:
    d = described("vllm-lbhnc-bf16")
    with held(d, filled(d)) as server:
        server.forgo(HANDOFF, LEASE)
        found = read_handoff(*server.address, TOKEN, tree(d), HANDOFF, LEASE, [])
    assert (found["lease"]["type"], found["lease"]["why"]) == ("expired", "ended")


# --- the stranger holds

SHAPE: Final = abi_placements.Shape(heads=2, tokens=4, size=8, layers=2, blocks=4)
PAIRS: Final = (("LBHNC", "LBHNC"), ("LBHNC", "vllm_cpu"), ("BHLNC", "LBNHC"))


def reader_of(d: Descriptor, **options: Any) -> ReaderClient:
    return ReaderClient(
        d, name="ours", generation="g2", deadlines=READER_WAITS, **({"token": TOKEN} | options)
    )


@pytest.mark.parametrize(("src", "dst"), PAIRS)
def test_we_read_what_a_stranger_holds(src: str, dst: str) -> None:
    source = abi_placements.PLACEMENTS[src](SHAPE)
    into = abi_placements.PLACEMENTS[dst](SHAPE)
    memory = filled(source)
    tokens = 2 * SHAPE.tokens
    holder, port = serve_handoff(
        TOKEN,
        tree(source),
        {pool: bytes(bytes_) for pool, bytes_ in memory.items()},
        HANDOFF,
        LEASE,
        {0: LIST},
        tokens,
    )
    found = {pool.id: np.zeros(pool.num_bytes, np.uint8) for pool in into.pools}
    try:
        with reader_of(into) as reader:
            handoff = soon(reader.open(("127.0.0.1", port), HANDOFF, LEASE, "r"))
            assert handoff.tables == tables(source, {0: LIST})
            mover = Mover.compile(handoff.descriptor, into)
            pools = shared(found)
            for plan in mover.reads(Request([handoff.tables], {0: [1, 3]}, handoff.num_tokens)):
                asked = plan.message(1, HANDOFF)
                payload = bytearray(plan.num_bytes)
                reading = reader.read(
                    handoff,
                    asked.group,
                    asked.blocks,
                    [memoryview(payload)],
                    layers=asked.layers,
                    heads=asked.heads,
                    form=asked.form,
                    checksums=True,
                )
                assert soon(reading) == plan.num_bytes
                mover.land(plan, payload, pools)
            assert soon(reader.done(handoff)) == 0
    finally:
        holder.close()
    ours = {pool: np.frombuffer(bytes_, np.uint8) for pool, bytes_ in memory.items()}
    for role in ("k", "v"):
        due = oracle.read_elements(source, ours, source.groups[0].id, role, LIST)
        got = oracle.read_elements(into, found, into.groups[0].id, role, [1, 3])
        assert (got == due).all()


def test_we_take_nothing_of_a_stranger_who_does_not_know_the_token() -> None:
    source = abi_placements.PLACEMENTS["LBHNC"](SHAPE)
    memory = {pool: bytes(bytes_) for pool, bytes_ in filled(source).items()}
    holder, port = serve_handoff(b"another", tree(source), memory, HANDOFF, LEASE, {0: LIST}, 8)
    try:
        with (
            reader_of(source) as reader,
            pytest.raises((PeerRefused, PeerFault), match=r"proof|token"),
        ):
            soon(reader.open(("127.0.0.1", port), HANDOFF, LEASE, "r"))
    finally:
        holder.close()


def test_we_are_told_by_a_stranger_that_a_lease_is_gone() -> None:
    source = abi_placements.PLACEMENTS["LBHNC"](SHAPE)
    memory = {pool: bytes(bytes_) for pool, bytes_ in filled(source).items()}
    holder, port = serve_handoff(TOKEN, tree(source), memory, HANDOFF, LEASE, {0: LIST}, 8)
    try:
        with reader_of(source) as reader:
            with pytest.raises(LeaseGone) as gone:
                soon(reader.open(("127.0.0.1", port), HANDOFF, "another", "r"))
            assert gone.value.why == "other_lease"
    finally:
        holder.close()
