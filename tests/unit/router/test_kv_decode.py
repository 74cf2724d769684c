"""Events of every form, and what is made of those that cannot be true."""

import msgspec
import pytest

from transload_router.core.kv_events.decode import MAX_PAYLOAD_BYTES, BadBatch, decode_batch
from transload_router.core.kv_events.events import (
    CPU,
    GPU,
    STORAGE,
    Batch,
    Cleared,
    Event,
    Removed,
    Stored,
)

FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
)
FULL = (
    [7, 8],
    6,
    [1, 2, 3, 4],
    2,
    5,
    "cpu",
    "adapter",
    [["adapter", "salt"], None],
    3,
    "sliding_window",
    1024,
    "LOCAL",
    "fs",
    "s1",
)
GOOD = ["BlockStored", [1], None, [9], 1, None, "GPU"]


def payload(*events: object, tail: tuple[object, ...] = (0,)) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), *tail])


def only(event: object) -> Event:
    batch = decode_batch(payload(event))
    assert batch.num_skipped == 0
    assert len(batch.events) == 1
    return batch.events[0]


def is_skipped(event: object) -> bool:
    """Whether it is left out and counted, and its neighbours in the batch stand."""
    batch = decode_batch(payload(GOOD, event, {"type": "AllBlocksCleared"}))
    if batch.num_skipped == 0:
        return False
    assert batch == Batch(1.5, [Stored([1], None, [9], 1), Cleared()], 0, 1)
    return True


def test_literal_bytes_of_an_array_event() -> None:
    assert decode_batch(
        b"\x93\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"
        b"\x92\x93\xacBlockRemoved\x91\xcf\x01\x02\x03\x04\x05\x06\x07\x08\xa3GPU"
        b"\x91\xb0AllBlocksCleared"
        b"\x02"
    ) == Batch(1.5, [Removed([0x0102030405060708]), Cleared()], 2)


def test_literal_bytes_of_a_map_event() -> None:
    assert decode_batch(
        b"\x92\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"
        b"\x91\x85\xa4type\xabBlockStored\xacblock_hashes\x91\xc4\x03abc"
        b"\xb1parent_block_hash\xc0\xa9token_ids\x92\x01\x02\xaablock_size\x02"
    ) == Batch(1.5, [Stored([b"abc"], None, [1, 2], 2)])


@pytest.mark.parametrize("num_fields", range(4, len(FIELDS) + 1))
def test_the_same_event_as_array_and_as_map(num_fields: int) -> None:
    values = FULL[:num_fields]
    as_array = only(["BlockStored", *values])
    as_map = only({"type": "BlockStored", **dict(zip(FIELDS, values, strict=False))})
    assert as_array == as_map
    assert isinstance(as_array, Stored)
    assert as_array.block_hashes == [7, 8]
    assert as_array.medium == (CPU if num_fields > 5 else GPU)
    assert as_array.lora_name == ("adapter" if num_fields > 6 else None)
    assert as_array.group_idx == (3 if num_fields > 8 else 0)


def test_all_fields() -> None:
    assert only(["BlockStored", *FULL]) == Stored(
        block_hashes=[7, 8],
        parent_block_hash=6,
        token_ids=[1, 2, 3, 4],
        block_size=2,
        lora_id=5,
        lora_name="adapter",
        medium=CPU,
        extra_keys=[["adapter", "salt"], None],
        group_idx=3,
        kv_cache_spec_kind="sliding_window",
        sliding_window=1024,
        locality="LOCAL",
        ownership="fs",
        session_id="s1",
    )


def test_what_later_versions_append_is_ignored() -> None:
    assert only(["BlockStored", *FULL, "new", {"x": [1]}, 3]) == only(["BlockStored", *FULL])
    assert only({"type": "BlockRemoved", "block_hashes": [1], "reason": "evicted"}) == Removed([1])
    assert only(["AllBlocksCleared", "GPU"]) == Cleared()
    assert decode_batch(payload(GOOD, tail=(1, "more", None))).rank == 1


@pytest.mark.parametrize("tail", [(), (None,), ("1",), (-1,), (True,)])
def test_a_rank_that_is_none(tail: tuple[object, ...]) -> None:
    assert decode_batch(payload(GOOD, tail=tail)).rank is None


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        ("gpu", GPU),
        ("GPU", GPU),
        ("cpu", CPU),
        ("CPU", CPU),
        ("STORAGE", STORAGE),
        ("Storage", STORAGE),
        (None, GPU),
        ("", GPU),
        ("new", "NEW"),
    ],
)
def test_medium_in_any_case(medium: str | None, tier: str) -> None:
    stored = only(["BlockStored", [1], None, [], 0, None, medium])
    removed = only({"type": "BlockRemoved", "block_hashes": [1], "medium": medium})
    assert isinstance(stored, Stored)
    assert isinstance(removed, Removed)
    assert stored.medium == removed.medium == tier


