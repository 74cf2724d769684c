"""Which destination holds which prefix, from engines' own events and from routing.

Rules:
    - Events count only for an owner that was added, and only of its generation.
    - `AllBlocksCleared` forgets all tiers. An engine may have reset its GPU alone; what lower tiers
      still hold is known again once it is announced again.
    - A block is held while one physical copy is: what was announced twice is gone when it was
      removed twice, as engines announce every copy (vLLM's `BlockPool`).
    - An announcement whose parent was never named is counted and left out; nothing is guessed.
    - Beyond `max_blocks` the oldest names go, of the owner with most, except such as prompts
      have asked for lately.

Synchronous and without a clock; not to be shared by threads.
"""

import msgspec

from transload_router.core.index import snapshot
from transload_router.core.index.families import Families
from transload_router.core.index.hits import Hit, Match
from transload_router.core.index.holders import Holders
from transload_router.core.index.intake import Intake
from transload_router.core.index.matching import Reached, TokenReach, reach
from transload_router.core.index.owner import Owner
from transload_router.core.index.predictions import Predictions
from transload_router.core.kv_events.events import Event, Removed, Stored
from transload_router.core.kv_events.messages import SnapshotLoaded
from transload_router.core.prompt import Prompt
from transload_router.core.types import DestinationKey

# Retired keys swept with each event beside as many as it brought, and with each `expire`: a
# slice costs 0.2 and 1.7 ms (bench/index.py), and sweeping outruns what comes in.
_SWEEP_PER_EVENT = 256
_SWEEP_PER_TICK = 2048
# vLLM's block size where neither the owner nor any other of its model has told one.
_DEFAULT_BLOCK_SIZE = 16
_NO_HIT = Hit(0, 0)


