"""Whatever bytes come, nothing but `BadBatch` leaves the decoder, and good events stay good."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from transload_router.core.kv_events.decode import BadBatch, decode_batch
from transload_router.core.kv_events.events import Batch, Removed, Stored

NAMES = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "type", "GPU", "x"])
KEYS = st.sampled_from(
    ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "medium", "extra_keys"]
)
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-3, 40)
    | st.floats()
    | st.binary(max_size=70)
    | NAMES
)
TREES: st.SearchStrategy[Any] = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | NAMES, inner, max_size=3),
    max_leaves=5,
)
EVENTS = (
    TREES
    | st.builds(lambda name, rest: [name, *rest], NAMES, st.lists(TREES, max_size=4))
    | st.builds(
        lambda hashes, parent, tokens, size: ["BlockStored", hashes, parent, tokens, size],
        st.lists(st.integers(0, 9), max_size=4),
        st.none() | st.integers(0, 9),
        st.lists(st.integers(0, 9), max_size=12),
        st.integers(0, 4),
    )
)
BATCHES = st.builds(
    lambda ts, events, rest: msgspec.msgpack.encode([ts, events, *rest]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(EVENTS, max_size=3),
    st.lists(ATOMS, max_size=2),
)


def decode(payload: bytes) -> Batch | None:
    try:
        return decode_batch(payload)
    except BadBatch:
        return None


def check(batch: Batch) -> None:
    """What the index relies on."""
    for event in batch.events:
        if isinstance(event, Stored):
            num_blocks = len(event.block_hashes)
            assert num_blocks > 0
            assert len(set(event.block_hashes)) == num_blocks
            assert event.parent_block_hash not in event.block_hashes
            assert len(event.token_ids) in (0, num_blocks * event.block_size)
            assert all(0 <= token < 2**32 for token in event.token_ids)
            assert event.extra_keys is None or len(event.extra_keys) == num_blocks
            assert event.medium == event.medium.upper()
            assert event.group_idx >= 0
        elif isinstance(event, Removed):
            assert event.block_hashes
            assert event.num_remaining is None or len(event.num_remaining) == len(
                event.block_hashes
            )


@given(st.binary(max_size=200))
def test_random_bytes(payload: bytes) -> None:
    batch = decode(payload)
    if batch is not None:
        check(batch)


@given(BATCHES)
def test_random_events(payload: bytes) -> None:
    batch = decode(payload)
    assert batch is not None
    check(batch)
    num_events = len(msgspec.msgpack.decode(payload)[1])
    assert len(batch.events) + batch.num_skipped <= num_events


@given(BATCHES, st.data())
def test_truncation_extension_and_flips(payload: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(payload) - 1))
    assert decode(payload[:cut]) is None
    assert decode(payload + data.draw(st.binary(min_size=1, max_size=5))) is None
    flipped = bytearray(payload)
    flipped[cut] = data.draw(st.integers(0, 255))
    batch = decode(bytes(flipped))
    if batch is not None:
        check(batch)


@given(st.lists(EVENTS, max_size=2), st.lists(EVENTS, max_size=2))
def test_a_bad_neighbour_changes_nothing(before: list[object], after: list[object]) -> None:
    good = {"type": "BlockStored", "block_hashes": [1], "token_ids": [7], "block_size": 1}
    batch = decode(msgspec.msgpack.encode([1.0, [*before, good, *after], 0]))
    assert batch is not None
    assert Stored([1], None, [7], 1) in batch.events
