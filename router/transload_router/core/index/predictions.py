"""What requests on their way will leave in caches: short-lived claims on keys, by owner.

Between the choice of an engine and its events lie seconds of prefill. A claim covers them, so
that requests with the same prefix see where it is going to be. It ends when events have told of
its last block, when its time is over, or with its owner.

Theory of operation:
    One table for all, key to mask, as for blocks. Each owner remembers which claim was the last
    on a key; only that one takes the bit away, so siblings' claims share keys without counts.
    Claims lie in a heap by deadline; a heap entry whose claim has ended is passed over.
"""

import heapq
from collections.abc import Iterable, Sequence

from transload_router.core.index.table import PART_SHIFT, Table, new_table

# Keys under claims at most, over all owners: a hundred bytes each. At 512 keys a request and one
# second of delay it stands for 500 requests a second without a shared token.
MAX_CLAIMED_KEYS = 262_144


class Claim:
    """One request's keys at one owner."""

    __slots__ = ("claims", "deadline_s", "is_live", "keys")

    def __init__(self, claims: "Claims", keys: list[int], deadline_s: float) -> None:
        self.claims = claims
        self.keys = keys
        self.deadline_s = deadline_s
        self.is_live = True

    def __lt__(self, other: "Claim") -> bool:
        return self.deadline_s < other.deadline_s


class Claims:
    """One owner's claims.

    Attributes:
        last: The latest-ending claim on each key.
        awaited: Claims by their last key, whose announcement ends them.
    """

    __slots__ = ("awaited", "bit", "last")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.last: dict[int, Claim] = {}
        self.awaited: dict[int, Claim] = {}


class Predictions:
    """All claims.

    Attributes:
        table: Key to mask of the owners under whose claims it is.
        claimants: Mask of the owners that have any.
        num_claims: Requests on their way.
        num_keys: Keys claimed, by all owners together.
        num_crowded_out: Claims that ended early for want of room.
    """

    __slots__ = (
        "_heap",
        "_owners",
        "claimants",
        "num_claims",
        "num_crowded_out",
        "num_keys",
        "table",
    )

    def __init__(self) -> None:
        self.table: Table = new_table()
        self.claimants = 0
        self.num_claims = 0
        self.num_keys = 0
        self.num_crowded_out = 0
        self._heap: list[Claim] = []
        self._owners: dict[int, Claims] = {}

    def add(self, bit: int, keys: Sequence[int], deadline_s: float) -> None:
        """Claim keys, a prompt's first ones in order, for the owner of a bit."""
        if not keys or len(keys) > MAX_CLAIMED_KEYS:
            return
        claims = self._owners.get(bit)
        if claims is None:
            claims = self._owners[bit] = Claims(bit)
            self.claimants |= bit
        earlier = claims.awaited.get(keys[-1])
        if earlier is not None and earlier.deadline_s >= deadline_s:
            return
        claim = Claim(claims, list(keys), deadline_s)
        claims.awaited[keys[-1]] = claim
        self._take(claims, claim)
        if earlier is not None:
            self._end(earlier)
        heapq.heappush(self._heap, claim)
        self.num_claims += 1
        while self.num_keys > MAX_CLAIMED_KEYS:
            self.num_crowded_out += self._end(heapq.heappop(self._heap))
        if len(self._heap) > 64 and len(self._heap) > 2 * self.num_claims:
            self._heap = [one for one in self._heap if one.is_live]
            heapq.heapify(self._heap)

    def _take(self, claims: Claims, claim: Claim) -> None:
        table, last, bit, deadline_s = self.table, claims.last, claims.bit, claim.deadline_s
        keys = claim.keys
        if last.keys().isdisjoint(keys):
            new = keys
            last.update(dict.fromkeys(keys, claim))
        else:
            new = []
            for key in keys:
                holder = last.get(key)
                if holder is None:
                    new.append(key)
                    last[key] = claim
                elif holder.deadline_s <= deadline_s:
                    last[key] = claim
        for key in new:
            part = table[key >> PART_SHIFT]
            part[key] = part.get(key, 0) | bit
        self.num_keys += len(new)

    def settle(self, bit: int, keys: Iterable[int]) -> None:
        """Events have told of these keys."""
        claims = self._owners.get(bit)
        if claims is None or claims.awaited.keys().isdisjoint(keys):
            return
        for key in keys:
            claim = claims.awaited.get(key)
            if claim is not None:
                self._end(claim)

    def expire(self, now: float) -> None:
        """End what is over."""
        heap = self._heap
        while heap and (heap[0].deadline_s <= now or not heap[0].is_live):
            self._end(heapq.heappop(heap))

    def forget(self, bit: int) -> None:
        """The owner of a bit is gone."""
        claims = self._owners.get(bit)
        if claims is not None:
            for claim in list(claims.awaited.values()):
                self._end(claim)

    def _end(self, claim: Claim) -> bool:
        if not claim.is_live:
            return False
        claim.is_live = False
        self.num_claims -= 1
        claims, table = claim.claims, self.table
        if claims.awaited[claim.keys[-1]] is claim:
            del claims.awaited[claim.keys[-1]]
        last, bit = claims.last, claims.bit
        mine = [key for key in claim.keys if last.get(key) is claim]
        for key in mine:
            del last[key]
            part = table[key >> PART_SHIFT]
            mask = part[key]
            if mask == bit:
                del part[key]
            else:
                part[key] = mask ^ bit
        self.num_keys -= len(mine)
        claim.keys = []
        if not claims.awaited:
            del self._owners[claims.bit]
            self.claimants ^= claims.bit
        return True