class OwnerStats(msgspec.Struct, frozen=True):
    """One owner's figures; counts since it was added.

    Attributes:
        num_blocks: Held now, by tier, all groups together.
        num_ghosts: Names of gone blocks that are still remembered.
        num_stored: Blocks announced, further copies included.
        num_removed: Copies that were removed.
        num_cleared: Times everything went.
        num_orphaned: Blocks left out since their parent was not named, or they themselves never
            with their tokens.
        num_unknown_removed: Removals of names that are not held.
        num_awaited: Blocks whose names had to wait for their tokens.
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
    num_awaited: int
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
        self._families = Families()
        self._intake = Intake(self._holders, self._families, self._predictions)
        self._asked: set[int] = set()
        self._asked_before: set[int] = set()
        self._saved: dict[DestinationKey, snapshot.SavedOwner] = {}
        self.num_late_events = 0

    @property
    def num_blocks(self) -> int:
        """Entries in all pools, those of cleared owners included until they are swept."""
        return self._holders.num_blocks

    @property
    def num_predictions(self) -> int:
        """Prompts that are expected somewhere."""
        return self._predictions.num_claims

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
        self._restore(owner)

    def set_position(self, dest_key: DestinationKey, position: SnapshotLoaded | None) -> None:
        """Note where an owner's stream stands, for the next `export`."""
        owner = self._owners.get(dest_key)
        if owner is not None:
            owner.position = position

    def position(self, dest_key: DestinationKey) -> SnapshotLoaded | None:
        """Where an owner's stream stands: as last set, or as its snapshot says."""
        owner = self._owners.get(dest_key)
        return None if owner is None else owner.position

    def export(self) -> bytes:
        """All owners' blocks and positions as a snapshot, for `load`; predictions are left out."""
        return snapshot.encode(list(self._owners.values()))

    def load(self, data: bytes) -> int:
        """Take in what `export` wrote, in another process or before.

        What it says of an owner counts once that is added with the same model, if it has no
        blocks of its own by then; `position` then tells where its stream goes on.

        Returns:
            Number of owners in it.

        Raises:
            snapshot.SnapshotError: It is no snapshot, of another version, damaged, or holds more
                than `max_blocks`. Nothing was loaded.
        """
        self._saved = snapshot.decode(data, self._max_blocks)
        num_owners = len(self._saved)
        for owner in self._owners.values():
            self._restore(owner)
        return num_owners

    def forget_snapshot(self) -> None:
        """Drop what `load` brought of owners that were not added."""
        self._saved = {}

    def _restore(self, owner: Owner) -> None:
        saved = self._saved.pop(owner.key, None)
        if saved is None or saved.model != owner.model or owner.pools:
            return
        self._families.leave(owner)
        snapshot.restore(owner, saved, self._holders)
        self._families.join(owner)
        self._make_room()

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
        self._retire(owner)
        owner.forget_blocks(self._holders.take_slot())
        self._by_bit[owner.slot.bit] = owner
        self._families.join(owner)

    def _retire(self, owner: Owner) -> None:
        bit = owner.slot.bit
        self._families.leave(owner)
        self._predictions.forget(bit)
        del self._by_bit[bit]
        names = [(pool.place, pool.names) for pool in owner.pools.values()]
        self._holders.retire(owner.slot, names)

    def apply(self, dest_key: DestinationKey, generation: int, event: Event) -> None:
        """Take in one event of a destination's publisher."""
        owner = self._owners.get(dest_key)
        if owner is None or owner.generation != generation:
            self.num_late_events += 1
            return
        if isinstance(event, Stored):
            self._intake.store(owner, event)
            self._holders.sweep(_SWEEP_PER_EVENT + len(event.block_hashes))
            if self._holders.num_blocks > self._max_blocks:
                self._make_room()
        elif isinstance(event, Removed):
            self._intake.remove(owner, event)
        else:
            self._clear(owner)

    def _make_room(self) -> None:
        """Let the oldest names of the largest pools go."""
        while self._holders.num_blocks > self._max_blocks:
            if not self._holders.sweep(_SWEEP_PER_TICK):
                continue
            pools = [(one, pool) for one in self._owners.values() for pool in one.pools.values()]
            owner, pool = max(pools, key=lambda pair: len(pair[1].names))
            self._intake.shrink(owner, pool, [self._asked, self._asked_before])

    def match(self, prompt: Prompt) -> Match:
        """What each destination need not compute of a prompt; those that hold none are left out."""
        match: Match = {}
        if prompt.num_tokens < 2:
            # The last token is always computed.
            return match
        tables, predictions = self._holders.tables, self._predictions
        for layout, owners in self._families.masks.items():
            reached = reach(tables, predictions, layout, owners, prompt)
            self._collect(reached, match)
        if self._holders.num_blocks > self._max_blocks - self._max_blocks // 8:
            self._note_asked(prompt, match)
        return match

    def _collect(self, reached: Reached, match: Match) -> None:
        by_bit = self._by_bit
        gpu = None if reached.any_tier is reached.gpu else _by_bit(reached.gpu)
        for mask, num_tokens in reached.any_tier:
            alike = Hit(num_tokens, num_tokens)
            left = mask
            while left:
                bit = left & -left
                left ^= bit
                owner = by_bit[bit]
                if gpu is None and not owner.unplaced:
                    match[owner.key] = alike
                else:
                    num_gpu_tokens = num_tokens if gpu is None else gpu.get(bit, 0)
                    is_exact = not owner.unplaced
                    match[owner.key] = Hit(num_gpu_tokens, num_tokens, is_exact=is_exact)
        for bit, num_tokens in _by_bit(reached.predicted or []).items():
            key = by_bit[bit].key
            known = match.get(key, _NO_HIT)
            if num_tokens > known.num_gpu_tokens:
                match[key] = Hit(num_tokens, max(num_tokens, known.num_tokens), is_predicted=True)

    def _note_asked(self, prompt: Prompt, match: Match) -> None:
        """Near the bound, remember what prompts asked for, so that it is not what goes."""
        if len(self._asked) > self._max_blocks // 16:
            self._asked_before = self._asked
            self._asked = set()
        longest = max((hit.num_tokens for hit in match.values()), default=0)
        for size in {group.block_size for layout in self._families.masks for group in layout[0]}:
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
            self._families.join(owner)
        assert owner.layout is not None
        most = prompt.num_tokens if num_tokens is None else min(num_tokens, prompt.num_tokens)
        for size in {group.block_size for group in owner.layout[0]}:
            keys = prompt.keys(size)[: most // size]
            self._predictions.add(owner.slot.bit, keys, now + ttl_s)

    def settle(self, dest_key: DestinationKey, prompt: Prompt) -> None:
        """End what `predict` expects of a whole prompt: its leg is over.

        An engine announces what it has stored before it answers, so events have told by now. No
        event comes for what it had already.
        """
        owner = self._owners.get(dest_key)
        if owner is None or owner.layout is None:
            return
        for size in {group.block_size for group in owner.layout[0]}:
            self._predictions.settle(owner.slot.bit, prompt.keys(size)[-1:])

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
        figures = {name: getattr(counts, name) for name in counts.__slots__}
        figures["num_orphaned"] += owner.awaited.num_children
        return OwnerStats(
            num_blocks=num_blocks,
            num_ghosts=sum(map(len, owner.ghosts.values())),
            **figures,
        )


def _by_bit(reach: TokenReach) -> dict[int, int]:
    tokens_of = {}
    for mask, num_tokens in reach:
        left = mask
        while left:
            bit = left & -left
            tokens_of[bit] = num_tokens
            left ^= bit
    return tokens_of
