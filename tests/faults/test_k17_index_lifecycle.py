"""K17: what is known of an engine dies with it, and nothing grows with churn."""

import gc
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.index_model import check_structure
from transload_router.core.index.approximate import ApproximateIndex, Text
from transload_router.core.index.index import Index
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.events import CPU, Cleared, Removed, Stored
from transload_router.core.prompt import Prompt, pack_tokens

ENGINE = ("p0", 0)


def asked(tokens: list[int]) -> Prompt:
    return Prompt(Identity("m"), pack_tokens([*tokens, 0]))


def test_late_events_of_a_deleted_engine() -> None:
    """B182."""
    index = Index()
    index.add_owner(ENGINE, "m", 3)
    block = Stored([1], None, [5, 6], 2)
    index.apply(ENGINE, 3, block)
    index.remove_engine("p0")
    index.apply(ENGINE, 3, block)
    assert index.match(asked([5, 6])) == {}
    index.add_owner(ENGINE, "m", 4)
    index.apply(ENGINE, 3, block)
    index.apply(ENGINE, 3, Cleared())
    assert index.match(asked([5, 6])) == {}
    assert index.num_late_events == 3
    index.apply(ENGINE, 4, block)
    assert set(index.match(asked([5, 6]))) == {ENGINE}
    index.apply(ENGINE, 3, Removed([1]))
    assert set(index.match(asked([5, 6]))) == {ENGINE}
    check_structure(index)


def test_a_cleared_owner_is_swept_and_its_bit_used_again() -> None:
    index = Index()
    index.add_owner(ENGINE, "m", 0)
    index.add_owner(("p1", 0), "m", 0)
    tokens = list(range(40_000))
    index.apply(ENGINE, 0, Stored(list(range(20_000)), None, tokens, 2))
    index.apply(("p1", 0), 0, Stored(list(range(10)), None, tokens[:20], 2))
    index.clear(ENGINE)
    assert set(index.match(asked(tokens))) == {("p1", 0)}
    assert index.num_blocks == 20_010
    check_structure(index)
    # Told again while the old ones are still there: nothing is mixed up.
    index.apply(ENGINE, 0, Stored([7, 8], None, tokens[:4], 2))
    assert index.match(asked(tokens))[ENGINE].num_tokens == 4
    check_structure(index)
    for _ in range(12):
        index.expire(0.0)
    assert index.num_blocks == 12
    check_structure(index)
    for _ in range(50):
        index.clear(ENGINE)
        index.apply(ENGINE, 0, Stored([7, 8], None, tokens[:4], 2))
    index.expire(0.0)
    assert index._holders.num_bits == 3
    check_structure(index)


def test_the_bound_holds_and_what_prompts_ask_for_stays() -> None:
    """B184, B189: distinct prompts without end, and one that all begin with."""
    index = Index(max_blocks=1000)
    index.add_owner(ENGINE, "m", 0)
    head = list(range(100_000, 100_032))
    names = itertools.count(10)
    index.apply(ENGINE, 0, Stored([1, 2], None, head, 16))
    for number in range(400):
        rest = list(range(number * 64, number * 64 + 64))
        index.apply(ENGINE, 0, Stored([next(names) for _ in range(4)], 2, rest, 16))
        assert index.num_blocks <= 1000
        hit = index.match(asked(head + rest)).get(ENGINE)
        assert hit is not None
        assert hit.num_tokens == 96
    stats = index.stats(ENGINE)
    assert stats is not None
    assert stats.num_dropped == 1602 - index.num_blocks
    assert index.num_blocks > 900
    # Removals of what went are no fault, and the structure is right.
    index.apply(ENGINE, 0, Removed(list(range(10, 200))))
    check_structure(index)


def test_removals_leave_nothing() -> None:
    """B186, B188: churn of prefixes that part and end in every order."""
    index = Index()
    index.add_owner(ENGINE, "m", 0)
    for number in range(50):
        base = 100 * number
        trunk = [number, 1, number, 2]
        index.apply(ENGINE, 0, Stored([base + 1, base + 2], None, trunk, 2))
        index.apply(ENGINE, 0, Stored([base + 3], base + 2, [7, 7], 2))
        index.apply(ENGINE, 0, Stored([base + 4], base + 1, [8, 8], 2))
        index.apply(ENGINE, 0, Stored([base + 1], None, [], 0, medium=CPU))
        # The parent before its children, and one child of a parent that is gone.
        index.apply(ENGINE, 0, Removed([base + 1, base + 2]))
        index.apply(ENGINE, 0, Stored([base + 5], base + 2, [9, 9], 2))
        index.apply(ENGINE, 0, Removed([base + 3, base + 4, base + 5]))
        index.apply(ENGINE, 0, Removed([base + 1], medium=CPU))
    assert index.num_blocks == 0
    assert not any(part for table in index._holders.tables.values() for part in table)
    check_structure(index)


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _churn(index: Index, num_blocks: int, numbers: Iterator[int]) -> None:
    """Store and remove unique chains; all engines but one come, go, and are cleared meanwhile."""
    for step in range(num_blocks // 64):
        engine = ("p0", 0) if step % 2 else (f"p{step // 2 % 8}", 0)
        if engine[0] != "p0" and step % 100 == 8:
            index.remove_engine(engine[0])
        if engine[0] != "p0" and step % 131 == 9:
            index.clear(engine)
        index.add_owner(engine, "m", 0 if engine[0] == "p0" else step // 100)
        names = [next(numbers) for _ in range(64)]
        generation = index._owners[engine].generation
        tokens = [part for name in names for part in (name, 1, 2, 3)]
        index.apply(engine, generation, Stored(list(names), None, tokens, 4))
        index.predict(engine, asked(tokens), float(step), 5.0)
        if step % 7:
            index.apply(engine, generation, Removed(list(names)))
    index.expire(1e9)


@pytest.mark.parametrize(
    "num_blocks",
    [100_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(300)])],
)
def test_memory_is_flat(num_blocks: int) -> None:
    """B187: unique chains stored and removed, with churn of engines: the process does not grow."""
    index = Index(max_blocks=20_000)
    numbers = itertools.count()
    # Fills what is bounded: ghosts, memos, the blocks that stay.
    _churn(index, 300_000 if num_blocks > 100_000 else 120_000, numbers)
    before = _resident_bytes(), len(index._holders.tables), index._holders.num_bits
    _churn(index, num_blocks, numbers)
    grown = _resident_bytes() - before[0]
    # A leak of one entry per block, 100 bytes, would be 5 MB of the lasting engine alone.
    assert grown < 3_000_000
    assert index.num_blocks <= 20_000
    assert (len(index._holders.tables), index._holders.num_bits <= before[2] + 4) == (1, True)
    assert index._predictions.num_keys == 0
    check_structure(index)
    for engine in range(8):
        index.remove_engine(f"p{engine}")
    for _ in range(20):
        index.expire(1e9)
    assert index.num_blocks == 0
    assert index._holders.tables == {}


def test_text_is_bounded_and_dies_with_its_engine() -> None:
    index = ApproximateIndex(max_chunks=100)
    for number in range(100):
        text = Text(Identity("m"), f"{number:>8}".encode() * 256)
        index.predict((f"p{number % 3}", 0), text)
        assert index.num_chunks <= 100
    for engine in ("p0", "p1", "p2"):
        index.remove_engine(engine)
    assert index.match(Text(Identity("m"), b"      99" * 256)) == {}
    index.predict(("p3", 0), Text(Identity("m"), b"x" * 256))
    assert index.num_chunks == 1
