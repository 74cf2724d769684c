"""Moving the blocks of a request as `kvabi/1` wants it, from its document alone (9)."""

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from conformance.abi_from_the_document_compare import compare, meetings, worst
from conformance.abi_from_the_document_elements import Parts, State, move_state
from conformance.abi_from_the_document_spelling import RefusedError, Tree
from conformance.abi_from_the_document_values import Cache, places_used


class PlanError(Exception):
    """Lists or counts that do not fit, or blocks that a query sees and that are not held."""


class MissingError(Exception):
    """A layer, head or token that no source holds."""


def plan_needs(holds: object, why: str) -> None:
    """Refuse the request unless `holds`."""
    if not holds:
        raise PlanError(why)


class Request(NamedTuple):
    """What is to move: tokens, and positions of the encoder where they are counted apart."""

    num_tokens: int
    first_token: int = 0
    num_encoder_tokens: int | None = None

    def range_of(self, g: Tree) -> tuple[int, int]:
        """The first token of a group and the end."""
        if g["kind"] == "cross" and self.num_encoder_tokens is not None:
            return 0, self.num_encoder_tokens
        return self.first_token, self.num_tokens


class Side(NamedTuple):
    """One side of a transfer: a cache and the request's blocks for each table."""

    cache: Cache
    blocks: dict[int, list[int]]