def test_a_tier_that_knows_blocks_by_name_alone() -> None:
    event = {
        "type": "BlockStored",
        "block_hashes": [b"x" * 32],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 0,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": None,
        "group_idx": 1,
    }
    assert only(event) == Stored([b"x" * 32], None, [], 0, medium=CPU, group_idx=1)


def test_an_adapters_name_is_in_lora_name_and_extra_keys_stay_as_they_came() -> None:
    event = only(
        ["BlockStored", [1, 2], None, [3, 4], 1, 1, "GPU", "adapterA", [["adapterA"], None]]
    )
    assert isinstance(event, Stored)
    assert event.lora_name == "adapterA"
    assert event.extra_keys == [["adapterA"], None]


@pytest.mark.parametrize("hashes", [[1], [2, 3]])
def test_tokens_of_skipped_blocks_are_never_paired(hashes: list[int]) -> None:
    event = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": 9,
        "token_ids": list(range(12)),
        "block_size": 4,
        "extra_keys": [None] * len(hashes),
    }
    stored = only(event)
    assert isinstance(stored, Stored)
    assert (stored.block_hashes, stored.token_ids, stored.parent_block_hash) == (hashes, [], None)


def test_events_of_no_block_say_nothing() -> None:
    tokens_alone = ["BlockStored", [], None, [1, 2], 2, None, "GPU"]
    nothing = {"type": "BlockRemoved", "block_hashes": []}
    assert decode_batch(payload(tokens_alone, nothing)) == Batch(1.5, [], 0, 0)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(["BlockStored", [5, 5], None, [1, 2], 1], id="hash repeated"),
        pytest.param(["BlockStored", [5, 5], None, [], 0], id="hash repeated, no tokens"),
        pytest.param(["BlockStored", [5, 6], 6, [1, 2], 1], id="parent among its own"),
        pytest.param(["BlockStored", [5], 5, [1], 1], id="own parent"),
        pytest.param(["BlockStored", [5, 6], None, [1], 1], id="tokens missing"),
        pytest.param(["BlockStored", [5], None, [1, 2, 3], 2], id="tokens of half a block"),
        pytest.param(["BlockStored", [5], None, [1, 2], 0], id="tokens, no block size"),
        pytest.param(["BlockStored", [5], None, [1]], id="tokens, block size left out"),
        pytest.param(["BlockStored", [5], None, [-1], 1], id="negative token"),
        pytest.param(["BlockStored", [5], None, [2**32], 1], id="huge token"),
        pytest.param(["BlockStored", [5], None, [], -1], id="negative block size"),
        pytest.param(["BlockStored", [5], None, [], 2**40], id="huge block size"),
        pytest.param(["BlockStored", [5.0], None, [1], 1], id="float hash"),
        pytest.param(["BlockStored", ["5"], None, [1], 1], id="text hash"),
        pytest.param(["BlockStored", [True], None, [1], 1], id="bool hash"),
        pytest.param(["BlockStored", [b""], None, [1], 1], id="empty hash"),
        pytest.param(["BlockStored", [b"x" * 65], None, [1], 1], id="huge hash"),
        pytest.param(["BlockStored", 5, None, [1], 1], id="hashes no list"),
        pytest.param(["BlockStored", [5], None, "1", 1], id="tokens no list"),
        pytest.param(["BlockStored", [5], None, [1], 1, None, 7], id="medium no text"),
        pytest.param(["BlockStored", [5], None, [1], 1, None, "x" * 300], id="huge medium"),
        pytest.param(
            ["BlockStored", [5], None, [1], 1, None, None, None, [None, None]], id="keys too many"
        ),
        pytest.param(
            ["BlockStored", [5], None, [1], 1, None, None, None, ["salt"]], id="keys no list"
        ),
        pytest.param(
            ["BlockStored", [5], None, [1], 1, None, None, None, None, -1], id="negative group"
        ),
        pytest.param(["BlockStored"], id="nothing but a name"),
        pytest.param({"type": "BlockStored"}, id="no hashes"),
        pytest.param({"block_hashes": [5]}, id="no type"),
        pytest.param({"type": "BlockMoved", "block_hashes": [5]}, id="unknown type"),
        pytest.param(["BlockMoved", [5]], id="unknown type, array"),
        pytest.param(["BlockRemoved", None], id="removal of nothing"),
        pytest.param([], id="empty"),
        pytest.param({}, id="empty map"),
        pytest.param(None, id="null"),
        pytest.param(3, id="number"),
        pytest.param("BlockStored", id="text"),
    ],
)
def test_a_malformed_event_is_skipped_alone(event: object) -> None:
    assert is_skipped(event)


def test_hashes_of_python_itself_may_be_negative() -> None:
    """VLLM's default through 0.10 was `hash`, 64 bits with a sign."""
    first, second = -(2**63), -5
    assert only(["BlockStored", [second], first, [1], 1]) == Stored([second], first, [1], 1)
    assert only(["BlockRemoved", [first, second], "GPU"]) == Removed([first, second])


