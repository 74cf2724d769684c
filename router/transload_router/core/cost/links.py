"""What handing a prompt's blocks from one destination to another takes.

Seconds = latency + tokens * seconds per token, learned per pair. A pair that was never used is
thought to be like the mean of what its two ends do with others, and those like the fleet.
"""

from transload_router.core.cost.regression import Regression, Vector, dot
from transload_router.core.types import DestinationKey

Pair = tuple[DestinationKey, DestinationKey]
Link = tuple[float, float]

# Where a prior is believed: tokens moved.
TYPICAL_HANDOFFS = ((1.0, 512.0), (1.0, 8192.0), (1.0, 65536.0))
# An end's handoffs with others say less of a pair than the pair's own.
PAIR_STRENGTH, END_STRENGTH = 0.3, 0.3
# Before anything is measured: 5 ms, and 128 KiB a token (8B models in 16 bits) at 10 GB/s.
FIRST_GUESS: Link = (0.005, 1.3e-5)


class Links:
    """Latency and seconds per token of every pair."""

    def __init__(self, guess: Link = FIRST_GUESS) -> None:
        self._guess = guess
        self._all = Regression(TYPICAL_HANDOFFS, END_STRENGTH)
        self._fleet: Link = guess
        self._prefill: dict[DestinationKey, Regression] = {}
        self._decode: dict[DestinationKey, Regression] = {}
        self._pairs: dict[Pair, Regression] = {}
        self._of_prefill: dict[DestinationKey, Link] = {}
        self._of_decode: dict[DestinationKey, Link] = {}
        self._of_pair: dict[Pair, Link] = {}
        self._floors: dict[DestinationKey, Link] = {}
        self._least_prefill: Link = guess

    def of(self, prefill: DestinationKey, decode: DestinationKey) -> Link:
        """What is expected of a pair."""
        link = self._of_pair.get((prefill, decode))
        if link is not None:
            return link
        one = self._of_prefill.get(prefill, self._fleet)
        other = self._of_decode.get(decode, self._fleet)
        return (one[0] + other[0]) / 2, (one[1] + other[1]) / 2

    def floor(self, decode: DestinationKey) -> Link:
        """No pair with this decode destination is expected to be faster, in either term."""
        one = self._least_prefill
        other = self._of_decode.get(decode, self._fleet)
        latency, token_s = (one[0] + other[0]) / 2, (one[1] + other[1]) / 2
        own = self._floors.get(decode)
        if own is None:
            return latency, token_s
        return min(latency, own[0]), min(token_s, own[1])

    def observe(
        self, prefill: DestinationKey, decode: DestinationKey, num_tokens: int, seconds: float
    ) -> None:
        """Take in one handoff of so many tokens."""
        features = (1.0, float(num_tokens))
        expected_s = dot(self.of(prefill, decode), features)
        one = self._prefill.get(prefill) or _new_end(self._prefill, prefill)
        other = self._decode.get(decode) or _new_end(self._decode, decode)
        pair = (prefill, decode)
        own = self._pairs.get(pair)
        if own is None:
            own = self._pairs[pair] = Regression(TYPICAL_HANDOFFS, PAIR_STRENGTH)
        for regression in (self._all, one, other, own):
            regression.observe(features, seconds, expected_s)
        if own.is_due:
            self._fit(pair, one, other, own)

    def _fit(self, pair: Pair, one: Regression, other: Regression, own: Regression) -> None:
        """From the fleet to the pair, each the prior of the next."""
        prefill, decode = pair
        self._fleet = _link(self._all.fit(self._guess))
        sends = self._of_prefill[prefill] = _link(one.fit(self._fleet))
        takes = self._of_decode[decode] = _link(other.fit(self._fleet))
        mean = ((sends[0] + takes[0]) / 2, (sends[1] + takes[1]) / 2)
        self._of_pair[pair] = _link(own.fit(mean))
        self._settle_floors()

    def forget(self, engine_id: str) -> None:
        """Drop whatever was learned with one of an engine's ranks."""
        for ends in (self._prefill, self._decode, self._of_prefill, self._of_decode):
            for key in [key for key in ends if key[0] == engine_id]:
                del ends[key]
        for pairs in (self._pairs, self._of_pair):
            for pair in [pair for pair in pairs if engine_id in (pair[0][0], pair[1][0])]:
                del pairs[pair]
        self._settle_floors()

    def _settle_floors(self) -> None:
        ends = [self._fleet, *self._of_prefill.values()]
        self._least_prefill = (min(end[0] for end in ends), min(end[1] for end in ends))
        floors: dict[DestinationKey, Link] = {}
        for (_prefill, decode), link in self._of_pair.items():
            known = floors.get(decode, link)
            floors[decode] = (min(known[0], link[0]), min(known[1], link[1]))
        self._floors = floors


def _link(coefficients: Vector) -> Link:
    latency, token_s = coefficients
    return latency, token_s


def _new_end(ends: dict[DestinationKey, Regression], key: DestinationKey) -> Regression:
    end = ends[key] = Regression(TYPICAL_HANDOFFS, END_STRENGTH)
    return end
