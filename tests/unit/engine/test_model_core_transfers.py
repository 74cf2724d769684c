"""A model's core and other engines: what is granted and given back, what loads and what fails."""

from collections.abc import Sequence
from typing import Any

import pytest

from support.recording_runner import RecordingRunner, answer
from transload_engine.core.events import BlockStored
from transload_engine.core.handoff import Grant, Handoff, Origin, prompt_digest
from transload_engine.core.model_core import ModelCore
from transload_engine.core.request import Ask, Finish
from transload_engine.core.scheduler import Load
from transload_engine.core.serving import Output, Step
from transload_engine.core.settings import CoreSettings
from transload_engine.core.transfers import FailedLoad, Loaded, LoadProblem

HANDOFF = Handoff("p", "cmpl-1", "10.0.0.1", 7000, 3, None, "lease", "p")
LOADED = Loaded(96, 0.25)
REFUSED = FailedLoad(LoadProblem.REFUSED, "other weights", "model.weights")
ABORTED = FailedLoad(LoadProblem.ABORTED, "nobody waits")


class Driver:
    """A core of blocks of 4 tokens, 10 of them free, and a runner that checks its chunks."""

    def __init__(self, **settings: Any) -> None:
        sizes = {"block_size": 4, "num_blocks": 11, "max_model_tokens": 40, **settings}
        origin = Origin("e", "127.0.0.1", 7001)
        leases = iter(f"lease-{number}" for number in range(9))
        self.core = ModelCore(
            CoreSettings(**sizes, schedules_async=False), origin, 9, leases.__next__
        )
        self.runner = RecordingRunner(4)
        self.outputs: list[Output] = []

    def ask(self, name: str, prompt: Sequence[int], count: int = 1, **more: Any) -> None:
        self.core.add_request(name, Ask(prompt, count, **more))

    def step(self) -> Step:
        chunks = self.core.begin(0.0)
        assert chunks, "there is nothing to compute"
        step = self.core.end(self.runner.run(chunks), 0.0)
        self.outputs += step.outputs
        return step

    def run(self) -> None:
        while self.core.has_work:
            self.step()

    def begin_load(self, name: str, prompt: Sequence[int], count: int = 1) -> Load:
        """Ask for a prompt that is elsewhere, and begin to load it."""
        self.ask(name, prompt, count, handoff=HANDOFF)
        assert self.core.begin(0.0) == []
        (load,) = self.core.take_loads()
        assert self.core.take_loads() == []
        return load

    def end_load(self, load: Load, prompt: Sequence[int]) -> None:
        """All of it came."""
        for at in range(load.num_local_tokens, load.num_tokens):
            slot = (load.block_ids[at // 4], at % 4)
            self.runner.slots[slot] = tuple(prompt[: at + 1])
        self.core.end_load(load, LOADED)

    def tokens(self, name: str) -> list[int]:
        return [
            token for each in self.outputs if each.request_id == name for token in each.token_ids
        ]


def prompt(length: int) -> list[int]:
    return list(range(20, 20 + length))


# Handing off.


def test_a_prefills_blocks_are_granted_and_told_of() -> None:
    driver = Driver()
    driver.ask("a", prompt(10), hands_off=True, num_readers=2)
    driver.step()
    (output,) = driver.outputs
    digest = prompt_digest(prompt(10))
    assert driver.core.take_grants() == [Grant("a", "lease-0", [1, 2, 3], 10, 2, digest)]
    assert driver.core.take_grants() == []
    assert output.handoff == {
        **driver.core.origin.params("a", [1, 2, 3], 10, 0),
        "transload": {
            "wire": "kvwire/1",
            "lease": "lease-0",
            "generation": "e",
            "prompt": digest,
            "readers": 2,
        },
    }
    assert driver.core.num_held == 1


def test_blocks_that_are_held_are_nobody_elses_until_their_lease_ends() -> None:
    driver = Driver()
    driver.ask("a", prompt(10), hands_off=True)
    driver.step()
    assert driver.core.usage == pytest.approx(3 / 10)
    driver.core.end_lease("a", "lease-0", "expired")
    assert driver.core.usage == 0
    assert driver.core.transfers.ends == {"ended": 0, "expired": 1, "forgone": 0}
    with pytest.raises(KeyError):
        driver.core.end_lease("a", "lease-0", "ended")


def test_blocks_that_were_handed_off_can_be_hit_while_they_are_held() -> None:
    driver = Driver()
    driver.ask("a", prompt(10), hands_off=True)
    driver.step()
    driver.ask("b", prompt(10), hands_off=True)
    driver.step()
    first, second = driver.core.take_grants()
    assert first.block_ids[:2] == second.block_ids[:2]
    driver.core.end_lease("a", "lease-0", "ended")
    assert driver.core.usage == pytest.approx(3 / 10)
    driver.core.end_lease("b", "lease-1", "ended")
    assert driver.core.usage == 0


@pytest.mark.parametrize("finish", [Finish.ABORT, None])
def test_only_what_has_ended_well_is_handed_off(finish: Finish | None) -> None:
    driver = Driver()
    driver.ask("a", prompt(10), 3, hands_off=finish is not None)
    driver.step()
    if finish:
        driver.core.abort("a")
    else:
        driver.run()
    assert driver.core.take_grants() == []
    assert driver.core.usage == 0


def test_a_name_is_no_longer_than_the_wire_allows_and_keeps_its_end() -> None:
    driver = Driver()
    driver.ask("x" * 300 + "-0-abcd", prompt(3), hands_off=True)
    driver.step()
    (grant,) = driver.core.take_grants()
    assert grant.handoff == "x" * 249 + "-0-abcd"
    assert driver.outputs[0].handoff is not None
    assert driver.outputs[0].handoff["remote_request_id"] == grant.handoff


# Loading.


def test_a_load_names_all_blocks_and_what_is_here() -> None:
    driver = Driver()
    driver.ask("a", prompt(9))
    driver.run()
    held = list(driver.runner.steps[0][0].block_ids)
    load = driver.begin_load("b", prompt(11))
    assert load.block_ids[:2] == tuple(held[:2])
    assert (load.num_blocks, load.num_tokens, load.num_local_tokens) == (1, 11, 8)
    assert load.handoff == HANDOFF


def test_the_last_token_alone_is_computed_behind_a_load() -> None:
    driver = Driver()
    load = driver.begin_load("a", prompt(8), 3)
    driver.end_load(load, prompt(8))
    driver.run()
    shapes = [(each.first, each.end) for (each,) in driver.runner.steps]
    assert shapes == [(7, 8), (8, 9), (9, 10)]
    assert driver.tokens("a") == answer(prompt(8), 3)
    assert driver.outputs[0].num_cached_tokens == 8
    assert driver.core.usage == 0


def test_loaded_blocks_are_announced_and_hit_when_they_are_computed_with() -> None:
    driver = Driver()
    load = driver.begin_load("a", prompt(10))
    driver.ask("b", prompt(10))
    chunks = driver.core.begin(0.0)
    assert [(each.request_id, each.first) for each in chunks] == [("b", 0)]
    step = driver.core.end(driver.runner.run(chunks), 0.0)
    driver.end_load(load, prompt(10))
    (event,) = driver.step().events
    assert isinstance(event, BlockStored)
    assert event.token_ids == prompt(10)[:8]
    assert [type(each) for each in step.events] == [BlockStored]


def test_what_was_loaded_is_counted() -> None:
    driver = Driver()
    driver.ask("a", prompt(5))
    driver.run()
    driver.end_load(driver.begin_load("b", prompt(11)), prompt(11))
    moved, counters = driver.core.transfers, driver.core.counters
    assert (moved.num_loads, moved.num_loaded_tokens, moved.num_loaded_bytes) == (1, 7, 96)
    assert moved.load_seconds == 0.25
    assert (counters.external_prefix_cache_queries, counters.external_prefix_cache_hits) == (12, 7)


def test_a_failed_load_is_computed_here() -> None:
    driver = Driver(fails_with_load=False)
    load = driver.begin_load("a", prompt(10), 3)
    driver.core.end_load(load, REFUSED)
    driver.run()
    assert driver.tokens("a") == answer(prompt(10), 3)
    assert [(each.first, each.end) for each in driver.runner.steps[0]] == [(0, 10)]
    assert driver.outputs[0].num_cached_tokens == 0
    assert driver.core.transfers.failures == {(LoadProblem.REFUSED, "model.weights"): 1}
    assert driver.core.usage == 0


def test_nothing_of_a_failed_load_can_be_hit() -> None:
    driver = Driver(fails_with_load=True)
    driver.core.end_load(driver.begin_load("a", prompt(10)), REFUSED)
    driver.ask("b", prompt(10))
    driver.step()
    assert driver.runner.steps[0][0].first == 0


def test_hits_of_a_failed_load_stay_hits() -> None:
    driver = Driver(fails_with_load=False)
    driver.ask("a", prompt(9))
    driver.run()
    driver.core.end_load(driver.begin_load("b", prompt(11)), REFUSED)
    driver.run()
    assert (driver.runner.steps[-1][0].first, driver.runner.steps[-1][0].end) == (8, 11)


def test_a_failed_load_fails_its_request_where_that_is_wanted() -> None:
    driver = Driver(fails_with_load=True)
    driver.core.end_load(driver.begin_load("a", prompt(10)), REFUSED)
    assert driver.core.has_work
    assert driver.core.take_ended() == [Output("a", finish=Finish.ERROR)]
    assert driver.core.take_ended() == []
    assert (driver.core.usage, driver.core.num_waiting) == (0, 0)


def test_who_is_aborted_while_it_loads_keeps_its_blocks_until_the_load_ends() -> None:
    driver = Driver()
    load = driver.begin_load("a", prompt(10))
    assert driver.core.abort("a") is None
    assert driver.core.usage == pytest.approx(3 / 10)
    driver.core.end_load(load, ABORTED)
    assert driver.core.usage == 0
    assert driver.core.transfers.failures == {}
    assert driver.core.take_ended() == []


def test_a_load_that_ends_well_behind_an_abort_is_of_no_use() -> None:
    driver = Driver()
    load = driver.begin_load("a", prompt(10))
    driver.core.abort("a")
    driver.end_load(load, prompt(10))
    assert (driver.core.usage, driver.core.num_waiting) == (0, 0)
    assert driver.core.begin(0.0) == []


def test_who_is_aborted_before_it_loads_tells_which_handoff_it_leaves() -> None:
    driver = Driver()
    driver.ask("a", prompt(10), handoff=HANDOFF)
    assert driver.core.abort("a") == HANDOFF


def test_a_request_waits_for_room_before_it_loads() -> None:
    driver = Driver()
    driver.ask("a", prompt(30), 4)
    driver.step()
    driver.ask("b", prompt(12)[::-1], handoff=HANDOFF)
    while driver.core.num_running:
        assert driver.core.take_loads() == []
        driver.step()
    assert driver.core.begin(0.0) == []
    assert len(driver.core.take_loads()) == 1


def test_who_has_loaded_is_computed_when_who_ran_found_no_block() -> None:
    """A step that only puts a request back is not the last before somebody asks for something."""
    driver = Driver()
    loaded, running = prompt(16), [token + 100 for token in prompt(24)]
    load = driver.begin_load("loaded", loaded)
    driver.ask("running", running, 3)
    driver.step()
    driver.end_load(load, loaded)
    assert driver.core.usage == 1.0
    driver.run()
    assert driver.tokens("loaded") == answer(loaded, 1)
    assert driver.tokens("running") == answer(running, 3)
