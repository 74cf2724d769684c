"""Which destination holds which prefix, from engines' own events and from routing.

Rules:
    - Events count only for an owner that was added, and only of its generation.
    - A block is held while one physical copy is: what was announced twice is gone when it was
      removed twice, as engines announce every copy (vLLM's `BlockPool`).
    - An announcement whose parent was never named is counted and left out; nothing is guessed.
    - Beyond `max_blocks` the oldest names go, of the owner with most, except such as prompts
      have asked for lately.

Synchronous and without a clock; not to be shared by threads.
"""

from itertools import islice

import msgspec

from transload_router.core.index.hits import DestinationKey, Hit, Match
from transload_router.core.index.holders import Holders
from transload_router.core.index.matching import Reached, TokenReach, reach
from transload_router.core.index.naming import RefusedError, keys_of, parent_key
from transload_router.core.index.owner import MAX_ADAPTERS, Ghosts, Layout, Owner, Pool
from transload_router.core.index.predictions import Predictions
from transload_router.core.kv_events.events import GPU, BlockHash, Event, Removed, Stored
from transload_router.core.prompt import Prompt

# Retired keys swept with each event beside as many as it brought, and with each `expire`: a
# slice costs 30 us and 1 ms (bench/index.py), and sweeping outruns what comes in.
_SWEEP_PER_EVENT = 256
_SWEEP_PER_TICK = 8192
# vLLM's block size where neither the owner nor any other of its model has told one.
_DEFAULT_BLOCK_SIZE = 16


class OwnerStats(msgspec.Struct, frozen=True):
    """One owner's figures; counts since it was added.

    Attributes:
        num_blocks: Held now, by tier, all groups together.
        num_ghosts: Names of gone blocks that are still remembered.
        num_stored: Blocks announced, further copies included.
        num_removed: Copies that were removed.
        num_cleared: Times everything went.
        num_orphaned: Blocks left out since their parent was never named.
        num_unknown_removed: Removals of names that are not held.
        num_unplaced: Blocks left out since the event skips some and does not say which.
        num_refused: Events that contradict themselves.
        num_dropped: Blocks that went to keep within `max_blocks`.
    """

    num_blocks: dict[str, int]
    num_ghosts: int
    num_stored: int
    num_removed: int
    num_cleared: int
    num_orphaned: int
    num_unknown_removed: int
    num_unplaced: int
    num_refused: int
    num_dropped: int


