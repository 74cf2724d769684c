"""Snapshots: what was known comes back, and what is no snapshot is refused whole."""

import random
import struct

import msgspec
import pytest
import xxhash

from support.index_model import MODEL, Asked, check_structure, stored
from transload_router.core.index.hits import Hit
from transload_router.core.index.index import Index
from transload_router.core.index.snapshot import SnapshotError
from transload_router.core.kv_events.events import CPU, Removed, Stored
from transload_router.core.kv_events.messages import SnapshotLoaded

TEXT = Asked(tuple(range(33)))
ADAPTED = Asked(tuple(range(33)), lora="x")
P0, P1 = ("p0", 0), ("p0", 1)


def known() -> Index:
    index = Index()
    index.add_owner(P0, MODEL, 7)
    index.add_owner(P1, MODEL, 7)
    index.apply(P0, 7, stored(TEXT, 0, 8, 4))
    index.apply(P0, 7, stored(TEXT, 0, 2, 4))
    index.apply(P0, 7, stored(ADAPTED, 0, 3, 4))
    index.apply(P1, 7, stored(TEXT, 0, 3, 4, as_bytes=True))
    index.apply(P1, 7, stored(TEXT, 3, 2, 4, medium=CPU, as_bytes=True))
    index.set_position(P0, SnapshotLoaded(41, 12.5, True))
    return index


def loaded(data: bytes) -> Index:
    index = Index()
    assert index.load(data) == 2
    return index


def framed(body: bytes, version: int = 1) -> bytes:
    check = xxhash.xxh3_64_intdigest(body)
    return struct.pack("<16sIQ", b"transload-index\x00", version, check) + body


def test_round_trip() -> None:
    before = known()
    index = loaded(before.export())
    assert index.match(TEXT.prompt()) == {}
    index.add_owner(P0, MODEL, 0)
    index.add_owner(P1, MODEL, 0)
    assert index.match(TEXT.prompt()) == {P0: Hit(32, 32), P1: Hit(12, 20)}
    assert index.match(TEXT.prompt()) == before.match(TEXT.prompt())
    assert index.match(ADAPTED.prompt()) == {P0: Hit(12, 12)}
    assert index.position(P0) == SnapshotLoaded(41, 12.5, True)
    assert index.position(P1) is None
    assert index.export() == before.export()
    check_structure(index)


def test_what_was_loaded_goes_on() -> None:
    """Copies, adapters and block sizes are as they were."""
    index = loaded(known().export())
    index.add_owner(P0, MODEL, 3)
    first = stored(TEXT, 0, 1, 4).block_hashes
    index.apply(P0, 3, Removed(first))
    assert index.match(TEXT.prompt())[P0] == Hit(32, 32)
    index.apply(P0, 3, Removed(first))
    assert P0 not in index.match(TEXT.prompt())
    # Another adapter of the same name.
    other = stored(Asked(ADAPTED.tokens[:5], lora="x"), 0, 1, 4)
    index.apply(P0, 3, msgspec.structs.replace(other, block_hashes=[99], lora_id=2))
    assert index.match(ADAPTED.prompt()) == {P0: Hit(4, 4)}
    check_structure(index)


def test_an_owner_that_is_there_takes_it_unless_it_knows_better() -> None:
    data = known().export()
    index = Index()
    index.add_owner(P0, MODEL, 0)
    index.add_owner(P1, MODEL, 0)
    index.apply(P1, 0, stored(TEXT, 0, 1, 4))
    index.load(data)
    assert index.match(TEXT.prompt()) == {P0: Hit(32, 32), P1: Hit(4, 4)}


def test_another_model_takes_nothing() -> None:
    index = loaded(known().export())
    index.add_owner(P0, "another", 0)
    index.add_owner(P1, MODEL, 0)
    assert index.stats(P0).num_blocks == {}  # type: ignore[union-attr]
    assert set(index.match(TEXT.prompt())) == {P1}


