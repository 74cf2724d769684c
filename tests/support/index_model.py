"""What an index must answer, by brute force over prefixes written out in full."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from support.index_table import whole
from transload_router.core.index.index import Index
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.events import GPU, BlockHash, Stored
from transload_router.core.prompt import Prompt, pack_tokens

MODEL = "base"


class Asked(NamedTuple):
    """A prompt, or the text that a chain of blocks is of."""

    tokens: tuple[int, ...]
    lora: str | None = None
    salt: str | None = None

    def prefix(self, num_tokens: int) -> "Asked":
        return Asked(self.tokens[:num_tokens], self.lora, self.salt)

    def prompt(self) -> Prompt:
        return Prompt(Identity(MODEL, self.lora), pack_tokens(self.tokens), self.salt)


def name_of(prefix: Asked, *, as_bytes: bool = False) -> BlockHash:
    """The engine's hash of a prefix: any function of it will do."""
    number = hash(("engine", prefix)) & 0xFFFF_FFFF_FFFF_FFFF
    return number.to_bytes(8, "big") * 4 if as_bytes else number


def stored(
    text: Asked,
    first: int,
    count: int,
    block_size: int,
    *,
    medium: str = GPU,
    group_idx: int = 0,
    window: int | None = None,
    as_bytes: bool = False,
) -> Stored:
    """The announcement of blocks `first` to `first + count` of a text, as vLLM 0.32 makes it."""
    extra_keys: list[list[str] | None] = []
    for index in range(first, first + count):
        parts = [text.lora] if text.lora is not None else []
        parts += [text.salt] if text.salt is not None and index == 0 else []
        extra_keys.append(parts or None)
    return Stored(
        [
            name_of(text.prefix((index + 1) * block_size), as_bytes=as_bytes)
            for index in range(first, first + count)
        ],
        name_of(text.prefix(first * block_size), as_bytes=as_bytes) if first else None,
        list(text.tokens[first * block_size : (first + count) * block_size]),
        block_size,
        lora_id=1 if text.lora is not None else None,
        lora_name=text.lora,
        medium=medium,
        extra_keys=extra_keys,
        group_idx=group_idx,
        kv_cache_spec_kind=None if window is None else "sliding_window",
        sliding_window=window,
    )


class Announced(NamedTuple):
    """Blocks of one announcement."""

    prefixes: tuple[Asked, ...]
    size: int
    medium: str = GPU
    group_idx: int = 0
    window: int | None = None


def blocks_of(text: Asked, first: int, count: int, size: int) -> tuple[Asked, ...]:
    """The prefixes that end with each of some blocks."""
    return tuple(text.prefix((index + 1) * size) for index in range(first, first + count))


PoolKey = tuple[str, int, int]


