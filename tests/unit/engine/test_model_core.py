"""A model's core: chunks exactly as they are scheduled, and what comes of what was chosen."""

from typing import Any

import pytest

from support.block_hashes import DEFAULT_SEED, as_int, chain, sha256_cbor
from support.recording_runner import RecordingRunner, answer, follower
from transload_engine.core.events import BlockRemoved, BlockStored
from transload_engine.core.handoff import Origin
from transload_engine.core.hashes import HashAlgorithm
from transload_engine.core.model_core import ModelCore
from transload_engine.core.request import Ask, Finish
from transload_engine.core.runner import Chosen, Chunk, Sampling
from transload_engine.core.serving import Output, Step
from transload_engine.core.settings import CoreSettings

EOS = 9
SAMPLING = Sampling(temperature=0.5, seed=3)


def make(**settings: Any) -> ModelCore:
    """Blocks of 4 tokens, 10 of them free."""
    values = {
        "block_size": 4,
        "num_blocks": 11,
        "max_model_tokens": 40,
        "schedules_async": False,
        **settings,
    }
    return ModelCore(CoreSettings(**values), Origin("e", "127.0.0.1", 0), EOS, iter("xyz").__next__)


class Driver:
    """A core and a runner that checks what its chunks take for written."""

    def __init__(self, **settings: Any) -> None:
        self.core = make(**settings)
        self.runner = RecordingRunner(self.core.settings.block_size)
        self.outputs: list[Output] = []

    def ask(self, name: str, prompt: list[int], count: int, **more: Any) -> None:
        self.core.add_request(name, Ask(prompt, count, **more))

    def step(self) -> Step:
        chunks = self.core.begin(0.0)
        assert chunks, "there is nothing to compute"
        step = self.core.end(self.runner.run(chunks), 0.0)
        self.outputs += step.outputs
        return step

    def run(self) -> None:
        for _ in range(300):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the core never comes to rest")

    def tokens(self, name: str) -> list[int]:
        return [
            token for each in self.outputs if each.request_id == name for token in each.token_ids
        ]


def prompt(length: int, first: int = 10) -> list[int]:
    return [first, *range(20, 20 + length - 1)]


def test_a_prompt_is_one_chunk_and_each_token_of_its_answer_another() -> None:
    driver = Driver()
    driver.ask("a", prompt(6), 3, sampling=SAMPLING)
    driver.run()
    first, second, third = answer(prompt(6), 3)
    tokens = prompt(6)
    assert driver.runner.steps == [
        [Chunk("a", tokens, 6, 0, 6, [1, 2], SAMPLING, 0)],
        [Chunk("a", [*tokens, first], 6, 6, 7, [1, 2], SAMPLING, 1)],
        [Chunk("a", [*tokens, first, second], 6, 7, 8, [1, 2], SAMPLING, 2)],
    ]
    assert driver.tokens("a") == [first, second, third]
    assert driver.outputs[-1].finish is Finish.LENGTH
    assert driver.core.usage == 0


def test_an_idle_core_begins_no_step() -> None:
    assert make().begin(0.0) == []


def test_a_long_prompt_is_computed_in_parts_that_choose_nothing() -> None:
    driver = Driver(max_batch_tokens=8)
    driver.ask("a", prompt(4), 4)
    driver.ask("b", prompt(20, 11), 1)
    driver.run()
    shapes = [
        [(each.request_id, each.first, each.end, each.sampling is not None) for each in step]
        for step in driver.runner.steps
    ]
    assert shapes == [
        [("a", 0, 4, True), ("b", 0, 4, False)],
        [("a", 4, 5, True), ("b", 4, 11, False)],
        [("a", 5, 6, True), ("b", 11, 18, False)],
        [("a", 6, 7, True), ("b", 18, 20, True)],
    ]
    assert [len(each.block_ids) for step in driver.runner.steps for each in step[1:]] == [
        1,
        3,
        5,
        5,
    ]


def test_a_hit_is_not_computed_again() -> None:
    driver = Driver()
    driver.ask("a", prompt(10), 1)
    driver.run()
    driver.ask("b", [*prompt(10)[:8], 99], 2)
    driver.run()
    first, second, third = (step[0] for step in driver.runner.steps)
    assert (second.first, second.end) == (8, 9)
    assert list(second.block_ids[:2]) == list(first.block_ids[:2])
    assert third.num_drawn == 1
    assert driver.outputs[1].num_cached_tokens == 8
    assert driver.tokens("b") == answer([*prompt(10)[:8], 99], 2)


def test_a_block_can_be_hit_in_the_step_that_computes_it() -> None:
    driver = Driver()
    driver.ask("a", prompt(9), 1)
    driver.ask("b", prompt(9), 1)
    driver.step()
    ((a, b),) = driver.runner.steps
    assert (a.first, b.first) == (0, 8)
    assert list(a.block_ids[:2]) == list(b.block_ids[:2])
    assert a.block_ids[2] != b.block_ids[2]