def test_what_nobody_took_can_be_dropped() -> None:
    index = loaded(known().export())
    index.forget_snapshot()
    index.add_owner(P0, MODEL, 0)
    assert index.match(TEXT.prompt()) == {}


def test_the_head_is_as_specified() -> None:
    assert Index().export() == bytes.fromhex(
        "7472616e736c6f61642d696e64657800"  # transload-index
        "01000000"
        "cc940699e40911eb"
        "90"  # no owners
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a snapshot"),
        (b"\x93\x01\x02\x03" * 20, "not a snapshot"),
        (framed(b"\x90", version=2), "version 2 of a snapshot; this router reads 1"),
        (framed(b"\x90")[:-1], "cut short"),
        (framed(b"\x91\xc0"), "another form"),
        (framed(b"\xdd\xff\xff\xff\xff"), "another form"),
        (framed(b"\x91" * 5000), "another form"),
    ],
)
def test_refused(data: bytes, message: str) -> None:
    index = known()
    with pytest.raises(SnapshotError, match=message):
        index.load(data)
    assert index.match(TEXT.prompt()) == known().match(TEXT.prompt())


def owner(
    pools: list[object], engine_id: str = "e", groups: list[object] | None = None
) -> list[object]:
    return [engine_id, 0, MODEL, None, groups or [[0, 4, 0]], {}, pools]


def pool(
    names: list[object], keys: bytes, copies: object = (), adapters: object = (), size: int = 4
) -> list[object]:
    return ["GPU", 0, size, names, keys, copies, adapters]


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ([owner([pool([1, 2], bytes(8))])], "do not fit"),
        ([owner([pool([1], bytes(8), [[1, 1]])])], "do not fit"),
        ([owner([pool([1], bytes(8), [], [["x", [1]]])])], "do not fit"),
        ([owner([pool([1, 1], bytes(16))])], "a name stands twice"),
        ([owner([pool([1], bytes(8)), pool([2], bytes(8))])], "a pool stands twice"),
        ([owner([]), owner([])], "an owner stands twice"),
        ([owner([pool([1], bytes(8), [[0, 0]])])], "another form"),
        ([owner([pool([1], bytes(8), size=0)])], "another form"),
        ([owner([pool([None], bytes(8))])], "another form"),
        ([owner([pool([1], bytes(8), size=n + 1) for n in range(65)])], "another form"),
        ([owner([], groups=[[0, 4, 0]] * 65)], "another form"),
        ([[*owner([]), 1]], "another form"),
        ([owner([pool(list(range(11)), bytes(88))])], "11 blocks in a snapshot are more than 10"),
    ],
)
def test_hostile_bodies_are_refused(owners: list[object], message: str) -> None:
    index = Index(max_blocks=10)
    with pytest.raises(SnapshotError, match=message):
        index.load(framed(msgspec.msgpack.encode(owners)))
    index.add_owner(("e", 0), MODEL, 0)
    assert index.num_blocks == 0


def test_every_cut_and_every_flip_is_refused() -> None:
    data = known().export()
    index = Index()
    chance = random.Random(0)
    for cut in range(len(data)):
        with pytest.raises(SnapshotError):
            index.load(data[:cut])
    for _ in range(300):
        at = chance.randrange(len(data))
        flipped = bytearray(data)
        flipped[at] ^= 1 << chance.randrange(8)
        with pytest.raises(SnapshotError):
            index.load(bytes(flipped))


def test_more_adapters_than_are_remembered_still_load() -> None:
    index = Index()
    index.add_owner(P0, MODEL, 0)
    for number in range(1500):
        name = f"a{number}"
        index.apply(P0, 0, Stored([number], None, [1, 2], 2, number, name, extra_keys=[[name]]))
    other = Index()
    assert other.load(index.export()) == 1


def test_block_sizes_are_known_again() -> None:
    """An entry inside a block does not become the group's block size."""
    index = loaded(known().export())
    index.add_owner(P0, MODEL, 0)
    index.apply(P0, 0, stored(TEXT, 0, 1, 2))
    assert index.match(TEXT.prompt()) == {P0: Hit(32, 32)}