@dataclass
class ModelOwner:
    """One owner's blocks: copies of prefixes by medium, group and block size."""

    pools: dict[PoolKey, Counter[Asked]] = field(default_factory=dict)
    # Prefixes that were ever named since the last clear, by block size.
    named: dict[int, set[Asked]] = field(default_factory=dict)
    # Window in tokens or None, by group that was shown in the GPU, with its block size.
    groups: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    shown: set[int] = field(default_factory=set)
    # Announcements whose parents were not named yet, by parent.
    waiting: dict[Asked, list["Announced"]] = field(default_factory=dict)

    def clear(self) -> None:
        self.pools.clear()
        self.waiting.clear()
        self.named.clear()
        self.shown.clear()

    def store(self, parent: Asked | None, told: "Announced") -> None:
        """Take in blocks if their parent is known; let them wait for it if not."""
        if parent is not None and parent not in self.named.get(told.size, ()):
            self.waiting.setdefault(parent, []).append(told)
            return
        pool = self.pools.setdefault((told.medium, told.group_idx, told.size), Counter())
        pool.update(told.prefixes)
        self.named.setdefault(told.size, set()).update(told.prefixes)
        if told.medium == GPU:
            known = self.groups.get(told.group_idx)
            if known is None or told.group_idx not in self.shown or known[0] < told.size:
                self.groups[told.group_idx] = (told.size, told.window)
            self.shown.add(told.group_idx)
        for prefix in told.prefixes:
            children = self.waiting.pop(prefix, [])
            others = [child for child in children if child.size != told.size]
            if others:
                self.waiting[prefix] = others
            for child in children:
                if child.size == told.size:
                    self.store(prefix, child)

    def remove(self, prefix: Asked, medium: str, group_idx: int, left: int | None = None) -> None:
        for (one_medium, one_group, _), pool in self.pools.items():
            if (one_medium, one_group) == (medium, group_idx) and pool[prefix] > 0:
                pool[prefix] = pool[prefix] - 1 if left is None else left
                return
        for parent, children in self.waiting.items():
            for child in children:
                place = (child.medium, child.group_idx)
                if place == (medium, group_idx) and prefix in child.prefixes:
                    children.remove(child)
                    if not children:
                        del self.waiting[parent]
                    return

    def holds(self, asked: Asked, num_tokens: int, medium: str, group_idx: int, size: int) -> bool:
        pool = self.pools.get((medium, group_idx, size))
        return pool is not None and pool[asked.prefix(num_tokens)] > 0

    def gpu_tokens(self, asked: Asked) -> int:
        """The longest prefix that all groups can load, whole blocks, the last token left out."""
        if not self.groups:
            return 0
        step = math.lcm(*(size for size, _ in self.groups.values()))
        best = 0
        for tokens in range(step, len(asked.tokens), step):
            if all(self._can_load(asked, tokens, group_idx) for group_idx in self.groups):
                best = tokens
        return best

    def _can_load(self, asked: Asked, tokens: int, group_idx: int) -> bool:
        size, window = self.groups[group_idx]
        num_blocks = tokens // size
        need = num_blocks if window is None else max(1, math.ceil((window - 1) / size))
        return all(
            self.holds(asked, (index + 1) * size, GPU, group_idx, size)
            for index in range(max(0, num_blocks - need), num_blocks)
        )

    def any_tokens(self, asked: Asked) -> int:
        """The same, lower tiers going on from there; of a model with one group."""
        best = self.gpu_tokens(asked)
        lower: dict[str, int] = {}
        for medium, _, size in self.pools:
            if medium != GPU:
                lower[medium] = max(size, lower.get(medium, 0))
        if not self.groups:
            return 0
        for size in sorted(set(lower.values())):
            media = [medium for medium, one in lower.items() if one == size]
            if len(asked.tokens) // size * size - best < size:
                continue
            end = best // size * size
            while end + size < len(asked.tokens) and any(
                self.holds(asked, end + size, medium, 0, size) for medium in media
            ):
                end += size
            best = max(best, end)
        return best


def check_structure(index: Index) -> None:
    """Tables, names and slots say the same; nothing is kept for nobody."""
    holders = index._holders
    expected: dict[tuple[str, int], dict[int, int]] = {place: {} for place in holders.tables}
    num_blocks = 0
    users: Counter[tuple[str, int]] = Counter()
    pools = [
        (pool.place, pool.names, owner.slot.bit)
        for owner in index._owners.values()
        for pool in owner.pools.values()
    ]
    for place, names, bit in [*pools, *holders._retired]:
        users[place] += 1
        num_blocks += len(names)
        for key in names.values():
            expected[place][key] = expected[place].get(key, 0) | bit
    assert {place: whole(table) for place, table in holders.tables.items()} == expected
    assert holders.num_blocks == num_blocks
    assert holders._users == users
    live = [owner.slot.bit for owner in index._owners.values()]
    assert sorted(index._by_bit) == sorted(live)
    taken = [*live, *holders._left]
    assert sorted([*taken, *holders._free_bits]) == [1 << n for n in range(holders.num_bits)]
    for owner in index._owners.values():
        for pool in owner.pools.values():
            assert pool.copies.keys() <= pool.names.keys()
            assert all(count > 0 for count in pool.copies.values())
            assert pool.adapters.keys() <= pool.names.keys()
    masks = [mask for mask in index._families.masks.values()]
    assert sum(masks) == sum(o.slot.bit for o in index._owners.values() if o.layout is not None)
    check_predictions(index)


def check_predictions(index: Index) -> None:
    """Claims, their table and their figures say the same."""
    predictions = index._predictions
    expected: dict[int, int] = {}
    for bit, claims in predictions._owners.items():
        assert len(claims.awaited) > 0
        for key, claim in claims.last.items():
            assert claim.is_live
            assert claim.claims is claims
            expected[key] = expected.get(key, 0) | bit
    assert whole(predictions.table) == expected
    assert predictions.num_keys == sum(len(one.last) for one in predictions._owners.values())
    assert predictions.num_claims == sum(len(o.awaited) for o in predictions._owners.values())
    assert predictions.claimants == sum(predictions._owners)
    assert predictions._owners.keys() <= index._by_bit.keys()