def test_who_is_put_back_is_computed_again_with_its_answer_so_far() -> None:
    driver = Driver(num_blocks=7, max_model_tokens=24, caches_prefixes=False)
    driver.ask("a", prompt(8), 12, sampling=SAMPLING)
    driver.ask("b", prompt(8, 11), 12, sampling=SAMPLING)
    driver.run()
    assert driver.core.counters.num_preemptions == 1
    (again,) = [
        each
        for step in driver.runner.steps[1:]
        for each in step
        if each.request_id == "b" and each.first == 0
    ]
    assert again.end == len(again.token_ids) == 8 + again.num_drawn
    assert again.num_drawn > 0
    assert again.sampling == SAMPLING
    for name, first in (("a", 10), ("b", 11)):
        assert driver.tokens(name) == answer(prompt(8, first), 12)


def test_who_is_aborted_while_computed_keeps_its_blocks_until_the_step_ends() -> None:
    driver = Driver()
    driver.ask("a", prompt(8), 4)
    driver.ask("b", prompt(8, 11), 4)
    chunks = driver.core.begin(0.0)
    driver.core.abort("a")
    assert driver.core.usage == pytest.approx(4 / 10)
    assert not driver.core.reset_prefix_cache()
    step = driver.core.end(driver.runner.run(chunks), 0.0)
    assert [each.request_id for each in step.outputs] == ["b"]
    assert driver.core.usage == pytest.approx(2 / 10)
    assert (driver.core.num_running, driver.core.num_waiting) == (1, 0)
    driver.ask("a", prompt(8), 1)
    driver.run()
    assert driver.tokens("a") == answer(prompt(8), 1)


def test_who_is_aborted_between_steps_is_gone_at_once() -> None:
    driver = Driver()
    driver.ask("a", prompt(8), 4)
    driver.step()
    driver.core.abort("a")
    assert driver.core.usage == 0
    assert driver.core.begin(0.0) == []


def test_what_is_told_about_a_token_comes_with_it() -> None:
    driver = Driver()
    told = Chosen(50, logprob=-0.5, rank=2, alternatives=((51, -0.25),))
    driver.runner.chooses = lambda _: told
    driver.ask("a", prompt(4), 1)
    assert driver.step().outputs == [
        Output("a", (50,), Finish.LENGTH, num_cached_tokens=0, chosen=told)
    ]


def test_ends_are_those_that_were_asked_for() -> None:
    driver = Driver()
    driver.runner.chooses = lambda chunk: Chosen(EOS if chunk.num_drawn == 1 else 50)
    driver.ask("eos", prompt(4), 5, ignore_eos=False)
    driver.ask("all", prompt(4), 3)
    driver.ask("stop", prompt(4), 5, stop_token_ids=frozenset({50}))
    driver.ask("late", prompt(4), 5, stop_token_ids=frozenset({50}), min_tokens=2)
    driver.run()
    ends = {
        each.request_id: (each.finish, each.stop_reason, len(driver.tokens(each.request_id)))
        for each in driver.outputs
        if each.finish
    }
    assert ends == {
        "eos": (Finish.STOP, None, 2),
        "all": (Finish.LENGTH, None, 3),
        "stop": (Finish.STOP, 50, 1),
        "late": (Finish.STOP, 50, 3),
    }


def test_events_name_blocks_as_vllm_does_when_their_step_ends() -> None:
    driver = Driver(hash_algorithm=HashAlgorithm.SHA256_CBOR)
    driver.ask("a", prompt(8), 1, cache_salt="s")
    keys = [(("cache_salt", "s"),), None]
    names = chain(sha256_cbor, sha256_cbor(DEFAULT_SEED), prompt(8), 4, keys)
    (event,) = driver.step().events
    assert isinstance(event, BlockStored)
    assert event.block_hashes == [as_int(name) for name in names]
    assert event.extra_keys == [("s",), None]
    driver.ask("b", prompt(36, 11), 1)
    removed = [each for each in driver.step().events if isinstance(each, BlockRemoved)]
    assert [each.block_hashes for each in removed] == [[as_int(names[1])]]


def test_a_runner_that_chose_nothing_is_found_out() -> None:
    core = make()
    core.add_request("a", Ask(prompt(4), 1))
    core.begin(0.0)
    with pytest.raises(AssertionError, match="chose no token"):
        core.end([None], 0.0)


def test_scheduling_ahead_is_refused() -> None:
    with pytest.raises(ValueError, match="does not schedule ahead"):
        make(schedules_async=True)


def test_the_letters_depend_on_every_token() -> None:
    assert follower([1, 2, 3]) != follower([2, 1, 3])
