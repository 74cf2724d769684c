"""Whatever a model's core is asked, no chunk finds other tokens' KV, and every answer is right."""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from support.recording_runner import RecordingRunner, answer
from transload_engine.core.handoff import Grant, Handoff, Origin
from transload_engine.core.model_core import ModelCore
from transload_engine.core.request import Ask
from transload_engine.core.runner import Chunk
from transload_engine.core.scheduler import Load
from transload_engine.core.settings import CoreSettings
from transload_engine.core.transfers import FailedLoad, Loaded, LoadProblem

BLOCK = 4
HANDOFF = Handoff("p", "h", "127.0.0.1", 2, 1, None, "lease", "p")
FAMILIES = [[family * 1000 + place for place in range(40)] for family in range(2)]

prompts = st.builds(
    lambda family, shared, tail: [*FAMILIES[family][:shared], *tail],
    st.integers(0, 1),
    st.integers(0, 24),
    st.lists(st.integers(5000, 5002), min_size=1, max_size=6),
)


def answer_of(ask: Ask) -> list[int]:
    return answer(ask.prompt, ask.max_tokens)


class Walk(RuleBasedStateMachine):
    """Requests, loads, leases, aborts and resets before, in and behind the steps of a small cache.

    A load's bytes come in parts, also for a request that was aborted; whatever else takes one of
    its blocks meanwhile is found out by the runner.
    """

    def __init__(self) -> None:
        super().__init__()
        sizes = CoreSettings(
            block_size=BLOCK,
            num_blocks=13,
            max_model_tokens=48,
            max_batch_tokens=10,
            max_requests=3,
            schedules_async=False,
            fails_with_load=False,
        )
        leases = iter(map(str, range(10_000)))
        self.core = ModelCore(sizes, Origin("e", "127.0.0.1", 1), 0, leases.__next__)
        self.loads: list[Load] = []
        self.grants: list[tuple[Grant, list[int]]] = []
        self.runner = RecordingRunner(BLOCK)
        self.chunks: Sequence[Chunk] = ()
        self.asked: dict[str, Ask] = {}
        self.gained: dict[str, list[int]] = {}

    @rule(prompt=prompts, count=st.integers(1, 12), kind=st.sampled_from(["", "hand off", "load"]))
    def ask(self, prompt: list[int], count: int, kind: str) -> None:
        name = f"r{len(self.asked)}"
        handoff = HANDOFF if kind == "load" else None
        ask = Ask(prompt, count, hands_off=kind == "hand off", handoff=handoff)
        self.asked[name] = ask
        self.gained[name] = []
        self.core.add_request(name, self.asked[name])

    @precondition(lambda self: not self.chunks)
    @rule()
    def begin(self) -> None:
        self.chunks = self.core.begin(0.0)
        self.loads += self.core.take_loads()

    @precondition(lambda self: self.chunks)
    @rule()
    def end(self) -> None:
        for output in self.core.end(self.runner.run(self.chunks), 0.0).outputs:
            self.gained[output.request_id] += output.token_ids
            if output.finish is not None:
                ask = self.asked[output.request_id]
                assert self.gained.pop(output.request_id) == answer_of(ask)
                assert (output.handoff is not None) == ask.hands_off
        self.grants += [
            (grant, [*self.asked[grant.handoff].prompt, *answer_of(self.asked[grant.handoff])])
            for grant in self.core.take_grants()
        ]
        self.chunks = ()

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        """Some bytes of a load come."""
        load = data.draw(st.sampled_from(self.loads))
        first = data.draw(st.integers(load.num_local_tokens, load.num_tokens - 1))
        self._fill(load, first, data.draw(st.integers(first, load.num_tokens)))

    @precondition(lambda self: self.loads)
    @rule(data=st.data(), fails=st.booleans())
    def end_load(self, data: st.DataObject, fails: bool) -> None:
        load = data.draw(st.sampled_from(self.loads))
        self.loads.remove(load)
        if fails:
            self.core.end_load(load, FailedLoad(LoadProblem.EXPIRED, "gone"))
            return
        self._fill(load, load.num_local_tokens, load.num_tokens)
        self.core.end_load(load, Loaded(1, 0.0))

    def _fill(self, load: Load, first: int, end: int) -> None:
        prompt = self.asked[load.request_id].prompt
        for at in range(first, end):
            self.runner.slots[load.block_ids[at // BLOCK], at % BLOCK] = tuple(prompt[: at + 1])

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), end=st.sampled_from(["ended", "expired", "forgone"]))
    def end_lease(self, data: st.DataObject, end: str) -> None:
        """Until then the blocks hold what was granted."""
        held = data.draw(st.sampled_from(self.grants))
        self.grants.remove(held)
        grant, tokens = held
        for at in range(grant.num_tokens):
            slot = (grant.block_ids[at // BLOCK], at % BLOCK)
            assert self.runner.slots[slot] == tuple(tokens[: at + 1])
        self.core.end_lease(grant.handoff, grant.lease, end)

    @precondition(lambda self: self.gained)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.gained)))
        self.core.abort(name)
        del self.gained[name]

    @rule()
    def reset(self) -> None:
        assert self.core.reset_prefix_cache() == (self.core.usage == 0.0)

    def teardown(self) -> None:
        """Let all end: every answer is whole, every block free."""
        for _ in range(1000):
            if self.chunks:
                self.end()
            for load in self.loads:
                self._fill(load, load.num_local_tokens, load.num_tokens)
                self.core.end_load(load, Loaded(1, 0.0))
            self.loads.clear()
            for grant, _ in self.grants:
                self.core.end_lease(grant.handoff, grant.lease, "expired")
            self.grants.clear()
            self.begin()
            if not (self.chunks or self.loads):
                break
        assert self.gained == {}
        assert self.core.usage == 0.0


TestWalk = Walk.TestCase
# Took 3 s on 2 shared cores.
TestWalk.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
