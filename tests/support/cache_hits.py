"""Recordings of `tools/record_cache.py`, and what the index makes of them."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from transload_router.core.index.hits import Hit
from transload_router.core.index.index import Index
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.decode import decode_batch
from transload_router.core.prompt import Prompt, pack_tokens

OWNER = ("e", 0)
NONE = Hit(0, 0)


@dataclass
class Compared:
    """One cache: what the engine would have found, beside the index's answer.

    Attributes:
        early: Answers before every group had announced a block.
    """

    name: str
    num_groups: int
    pairs: list[tuple[int, Hit]] = field(default_factory=list)
    early: list[Hit] = field(default_factory=list)

    @property
    def num_found(self) -> int:
        return sum(hit > 0 for hit, _ in self.pairs)

    @property
    def over(self) -> list[Hit]:
        return [ours for hit, ours in self.pairs if ours.num_tokens > hit]

    @property
    def num_under(self) -> int:
        return sum(ours.num_tokens < hit for hit, ours in self.pairs)


def compare(lines: Iterable[str]) -> Iterator[Compared]:
    """Feed each recorded cache to an index of its own."""
    compared: Compared | None = None
    index = Index()
    texts: list[list[int]] = []
    for line in lines:
        entry = json.loads(line)
        if "cache" in entry:
            if compared is not None:
                yield compared
            compared = Compared(entry["cache"], entry["groups"])
            texts = entry["texts"]
            index = Index()
            index.add_owner(OWNER, "m", 0)
        elif "events" in entry:
            for event in decode_batch(bytes.fromhex(entry["events"])).events:
                index.apply(OWNER, 0, event)
        else:
            lora, salt, text, length = entry["probe"]
            prompt = Prompt(Identity("m", lora), pack_tokens(texts[text][:length]), salt)
            assert compared is not None
            hit = index.match(prompt).get(OWNER, NONE)
            compared.pairs.append((entry["hit"], hit))
            if len(index._owners[OWNER].groups) < compared.num_groups:
                compared.early.append(hit)
    if compared is not None:
        yield compared


# Caches whose every answer is the engine's. In the others something cannot be known from events:
# parents that were never announced, since a window's first blocks came from elsewhere; entries
# inside a block.
EXACT = {
    "full",
    "full-one-token",
    "full+window",
    "window+full+window",
    "full+mamba",
    "mamba+full",
}
SHORT = {
    "window",
    "full-halves+window",
    "full+window-halves",
    "window+full-sparse",
    "full+mamba-align",
}
# A group of smaller blocks that skips some: nobody can tell which it has.
DOUBTFUL = {"full+window-sparse"}


def check(compared: Compared) -> None:
    """The index agrees with the engine, as far as events can tell."""
    assert compared.name in EXACT | SHORT | DOUBTFUL
    assert all(not hit.is_exact or hit in compared.early for hit in compared.over)
    if compared.name in EXACT:
        assert compared.num_under == 0
        assert compared.over == []
    elif compared.name in SHORT:
        assert len(compared.over) <= len(compared.early)
