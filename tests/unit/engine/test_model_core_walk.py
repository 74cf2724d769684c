"""Whatever a model's core is asked, no chunk finds other tokens' KV, and every answer is right."""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from support.recording_runner import RecordingRunner, answer
from transload_engine.core.handoff import Origin
from transload_engine.core.model_core import ModelCore
from transload_engine.core.request import Ask
from transload_engine.core.runner import Chunk
from transload_engine.core.settings import CoreSettings

BLOCK = 4
FAMILIES = [[family * 1000 + place for place in range(40)] for family in range(2)]

prompts = st.builds(
    lambda family, shared, tail: [*FAMILIES[family][:shared], *tail],
    st.integers(0, 1),
    st.integers(0, 24),
    st.lists(st.integers(5000, 5002), min_size=1, max_size=6),
)


class Walk(RuleBasedStateMachine):
    """Requests, aborts and resets before, in and behind the steps of a small cache."""

    def __init__(self) -> None:
        super().__init__()
        sizes = CoreSettings(
            block_size=BLOCK,
            num_blocks=13,
            max_model_tokens=48,
            max_batch_tokens=10,
            max_requests=3,
            schedules_async=False,
            has_connector=False,
        )
        self.core = ModelCore(sizes, Origin("e", "127.0.0.1", 1), eos=0)
        self.runner = RecordingRunner(BLOCK)
        self.chunks: Sequence[Chunk] = ()
        self.asked: dict[str, Ask] = {}
        self.gained: dict[str, list[int]] = {}

    @rule(prompt=prompts, count=st.integers(1, 12))
    def ask(self, prompt: list[int], count: int) -> None:
        name = f"r{len(self.asked)}"
        self.asked[name] = Ask(prompt, count)
        self.gained[name] = []
        self.core.add_request(name, self.asked[name])

    @precondition(lambda self: not self.chunks)
    @rule()
    def begin(self) -> None:
        self.chunks = self.core.begin(0.0)

    @precondition(lambda self: self.chunks)
    @rule()
    def end(self) -> None:
        for output in self.core.end(self.runner.run(self.chunks), 0.0).outputs:
            self.gained[output.request_id] += output.token_ids
            if output.finish is not None:
                ask = self.asked[output.request_id]
                assert self.gained.pop(output.request_id) == answer(ask.prompt, ask.max_tokens)
        self.chunks = ()

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
            self.begin()
            if not self.chunks:
                break
        assert self.gained == {}
        assert self.core.usage == 0.0


TestWalk = Walk.TestCase
# Took 3 s on 2 shared cores.
TestWalk.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
