"""A publisher, a network that loses things, and a stream, against what is true of the engine."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from support.zmq_publisher import CLEARED, batch, removed, stored
from transload_router.core.kv_events.events import Cleared, Removed, Stored
from transload_router.core.kv_events.messages import (
    Apply,
    Clear,
    Event,
    Live,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    RequestReplay,
    StreamState,
    Subscribed,
)
from transload_router.core.kv_events.stream import EventStream

Blocks = Counter[object]


@dataclass
class World:
    """One publisher at a time, the stream, and the index that follows it.

    Attributes:
        history: What the engine held after each batch.
        buffer_steps: Batches that the publisher keeps.
        asked: The replay that waits for its answer.
        late: A live batch that others overtook.
    """

    buffer_steps: int
    stream: EventStream = field(default_factory=lambda: EventStream(max_held_batches=6))
    clock: float = 0.0
    payloads: list[bytes] = field(default_factory=list)
    history: list[Blocks] = field(default_factory=list)
    known: Blocks = field(default_factory=Counter)
    asked: int | None = None
    late: Live | None = None

    def tell(self, event: Event) -> bool:
        """Whether the stream asks for a replay now."""
        has_asked = False
        for command in self.stream.handle(event):
            match command:
                case Apply(one):
                    for told in one.events:
                        follow(self.known, told)
                case Clear():
                    self.known.clear()
                case RequestReplay(first_seq):
                    self.asked = first_seq
                    has_asked = True
        if self.stream.state is not StreamState.REPLAYING:
            self.asked = None
        self.check()
        return has_asked

    def check(self) -> None:
        """What is reported is true, as of the last batch applied; all of it if EXACT."""
        state, seq = self.stream.state, self.stream.next_seq
        if state in (StreamState.EXACT, StreamState.DEGRADED):
            truth = self.history[seq - 1] if seq else Counter()
            assert self.known <= truth, (state, seq)
            assert state is StreamState.DEGRADED or self.known == truth, seq
        assert len(self.stream.held) <= 6

    def publish(self, kind: str, pick: int) -> Live:
        self.clock += 1.0
        blocks = Counter(self.history[-1]) if self.history else Counter()
        live = sorted(blocks, key=str)
        events: list[dict[str, object]] = []
        if kind == "clear":
            events.append(CLEARED)
        elif kind == "remove" and live:
            events.append(removed(int(str(live[pick % len(live)]))))
        else:
            events.append(stored(pick % 7, 100 + pick))
        payload = batch(self.clock, *events)
        for told in events:
            match told["type"], told.get("block_hashes"):
                case "BlockStored", list(hashes):
                    blocks.update(hashes)
                case "BlockRemoved", list(hashes):
                    blocks.subtract(hashes)
                case _:
                    blocks.clear()
        self.payloads.append(payload)
        self.history.append(+blocks)
        return Live(len(self.payloads) - 1, payload)

    def answer(self, kind: str, pick: int) -> None:
        """Answer the replay that was asked for, well or badly."""
        if self.asked is None:
            return
        first = max(self.asked, len(self.payloads) - self.buffer_steps)
        seqs = list(range(first, len(self.payloads)))
        self.asked = None
        if kind == "hole" and len(seqs) > 2:
            del seqs[1 + pick % (len(seqs) - 1)]
        elif kind == "cut":
            seqs = seqs[: pick % (len(seqs) + 1)]
        for seq in seqs if kind != "none" else []:
            if self.tell(Replayed(seq, self.payloads[seq])):
                # The stream asks anew, so this answer is abandoned.
                return
        self.tell(ReplayFailed() if kind in ("none", "endless") else ReplayEnded())

    def restart(self) -> None:
        self.payloads, self.history, self.late = [], [], None
        self.tell(Subscribed())


def follow(known: Blocks, event: Stored | Removed | Cleared) -> None:
    match event:
        case Stored(hashes):
            known.update(hashes)
        case Removed(hashes):
            for one in hashes:
                if known[one] > 0:
                    known[one] -= 1
        case Cleared():
            known.clear()


def deliver(world: World, kind: str, pick: int) -> None:
    world.tell(world.publish(kind, pick))


def lose(world: World, kind: str, pick: int) -> None:
    world.publish(kind, pick)


def delay(world: World, kind: str, pick: int) -> None:
    world.late = world.publish(kind, pick)


def overtaken(world: World, _kind: str, _pick: int) -> None:
    if world.late is not None:
        world.tell(world.late)


def repeat(world: World, _kind: str, pick: int) -> None:
    if world.payloads:
        seq = pick % len(world.payloads)
        world.tell(Live(seq, world.payloads[seq]))


def connect_again(world: World, _kind: str, _pick: int) -> None:
    world.tell(Subscribed())


def restart(world: World, _kind: str, _pick: int) -> None:
    world.restart()


def answer_well(world: World, _kind: str, _pick: int) -> None:
    world.answer("well", 0)


def answer_badly(world: World, kind: str, pick: int) -> None:
    badly = {"store": "hole", "remove": "cut", "clear": "endless", "none": "none"}
    world.answer(badly[kind], pick)


Step = Callable[[World, str, int], None]
# Mostly what a network does; `deliver` and `answer_well` several times.
STEPS: list[Step] = [deliver, deliver, deliver, answer_well, answer_well, lose]
STEPS += [delay, overtaken, repeat, connect_again, restart, answer_badly]
WALKS = st.lists(
    st.tuples(
        st.sampled_from(STEPS),
        st.sampled_from(["store", "store", "remove", "clear", "none"]),
        st.integers(0, 60),
    ),
    max_size=40,
)


def settle(world: World) -> None:
    """Everything works again."""
    world.tell(world.publish("store", 1))
    for _ in range(9):
        world.answer("well", 0)


@settings(max_examples=300)
@given(WALKS, st.sampled_from([1, 3, 1000]), st.booleans())
def test_nothing_untrue_is_reported_and_all_of_it_in_the_end(
    walk: list[tuple[Step, str, int]], buffer_steps: int, is_late: bool
) -> None:
    world = World(buffer_steps)
    if is_late:
        for pick in range(4):
            world.publish("store", pick)
    world.tell(Subscribed())
    for step, kind, pick in walk:
        step(world, kind, pick)
    settle(world)
    assert world.stream.state in (StreamState.EXACT, StreamState.DEGRADED)
    world.tell(world.publish("clear", 0))
    world.tell(world.publish("store", 2))
    assert world.stream.state is StreamState.EXACT
    assert world.known == world.history[-1]


@given(WALKS)
def test_whoever_keeps_everything_is_known_exactly(walk: list[tuple[Step, str, int]]) -> None:
    world = World(1000)
    world.tell(Subscribed())
    for step, kind, pick in walk:
        if step is not answer_badly:
            step(world, kind, pick)
            # Answered before more is held than there is room for.
            world.answer("well", 0)
            world.answer("well", 0)
    settle(world)
    assert world.stream.state is StreamState.EXACT
    assert world.known == world.history[-1]
