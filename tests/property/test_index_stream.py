"""A publisher whose batches are lost, repeated, late or forgotten; the index never says too much.

An engine stores and removes blocks at random and numbers its batches. What of them comes through
goes through `EventStream` into an index. Where the stream says EXACT, the index holds what the
engine holds; in any other settled state, nothing that it does not hold.
"""

from collections import Counter

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from support.index_model import MODEL, Asked, check_structure, name_of, stored
from transload_router.core.index.index import Index
from transload_router.core.kv_events.events import Stored
from transload_router.core.kv_events.messages import (
    Apply,
    Clear,
    Command,
    Live,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    RequestReplay,
    StreamState,
    Subscribed,
)
from transload_router.core.kv_events.stream import EventStream

ENGINE = ("p0", 0)
SIZE = 4
LONG = tuple(range(100, 100 + 6 * SIZE))
TEXTS = [Asked((*LONG, 0)), Asked((*LONG[: 2 * SIZE], *range(50, 50 + 3 * SIZE), 0))]


def wire(event: Stored) -> dict[str, object]:
    """As vLLM 0.32 writes it."""
    return {
        "type": "BlockStored",
        "block_hashes": event.block_hashes,
        "parent_block_hash": event.parent_block_hash,
        "token_ids": event.token_ids,
        "block_size": event.block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": event.extra_keys,
        "group_idx": 0,
    }


class Publisher(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.held: Counter[Asked] = Counter()
        self.kept: dict[int, bytes] = {}
        self.next_seq = 0
        self.clock = 0.0
        self.pending: list[dict[str, object]] = []
        self.stream = EventStream()
        self.index = Index()
        self.index.add_owner(ENGINE, MODEL, 0)
        self.answers: list[int] = []
        self._do(self.stream.handle(Subscribed()))

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Apply):
                for event in command.batch.events:
                    self.index.apply(ENGINE, 0, event)
            elif isinstance(command, Clear):
                self.index.clear(ENGINE)
            elif isinstance(command, RequestReplay):
                self.answers = [command.first_seq]

    @rule(text=st.integers(0, 1), first=st.integers(0, 5), count=st.integers(1, 6))
    def store(self, text: int, first: int, count: int) -> None:
        asked = TEXTS[text]
        count = min(count, len(asked.tokens) // SIZE - first)
        # An engine has the blocks before those that it stores.
        if count < 1 or any(not self.held[asked.prefix(n * SIZE)] for n in range(1, first + 1)):
            return
        self.held.update(asked.prefix((n + 1) * SIZE) for n in range(first, first + count))
        self.pending.append(wire(stored(asked, first, count, SIZE)))

    @rule(text=st.integers(0, 1), block=st.integers(0, 5))
    def remove(self, text: int, block: int) -> None:
        prefix = TEXTS[text].prefix((block + 1) * SIZE)
        if self.held[prefix]:
            self.held[prefix] -= 1
            gone: dict[str, object] = {
                "type": "BlockRemoved",
                "block_hashes": [name_of(prefix)],
                "medium": "GPU",
            }
            self.pending.append(gone)

    @rule()
    def reset(self) -> None:
        self.held.clear()
        self.pending.append({"type": "AllBlocksCleared"})

    @rule(is_lost=st.booleans(), is_doubled=st.booleans())
    def publish(self, is_lost: bool, is_doubled: bool) -> None:
        self.clock += 1.0
        payload = msgspec.msgpack.encode([self.clock, self.pending, 0])
        self.pending = []
        seq = self.next_seq
        self.next_seq += 1
        self.kept[seq] = payload
        if not is_lost:
            self._do(self.stream.handle(Live(seq, payload)))
        if is_doubled and not is_lost:
            self._do(self.stream.handle(Live(seq, payload)))

    @rule(seq=st.integers(0, 30))
    def forget(self, seq: int) -> None:
        """The replay buffer is no longer what it was."""
        self.kept.pop(seq, None)

    @rule()
    def restart(self) -> None:
        self.clock += 1.0
        self.held.clear()
        self.kept.clear()
        self.pending = []
        self.next_seq = 0

    @rule(is_whole=st.booleans())
    def answer(self, is_whole: bool) -> None:
        if not self.answers:
            return
        first = self.answers.pop()
        for seq in sorted(seq for seq in self.kept if seq >= first):
            self._do(self.stream.handle(Replayed(seq, self.kept[seq])))
            if self.answers:
                return
        self._do(self.stream.handle(ReplayEnded() if is_whole else ReplayFailed()))

    def _engine_tokens(self, asked: Asked) -> int:
        tokens = 0
        while tokens + SIZE < len(asked.tokens) and self.held[asked.prefix(tokens + SIZE)] > 0:
            tokens += SIZE
        return tokens

    @invariant()
    def structure_is_sound(self) -> None:
        check_structure(self.index)

    @rule()
    def compare(self) -> None:
        """Once a batch came through live, the stream knows of everything before it."""
        self.publish(False, False)
        for _ in range(50):
            if not self.answers:
                break
            self.answer(True)
        if self.stream.state not in (StreamState.EXACT, StreamState.DEGRADED):
            return
        for asked in TEXTS:
            hit = self.index.match(asked.prompt()).get(ENGINE)
            ours = 0 if hit is None else hit.num_tokens
            assert ours <= self._engine_tokens(asked)
            if self.stream.state is StreamState.EXACT:
                assert ours == self._engine_tokens(asked)


TestPublisher = pytest.mark.timeout(120)(Publisher.TestCase)
TestPublisher.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