class Held:
    """The states of a request that the list of a group's table holds.

    A state has a number in the request; in the last entry of a `recurrent` or `ring` group, which
    stands for all tokens, it has its index there.
    """

    def __init__(self, g: Tree, side: Side, request: Request) -> None:
        """Align the list at its tail."""
        self.g, self.last_only = g, g["kind"] in ("recurrent", "ring")
        self.first_token, self.end = request.range_of(g)
        plan_needs(self.first_token <= self.end, "first_token is beyond the end")
        plan_needs(g["table"] in side.blocks, f"no list for table {g['table']}")
        self.blocks = side.blocks[g["table"]]
        cut = g["owner"]["tokens"]
        self.rank, self.size, self.step = (int(cut[k]) for k in ("rank", "size", "interleave"))
        self.tokens, (of, states) = int(g["tokens_per_block"]), g["tokens_per_state"]
        self.states = self.tokens * states // of
        # Where ranks share a list, its blocks are larger ones of all ranks' tokens.
        self.shared = self.tokens % self.step == 0
        self.first = self._blocks(self.end) - len(self.blocks)
        plan_needs(self.first >= 0, f"the list of table {g['table']} is longer than the request")
        if self.last_only:
            self.first, self.blocks = 0, self.blocks[-1:]

    def _blocks(self, end: int) -> int:
        if self.shared:
            return -(-end // (self.tokens * self.size))
        return -(-self._own(end) // self.tokens)

    def _own(self, end: int) -> int:
        """How many tokens below `end` lie on this rank."""
        turns, rest = divmod(end, self.step * self.size)
        return turns * self.step + min(max(rest - self.rank * self.step, 0), self.step)

    def begins_a_block(self) -> bool:
        """Whether `first_token` begins a block of this side."""
        if self.last_only:
            return True
        if self.shared:
            return self.first_token % (self.tokens * self.size) == 0
        return self._own(self.first_token) % self.tokens == 0

    def tokens_of(self, state: int) -> range:
        """The tokens of a state."""
        of, states = self.g["tokens_per_state"]
        return range(state * of // states, ((state + 1) * of - 1) // states + 1)

    def states_of(self, entry: int) -> list[int]:
        """The states of an entry of a list that begins with the request."""
        first, step = entry * self.states, self.step
        return [
            local // step * (step * self.size) + self.rank * step + local % step
            for local in range(first, first + self.states)
        ]

    def wanted(self) -> Iterator[tuple[int, int, int]]:
        """Each state that is to move here, with its block and its index there."""
        for i, block in enumerate(self.blocks):
            if block == self.g["null_block"]:
                continue
            for n, state in enumerate(self.states_of(self.first + i)):
                tokens = self.tokens_of(state)
                if self.last_only or (tokens[0] < self.end and tokens[-1] >= self.first_token):
                    yield state, block, n

    def find(self, state: int) -> tuple[int, int | None, int] | None:
        """The entry, block and index of a state: no block where it is not held now.

        None where it is another rank's.
        """
        if state // self.step % self.size != self.rank:
            return None
        local = state // (self.step * self.size) * self.step + state % self.step
        entry, n = divmod(local, self.states)
        at = entry - self.first
        inside = 0 <= at < len(self.blocks)
        held = inside and self.blocks[at] != self.g["null_block"]
        return entry, self.blocks[at] if held else None, n

    def piece_of(self, entry: int, n: int, other: "Held") -> list[int]:
        """The states that move together with one of an entry: as many as divide both blocks."""
        size = math.gcd(self.states, other.states)
        return self.states_of(entry)[n // size * size :][:size]

    def sees(self, by: Tree, states: list[int], first: int = 0) -> bool:
        """Whether the last token's query in group `by` sees a token from `first` of states."""
        if self.last_only:
            return True
        query, window = self.end - 1, by["window"]
        if by["kind"].startswith("sliding_window"):
            first = max(first, query - window + 1)
        elif by["kind"] == "chunked_local":
            first = max(first, query // window * window)
        tokens = (token for state in states for token in self.tokens_of(state))
        return any(first <= token <= query for token in tokens)


class Offer(NamedTuple):
    """A group of a source that has layers of the destination's group."""

    parts: Parts
    held: Held


class Step(NamedTuple):
    """One state of one layer and head on its way."""

    parts: Parts
    state: State


def move(sources: list[Side], target: Side, request: Request, allow_losses: bool = False) -> None:
    """Move the blocks of a request, element by element, or refuse and write nothing."""
    wanted = target.cache.descriptor
    pairs = [(source, compare(source.cache.descriptor, wanted)) for source in sources]
    # A source that has nothing to give takes no part where another one has.
    moving = [pair for pair in pairs if pair[1].moves] or pairs
    verdict = worst([v for _, comparison in moving for v in comparison.verdicts])
    if verdict.name == "refused" or (verdict.name == "lossy" and not allow_losses):
        raise RefusedError(verdict.path, f"the verdict is {verdict.name}")
    news = [g for g in wanted["groups"] if g["transferable"]]
    to = [Held(new, target, request) for new in news]
    _check_ids(target, news)
    _check_given_twice(target, news)
    steps = []
    for new, held in zip(news, to, strict=True):
        plan_needs(held.begins_a_block(), "first_token is inside of a block")
        if held.last_only:
            late = held.end > 0 and not held.blocks
        else:
            before = [state for entry in range(held.first) for state in held.states_of(entry)]
            late = held.sees(new, before, held.first_token)
        plan_needs(not late, "the destination's list begins after a token that is seen")
        steps += list(_steps(_offers([pair[0] for pair in moving], wanted, new, request), held))
    for step in steps:
        move_state(step.parts, target.cache, step.state)


def _check_ids(side: Side, groups: list[Tree]) -> None:
    counts = {pool["id"]: pool["num_blocks"] for pool in side.cache.descriptor["pools"]}
    for g in groups:
        count = min(counts[name] for place in places_used(g) for name in place["pools"])
        plan_needs(all(i < count for i in side.blocks[g["table"]]), "a block beyond its pool")


def _check_given_twice(side: Side, groups: list[Tree]) -> None:
    given: dict[str, dict[int, list[int]]] = {}
    for g in groups:
        ids = [i for i in side.blocks[g["table"]] if i != g["null_block"]]
        for name in {name for place in places_used(g) for name in place["pools"]}:
            given.setdefault(name, {})[g["table"]] = ids
    for tables in given.values():
        all_ids = [i for ids in tables.values() for i in ids]
        plan_needs(len(all_ids) == len(set(all_ids)), "a block of the destination twice")


def _offers(sources: list[Side], wanted: Tree, new: Tree, request: Request) -> list[Offer]:
    offers = []
    for source in sources:
        for met in meetings(source.cache.descriptor, wanted):
            if met.new is new and met.moves:
                held = Held(met.old, source, request)
                _check_ids(source, [met.old])
                offers.append(Offer(Parts(source.cache, met), held))
    return offers


def _steps(offers: list[Offer], to: Held) -> Iterator[Step]:
    """Find each state at the first source that holds it."""
    for state, block, n in to.wanted():
        for layer, head in product(to.g["layers"], range(*to.g["owner"]["heads"][:2])):
            lacking = []
            for offer in offers:
                met = offer.parts.met
                first, end, _ = met.old["owner"]["heads"]
                found = offer.held.find(state)
                if layer not in met.layers or not first <= head < end or found is None:
                    continue
                entry, source, index = found
                if source is not None:
                    old, to_ = (source, index), (block, n)
                    yield Step(offer.parts, State(layer, head, old, to_))
                    break
                lacking.append(offer.held.sees(to.g, offer.held.piece_of(entry, index, to)))
            else:
                if not lacking:
                    raise MissingError(f"nobody holds layer {layer}, head {head}, state {state}")
                plan_needs(not any(lacking), f"state {state} is seen and not held now")