class Index:
    """The index of a fleet.

    Attributes:
        num_late_events: Events of owners or generations that are not there.
    """

    def __init__(self, max_blocks: int = 4_000_000) -> None:
        self._max_blocks = max_blocks
        self._holders = Holders()
        self._predictions = Predictions()
        self._owners: dict[DestinationKey, Owner] = {}
        self._by_bit: dict[int, Owner] = {}
        self._families: dict[Layout, int] = {}
        self._asked: set[int] = set()
        self._asked_before: set[int] = set()
        self.num_late_events = 0

    @property
    def num_blocks(self) -> int:
        """Entries in all pools, those of cleared owners included until they are swept."""
        return self._holders.num_blocks

    def owners(self) -> list[DestinationKey]:
        """Who is in it."""
        return list(self._owners)

    def add_owner(self, dest_key: DestinationKey, identity_model: str, generation: int) -> None:
        """Let a destination's events count.

        An owner of that key is replaced and its blocks forgotten, unless model and generation
        are the same.

        Args:
            dest_key: Engine and rank.
            identity_model: Base model, by one name for all engines that serve it.
            generation: Of the engine; events of others are left out.
        """
        known = self._owners.get(dest_key)
        if known is not None:
            if (known.model, known.generation) == (identity_model, generation):
                return
            self._remove(known)
        owner = Owner(dest_key, identity_model, generation, self._holders.take_slot())
        self._owners[dest_key] = owner
        self._by_bit[owner.slot.bit] = owner

    def remove_engine(self, engine_id: str) -> None:
        """Forget all ranks of an engine, and what is predicted of them."""
        for owner in [one for key, one in self._owners.items() if key[0] == engine_id]:
            self._remove(owner)

    def _remove(self, owner: Owner) -> None:
        self._retire(owner)
        del self._owners[owner.key]

    def clear(self, dest_key: DestinationKey) -> None:
        """Forget all blocks of a destination, if it is there; costs nothing now."""
        owner = self._owners.get(dest_key)
        if owner is not None:
            self._clear(owner)

    def _clear(self, owner: Owner) -> None:
        owner.counts.num_cleared += 1
        if not owner.pools and not self._has_claims(owner):
            return
        self._retire(owner)
        owner.forget_blocks(self._holders.take_slot())
        self._by_bit[owner.slot.bit] = owner
        self._lay_out(owner)

    def _has_claims(self, owner: Owner) -> bool:
        return self._predictions.has_owner(owner.slot.bit)

    def _retire(self, owner: Owner) -> None:
        bit = owner.slot.bit
        self._leave_family(owner)
        self._predictions.forget(bit)
        del self._by_bit[bit]
        self._holders.retire(
            owner.slot, [(pool.place, pool.names) for pool in owner.pools.values()]
        )

    def _leave_family(self, owner: Owner) -> None:
        if owner.layout is not None:
            left = self._families[owner.layout] ^ owner.slot.bit
            if left:
                self._families[owner.layout] = left
            else:
                del self._families[owner.layout]

    def _lay_out(self, owner: Owner) -> None:
        owner.lay_out()
        if owner.layout is not None:
            self._families[owner.layout] = self._families.get(owner.layout, 0) | owner.slot.bit

    def _lay_out_anew(self, owner: Owner) -> None:
        self._leave_family(owner)
        self._lay_out(owner)

    def apply(self, dest_key: DestinationKey, generation: int, event: Event) -> None:
        """Take in one event of a destination's publisher."""
        owner = self._owners.get(dest_key)
        if owner is None or owner.generation != generation:
            self.num_late_events += 1
            return
        if isinstance(event, Stored):
            self._store(owner, event)
            self._holders.sweep(_SWEEP_PER_EVENT + len(event.block_hashes))
            if self._holders.num_blocks > self._max_blocks:
                self._make_room()
        elif isinstance(event, Removed):
            self._drop_copies(owner, event)
        else:
            self._clear(owner)

    def _store(self, owner: Owner, event: Stored) -> None:
        names = event.block_hashes
        if not names:
            return
        if len(set(names)) < len(names) or event.parent_block_hash in names:
            owner.counts.num_refused += 1
            return
        if event.lora_name is not None and event.lora_id is not None:
            self._check_adapter(owner, event.lora_name, event.lora_id)
        if not event.token_ids:
            self._store_by_name(owner, event)
            return
        parent = parent_key(owner, event)
        if parent is None:
            owner.counts.num_orphaned += len(names)
            return
        try:
            keys = keys_of(event, parent)
        except RefusedError:
            owner.counts.num_refused += 1
            return
        size = event.block_size
        if len(keys) != len(names) or event.medium != GPU:
            names, keys = self._place(owner, event, keys)
        self._put(owner, event, size, names, keys)

    def _store_by_name(self, owner: Owner, event: Stored) -> None:
        """Blocks that a lower tier announces by their names alone."""
        placed: dict[int, list[tuple[BlockHash, int]]] = {}
        for name in event.block_hashes:
            size = owner.size_of(name, event.group_idx)
            if size is None:
                owner.counts.num_orphaned += 1
                continue
            key = owner.find(name, size)
            assert key is not None
            placed.setdefault(size, []).append((name, key))
        for size, pairs in placed.items():
            self._put(owner, event, size, [name for name, _ in pairs], [key for _, key in pairs])

    def _place(
        self, owner: Owner, event: Stored, keys: list[int]
    ) -> tuple[list[BlockHash], list[int]]:
        """Names with their keys, where tokens alone do not tell.

        Window groups leave blocks out of the names but not of the tokens, and lower tiers leave
        out extra keys: there, a name known from elsewhere says which block it is.
        """
        names = event.block_hashes
        is_whole = len(keys) == len(names)
        placed: list[tuple[BlockHash, int]] = []
        for index, name in enumerate(names):
            key = owner.find(name, event.block_size)
            if key is None and is_whole:
                key = keys[index]
            if key is None or (not is_whole and key not in keys):
                owner.counts.num_unplaced += 1
            else:
                placed.append((name, key))
        return [name for name, _ in placed], [key for _, key in placed]

    def _put(
        self, owner: Owner, event: Stored, size: int, names: list[BlockHash], keys: list[int]
    ) -> None:
        num_pools = len(owner.pools)
        pool = owner.pool(self._holders, (event.medium, event.group_idx), size)
        if pool is None:
            owner.counts.num_refused += 1
            return
        is_new = len(owner.pools) != num_pools
        if event.medium == GPU:
            kind, window = event.kv_cache_spec_kind, event.sliding_window
            is_new |= owner.show_group(event.group_idx, size, window, kind)
        if is_new:
            self._lay_out_anew(owner)
        owner.counts.num_stored += len(names)
        if not pool.names.keys().isdisjoint(names):
            names, keys = _count_copies(pool, names, keys)
        pool.names.update(zip(names, keys, strict=True))
        self._holders.num_blocks += len(names)
        self._holders.join(pool.table, keys, owner.slot)
        adapter = event.lora_name
        if adapter is not None:
            pool.adapters.update(dict.fromkeys(names, adapter))
        if event.medium == GPU:
            self._predictions.settle(owner.slot.bit, keys)

    def _check_adapter(self, owner: Owner, name: str, adapter_id: int) -> None:
        """An adapter of the same name and another id is another adapter."""
        known = owner.adapter_ids.get(name)
        if known == adapter_id:
            return
        if known is not None:
            for pool in owner.pools.values():
                stale = [block for block, adapter in pool.adapters.items() if adapter == name]
                for block in stale:
                    self._forget(owner, pool, block)
        elif len(owner.adapter_ids) >= MAX_ADAPTERS:
            live = {one for pool in owner.pools.values() for one in pool.adapters.values()}
            owner.adapter_ids = {k: v for k, v in owner.adapter_ids.items() if k in live}
        owner.adapter_ids[name] = adapter_id

    def _drop_copies(self, owner: Owner, event: Removed) -> None:
        pools = owner.by_place.get((event.medium, event.group_idx), ())
        left = event.num_remaining
        if left is not None and len(left) != len(event.block_hashes):
            left = None
        for index, name in enumerate(event.block_hashes):
            pool = next((one for one in pools if name in one.names), None)
            if pool is None:
                owner.counts.num_unknown_removed += 1
                continue
            owner.counts.num_removed += 1
            further = pool.copies.get(name, 0) - 1 if left is None else left[index] - 1
            if further > 0:
                pool.copies[name] = further
                continue
            pool.copies.pop(name, None)
            if further < 0:
                self._forget(owner, pool, name)

    def _forget(self, owner: Owner, pool: Pool, name: BlockHash) -> None:
        key = pool.names.pop(name)
        pool.copies.pop(name, None)
        pool.adapters.pop(name, None)
        self._holders.leave(pool.table, key, owner.slot.bit)
        self._holders.num_blocks -= 1
        ghosts = owner.ghosts.get(pool.block_size)
        if ghosts is None:
            ghosts = owner.ghosts[pool.block_size] = Ghosts()
        ghosts.add(name, key)

    def _make_room(self) -> None:
        """Let the oldest names of the largest pool go, a sixty-fourth at a time."""
        self._holders.sweep(_SWEEP_PER_TICK)
        while self._holders.num_blocks > self._max_blocks:
            owner, pool = max(
                ((owner, pool) for owner in self._owners.values() for pool in owner.pools.values()),
                key=lambda pair: len(pair[1].names),
                default=(None, None),
            )
            if owner is None or pool is None or not pool.names:
                self._holders.sweep(_SWEEP_PER_TICK)
                continue
            for name in list(islice(pool.names, max(64, len(pool.names) // 64))):
                key = pool.names[name]
                if key in self._asked or key in self._asked_before:
                    self._asked.discard(key)
                    self._asked_before.discard(key)
                    del pool.names[name]
                    pool.names[name] = key
                else:
                    owner.counts.num_dropped += 1
                    self._forget(owner, pool, name)

    def match(self, prompt: Prompt) -> Match:
        """What each destination need not compute of a prompt; those that hold none are left out."""
        match: Match = {}
        tables, claimed = self._holders.tables, self._predictions.table
        for layout, owners in self._families.items():
            reached = reach(tables, claimed, layout, owners, prompt)
            self._collect(reached, match)
        if self._holders.num_blocks > self._max_blocks - self._max_blocks // 8:
            self._note_asked(prompt, match)
        return match

    def _collect(self, reached: Reached, match: Match) -> None:
        by_bit = self._by_bit
        gpu = _by_owner(reached.gpu)
        total = gpu if reached.any_tier is reached.gpu else _by_owner(reached.any_tier)
        for bit, num_tokens in total.items():
            match[by_bit[bit].key] = Hit(gpu.get(bit, 0), num_tokens)
        if reached.predicted is not None:
            for bit, num_tokens in _by_owner(reached.predicted).items():
                if num_tokens > gpu.get(bit, 0):
                    most = max(num_tokens, total.get(bit, 0))
                    match[by_bit[bit].key] = Hit(num_tokens, most, is_predicted=True)

    def _note_asked(self, prompt: Prompt, match: Match) -> None:
        """Near the bound, remember what prompts asked for, so that it is not what goes."""
        if len(self._asked) > self._max_blocks // 16:
            self._asked_before = self._asked
            self._asked = set()
        longest = max((hit.num_tokens for hit in match.values()), default=0)
        for size in {group.block_size for layout in self._families for group in layout[0]}:
            self._asked.update(prompt.keys(size)[: longest // size])

    def predict(
        self,
        dest_key: DestinationKey,
        prompt: Prompt,
        now: float,
        ttl_s: float,
        num_tokens: int | None = None,
    ) -> None:
        """Expect a destination to hold a prompt until events tell, or the time is over.

        Args:
            dest_key: Engine and rank; one that was not added has no predictions.
            prompt: The prompt on its way.
            now: Monotonic seconds, the clock of `expire`.
            ttl_s: How long it is believed without an event.
            num_tokens: Of the prompt's start; all of it unless told, as when an engine reported
                that many as cached.
        """
        owner = self._owners.get(dest_key)
        if owner is None:
            return
        self._predictions.expire(now)
        if owner.layout is None:
            owner.show_group(0, self._likely_size(owner.model), None, None)
            owner.shown.clear()
            self._lay_out(owner)
        assert owner.layout is not None
        most = prompt.num_tokens if num_tokens is None else min(num_tokens, prompt.num_tokens)
        for size in {group.block_size for group in owner.layout[0]}:
            keys = prompt.keys(size)[: most // size]
            self._predictions.add(owner.slot.bit, keys, now + ttl_s)

    def _likely_size(self, model: str) -> int:
        for owner in self._owners.values():
            if owner.model == model and owner.groups:
                return owner.groups[min(owner.groups)].block_size
        return _DEFAULT_BLOCK_SIZE

    def expire(self, now: float) -> None:
        """End predictions that are over, and sweep a slice of what was cleared; call it often."""
        self._predictions.expire(now)
        self._holders.sweep(_SWEEP_PER_TICK)

    def stats(self, dest_key: DestinationKey) -> OwnerStats | None:
        """A destination's figures; None if it is not there."""
        owner = self._owners.get(dest_key)
        if owner is None:
            return None
        num_blocks: dict[str, int] = {}
        for (place, _), pool in owner.pools.items():
            num_blocks[place[0]] = num_blocks.get(place[0], 0) + len(pool.names)
        counts = owner.counts
        return OwnerStats(
            num_blocks=num_blocks,
            num_ghosts=sum(map(len, owner.ghosts.values())),
            **{name: getattr(counts, name) for name in counts.__slots__},
        )


def _count_copies(
    pool: Pool, names: list[BlockHash], keys: list[int]
) -> tuple[list[BlockHash], list[int]]:
    """Count further copies of held blocks; what is left is new."""
    fresh = []
    for name, key in zip(names, keys, strict=True):
        if name in pool.names:
            pool.copies[name] = pool.copies.get(name, 0) + 1
        else:
            fresh.append((name, key))
    return [name for name, _ in fresh], [key for _, key in fresh]


def _by_owner(reach: TokenReach) -> dict[int, int]:
    tokens_of = {}
    for mask, num_tokens in reach:
        while mask:
            bit = mask & -mask
            tokens_of[bit] = num_tokens
            mask ^= bit
    return tokens_of
