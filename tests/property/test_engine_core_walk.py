"""Whatever a simulated engine is asked, it serves it rightly, and holds nothing back."""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from transload_engine.core.engine_core import EngineCore
from transload_engine.core.events import AllBlocksCleared, BlockStored
from transload_engine.core.handoff import Handoff, Origin
from transload_engine.core.request import Ask, Finish, Generator
from transload_engine.core.scheduler import Load
from transload_engine.core.serving import Step
from transload_engine.core.settings import CoreSettings

BLOCK, VOCABULARY = 4, range(100, 1000)
HANDOFF = Handoff("other", "theirs", "127.0.0.1", 7001, 3)
FAMILIES = [[family * 1000 + place for place in range(40)] for family in range(3)]

prompts = st.builds(
    lambda family, shared, tail: [*FAMILIES[family][:shared], *tail],
    st.integers(0, 2),
    st.integers(0, 24),
    st.lists(st.integers(5000, 5003), min_size=1, max_size=6),
)


def expected(prompt: Sequence[int], count: int) -> list[int]:
    generator = Generator(prompt, 0, VOCABULARY, 0, 0)
    return [generator.next() for _ in range(count)]


class Walk(RuleBasedStateMachine):
    """Requests, aborts, loads, leases and resets against a small cache."""

    schedules_async = False

    def __init__(self) -> None:
        super().__init__()
        sizes: dict[str, Any] = {
            "block_size": BLOCK,
            "num_blocks": 13,
            "max_model_tokens": 48,
            "max_batch_tokens": 10,
            "max_requests": 3,
            "lease_s": 10.0,
            "fails_with_load": False,
        }
        core = CoreSettings(**sizes, schedules_async=self.schedules_async)
        self.core = EngineCore(core, Origin("e", "127.0.0.1", 1), VOCABULARY, 0)
        self.now = 0.0
        self.asked: dict[str, Ask] = {}
        self.gained: dict[str, list[int]] = {}
        self.loads: dict[str, Load] = {}
        self.held: list[str] = []
        self.told: dict[Any, int] = {}

    @rule(prompt=prompts, count=st.integers(1, 12), kind=st.sampled_from(["", "hand", "load"]))
    def ask(self, prompt: list[int], count: int, kind: str) -> None:
        name = f"r{len(self.asked)}"
        handoff = HANDOFF if kind == "load" else None
        self.asked[name] = Ask(prompt, count, hands_off=kind == "hand", handoff=handoff)
        self.gained[name] = []
        self.core.add_request(name, self.asked[name])

    @rule()
    def step(self) -> None:
        self.take(self.core.step(self.now))

    @precondition(lambda self: self.gained)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.gained)))
        self.core.abort(name)
        del self.gained[name]

    @precondition(lambda self: self.loads)
    @rule(data=st.data(), succeeds=st.booleans())
    def end_load(self, data: st.DataObject, succeeds: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.loads)))
        del self.loads[name]
        self.core.end_load(name, self.asked[name].prompt if succeeds else None)

    @precondition(lambda self: self.held)
    @rule()
    def end_lease(self) -> None:
        name = self.held.pop()
        assert list(self.core.leases.held[name].tokens)[: len(self.asked[name].prompt)] == list(
            self.asked[name].prompt
        )
        assert self.core.end_lease(name)

    @precondition(lambda self: self.held)
    @rule()
    def let_leases_run_out(self) -> None:
        self.now += 10.0
        self.core.expire(self.now)
        self.held = []

    @rule()
    def reset(self) -> None:
        self.core.reset_prefix_cache()

    def take(self, step: Step) -> None:
        for load in step.loads:
            self.loads[load.request_id] = load
        for event in step.events:
            if isinstance(event, AllBlocksCleared):
                self.told.clear()
                continue
            for name in event.block_hashes:
                gain = 1 if isinstance(event, BlockStored) else -1
                self.told[name] = self.told.get(name, 0) + gain
                assert self.told[name] >= 0, "a block was removed that was not stored"
        for output in step.outputs:
            assert output.finish is not Finish.ERROR
            self.gained[output.request_id] += output.token_ids
            if output.finish is not None:
                ask = self.asked[output.request_id]
                answer = self.gained.pop(output.request_id)
                assert answer == expected(ask.prompt, ask.max_tokens)
                if output.handoff is not None:
                    self.held.append(output.request_id)

    @invariant()
    def the_cache_is_within_its_bounds(self) -> None:
        assert 0.0 <= self.core.usage <= 1.0

    def teardown(self) -> None:
        """Let all end: every answer is whole, every block free, every event told."""
        for _ in range(2000):
            self.take(self.core.step(self.now))
            if self.loads:
                name, _load = self.loads.popitem()
                self.core.end_load(name, self.asked[name].prompt)
            if self.held:
                self.core.end_lease(self.held.pop())
            if not self.core.has_work and not self.loads and not self.held:
                break
        assert self.gained == {}
        assert self.core.usage == 0.0
        assert self.core.reset_prefix_cache()


class AsyncWalk(Walk):
    """The same, with each step composed before the outcome of the one before is known."""

    schedules_async = True


# Both machines took 6 s on 2 shared cores at load 8.
BOUNDS = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestWalk = Walk.TestCase
TestWalk.settings = BOUNDS
TestAsyncWalk = AsyncWalk.TestCase
TestAsyncWalk.settings = BOUNDS