def test_a_removal_with_the_copies_that_remain() -> None:
    named = {"type": "BlockRemoved", "block_hashes": [1, 2], "remaining_copy_counts": [0, 3]}
    assert only(named) == Removed([1, 2], num_remaining=[0, 3])
    assert only(["BlockRemoved", [1, 2], "GPU", [0, 3]]) == Removed([1, 2], num_remaining=[0, 3])
    assert only(["BlockRemoved", [1], "CPU", 2, None, "fs", [4]]) == Removed([1], CPU, 2, [4])
    assert only(["BlockRemoved", [1, 2], "GPU", 1]) == Removed([1, 2], group_idx=1)
    assert only(["BlockRemoved", [1]]) == Removed([1])


@pytest.mark.parametrize("counts", [[1], [1, 2, 3], [1, -1], [1, "2"]])
def test_remaining_copies_that_are_not_aligned(counts: list[object]) -> None:
    assert is_skipped(
        {"type": "BlockRemoved", "block_hashes": [1, 2], "remaining_copy_counts": counts}
    )
    assert is_skipped(["BlockRemoved", [1, 2], "GPU", 0, counts])


def test_one_removal_of_several_copies() -> None:
    assert only(["BlockRemoved", [1, 1, 2], "CPU"]) == Removed([1, 1, 2], CPU)


def test_removals_in_a_row_from_one_place_are_one() -> None:
    events: list[object] = [
        {"type": "BlockRemoved", "block_hashes": [], "medium": "GPU"},
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"},
        {"type": "BlockRemoved", "block_hashes": [], "medium": "GPU"},
        {"type": "BlockRemoved", "block_hashes": [2], "medium": "GPU"},
        {"type": "BlockRemoved", "block_hashes": [2, 3], "medium": "GPU"},
        {"type": "BlockRemoved", "block_hashes": [4], "medium": "CPU"},
        {"type": "BlockRemoved", "block_hashes": [5], "medium": "CPU", "group_idx": 1},
        {"type": "AllBlocksCleared"},
        {"type": "BlockRemoved", "block_hashes": [6], "medium": "CPU", "group_idx": 1},
        {"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU", "group_idx": 1},
    ]
    assert decode_batch(payload(*events)).events == [
        Removed([1, 2, 2, 3], GPU),
        Removed([4], CPU),
        Removed([5], CPU, 1),
        Cleared(),
        Removed([6, 7], CPU, 1),
    ]


def test_removals_that_tell_what_remains_stay_apart() -> None:
    told = {"type": "BlockRemoved", "block_hashes": [1], "remaining_copy_counts": [2]}
    bare = {"type": "BlockRemoved", "block_hashes": [1]}
    assert decode_batch(payload(bare, told, told, bare)).events == [
        Removed([1]),
        Removed([1], num_remaining=[2]),
        Removed([1], num_remaining=[2]),
        Removed([1]),
    ]


def test_both_forms_in_one_batch() -> None:
    batch = decode_batch(payload(GOOD, {"type": "BlockRemoved", "block_hashes": [b"z"]}))
    assert batch.events == [Stored([1], None, [9], 1), Removed([b"z"])]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1", id="never used byte"),
        pytest.param(b"\x01", id="number"),
        pytest.param(b"\x90", id="empty array"),
        pytest.param(b"\x91\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", id="no events"),
        pytest.param(msgspec.msgpack.encode([1.0, None]), id="null events"),
        pytest.param(msgspec.msgpack.encode(["1", []]), id="text time"),
        pytest.param(msgspec.msgpack.encode([float("nan"), []]), id="no time"),
        pytest.param(msgspec.msgpack.encode([float("inf"), []]), id="endless time"),
        pytest.param(msgspec.msgpack.encode({"ts": 1.0, "events": []}), id="map"),
        pytest.param(payload(GOOD)[:-1], id="cut"),
        pytest.param(payload(GOOD) + b"\x00", id="trailing"),
        pytest.param(b"\x92\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xdd\xff\xff\xff\xff", id="endless"),
        pytest.param(b"\x91" * 100_000 + b"\x01", id="deep"),
    ],
)
def test_what_is_no_batch(data: bytes) -> None:
    with pytest.raises(BadBatch):
        decode_batch(data)


def test_events_nested_too_deep_are_skipped_or_refused() -> None:
    with pytest.raises(BadBatch, match="not a batch of events"):
        decode_batch(b"\x92\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\x91" + b"\x91" * 100_000 + b"\x01")


def test_a_payload_beyond_the_limit_is_not_looked_at() -> None:
    with pytest.raises(BadBatch, match=f"{MAX_PAYLOAD_BYTES + 1} bytes of events are more than"):
        decode_batch(b"\x00" * (MAX_PAYLOAD_BYTES + 1))
