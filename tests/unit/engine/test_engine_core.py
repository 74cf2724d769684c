"""The core, step by step: who is computed when, and what becomes of requests that cannot be."""

from collections.abc import Sequence
from typing import Any

import pytest

from transload_engine.core.engine_core import EngineCore
from transload_engine.core.events import BlockRemoved, BlockStored
from transload_engine.core.handoff import Handoff, Origin
from transload_engine.core.request import Ask, Finish
from transload_engine.core.serving import Output, Step
from transload_engine.core.settings import CoreSettings
from transload_engine.core.timing import Profile

ORIGIN = Origin("engine-p", "127.0.0.1", 7000)
HANDOFF = Handoff("other", "theirs", "127.0.0.1", 7001, 3, 4)
EOS = 9


def make(**settings: Any) -> EngineCore:
    """Blocks of 4 tokens, 10 of them free, one step at a time."""
    values = {
        "block_size": 4,
        "num_blocks": 11,
        "max_model_tokens": 40,
        "schedules_async": False,
        "profile": Profile(transfer_base_s=1.0, transfer_bytes_per_s=2.0, block_bytes=1),
        **settings,
    }
    return EngineCore(CoreSettings(**values), ORIGIN, range(100, 200), EOS)


def prompt(length: int, first: int = 10) -> list[int]:
    return [first, *range(1000, 1000 + length - 1)]


def run(core: EngineCore, limit: int = 200) -> list[Output]:
    """Step until nothing moves."""
    outputs: list[Output] = []
    for _ in range(limit):
        step = core.step(0.0)
        outputs += step.outputs
        if step.duration_s is None:
            return outputs
    raise AssertionError("the core never comes to rest")


def tokens(outputs: Sequence[Output], request_id: str) -> list[int]:
    return [token for each in outputs if each.request_id == request_id for token in each.token_ids]


def shapes(step: Step) -> list[tuple[str, bool]]:
    return [(each.request_id, each.finish is not None) for each in step.outputs]


def test_an_idle_core_begins_no_step() -> None:
    core = make()
    assert core.step(0.0) == Step([], [], [], None)
    assert not core.has_work


def test_a_step_ends_with_the_next_call() -> None:
    core = make()
    core.add_request("a", Ask(prompt(5), 2))
    begun = core.step(0.0)
    assert begun.outputs == []
    assert begun.duration_s == pytest.approx(0.004 + 5 * 50e-6 + 15 * 2e-9)
    first = core.step(1.0)
    assert shapes(first) == [("a", False)]
    assert first.outputs[0].num_cached_tokens == 0
    last = core.step(2.0)
    assert shapes(last) == [("a", True)]
    assert last.outputs[0].finish is Finish.LENGTH
    assert last.outputs[0].num_cached_tokens is None
    assert last.duration_s is None
    assert core.usage == 0


def test_long_prompts_are_computed_in_parts_beside_answers() -> None:
    core = make(max_batch_tokens=8)
    core.add_request("a", Ask(prompt(4), 10))
    core.add_request("b", Ask(prompt(20, 11), 1))
    core.step(0.0)
    assert core.num_running == 2
    gained = [shapes(core.step(0.0)) for _ in range(4)]
    # b: 4 beside a's prompt, then 7 + 7 + 2 beside a's answer.
    assert gained == [[("a", False)], [("a", False)], [("a", False)], [("a", False), ("b", True)]]


def test_only_so_many_run_at_once() -> None:
    core = make(max_requests=1)
    core.add_request("a", Ask(prompt(4), 1))
    core.add_request("b", Ask(prompt(4), 1))
    core.step(0.0)
    assert (core.num_running, core.num_waiting) == (1, 1)
    assert [output.request_id for output in run(core)] == ["a", "b"]


def test_a_prompt_is_hit_but_for_its_last_token() -> None:
    core = make()
    hits = []
    for length in (8, 8, 9, 7):
        core.add_request("a", Ask(prompt(length), 1))
        hits.append(run(core)[0].num_cached_tokens)
    assert hits == [0, 4, 8, 4]
    assert core.counters.prefix_cache_queries == 32
    assert core.counters.prefix_cache_hits == 16
    assert core.counters.prompt_tokens_cached == 16


def test_without_caching_nothing_is_hit_and_nothing_told() -> None:
    core = make(caches_prefixes=False)
    for _ in range(2):
        core.add_request("a", Ask(prompt(8), 1))
        assert run(core)[0].num_cached_tokens == 0
    assert core.counters.prefix_cache_queries == 0


def test_nobody_is_admitted_whose_tokens_do_not_all_fit() -> None:
    core = make(max_batch_tokens=8)
    core.add_request("a", Ask(prompt(24), 8))
    for _ in range(4):
        core.step(0.0)
    core.add_request("b", Ask(prompt(20, 11), 1))
    core.step(0.0)
    # Four blocks are free, enough for the seven tokens that the step has left, not for all.
    assert (core.num_running, core.num_waiting) == (1, 1)
    assert tokens(run(core), "b") != []


def test_who_finds_no_block_puts_back_the_last_and_nothing_is_lost() -> None:
    alone = make(num_blocks=100)
    core = make()
    for name in ("a", "b"):
        for each in (alone, core):
            each.add_request(name, Ask(prompt(16, ord(name)), 20))
    expected, outputs = run(alone), run(core)
    assert alone.counters.num_preemptions == 0
    assert core.counters.num_preemptions == 1
    for name in ("a", "b"):
        assert tokens(outputs, name) == tokens(expected, name)
        assert len(tokens(outputs, name)) == 20
    assert core.usage == 0
    # Who is admitted again has been counted.
    assert core.counters.prefix_cache_queries == 32


def test_who_was_put_back_is_not_admitted_in_the_same_step() -> None:
    core = make(schedules_async=True)
    core.add_request("held", Ask(prompt(28), 1, hands_off=True))
    run(core)
    core.add_request("a", Ask(prompt(11, 11), 8))
    while core.counters.num_preemptions == 0:
        core.step(0.0)
    # Its three blocks are free again and would hold the twelve tokens that are known of it, but a
    # thirteenth is on its way.
    assert core.num_waiting == 1
    assert core.num_running == 0


def test_a_prefill_that_was_put_back_hands_off_only_what_it_holds() -> None:
    core = make(schedules_async=True)
    core.add_request("b", Ask(prompt(4), 8))
    core.add_request("a", Ask(prompt(36, 11), 1, hands_off=True))
    core.step(0.0)
    # While a's only token is under way, b takes a block from it.
    assert shapes(core.step(0.0)) == [("b", False)]
    assert core.counters.num_preemptions == 1
    last = run(core)[-1]
    assert last.request_id == "a"
    assert last.handoff is not None
    assert len(last.handoff["remote_block_ids"][0]) == 9


def test_asynchronously_the_next_step_is_composed_before_the_last_is_known() -> None:
    def told(schedules_async: bool) -> list[str]:
        core = make(schedules_async=schedules_async)
        core.add_request("filler", Ask(prompt(39), 1))
        run(core)
        core.add_request("a", Ask(prompt(6, 11), 4))
        found = []
        while (step := core.step(0.0)).duration_s is not None or step.events:
            found += ["+" if isinstance(each, BlockStored) else "-" for each in step.events]
            assert all(isinstance(each, BlockStored | BlockRemoved) for each in step.events)
        return found

    # Nine blocks hold the filler. The prompt takes the free one and the filler's last, and is
    # stored; then a third block is taken, before or after the second is known to be full.
    assert told(False) == ["-", "+", "+", "-"]
    assert told(True) == ["-", "+", "-", "+"]


def test_answers_end_by_stop_tokens_and_by_the_end_of_sequence() -> None:
    core = make(num_blocks=100)
    core.add_request("a", Ask(prompt(4), 10))
    answer = tokens(run(core), "a")
    third = answer[2]
    core.add_request("b", Ask(prompt(4), 10, stop_token_ids=frozenset({third})))
    last = run(core)[-1]
    assert (last.token_ids, last.finish, last.stop_reason) == ((third,), Finish.STOP, third)
    core.add_request("c", Ask(prompt(4), 10, min_tokens=4, stop_token_ids=frozenset({third})))
    assert len(tokens(run(core), "c")) > 3
    ends = make(mean_answer_tokens=1)
    ends.add_request("d", Ask(prompt(4), 10, ignore_eos=False))
    assert [(each.token_ids, each.finish) for each in run(ends)] == [((EOS,), Finish.STOP)]
    ends.add_request("e", Ask(prompt(4), 3, ignore_eos=True))
    assert tokens(run(ends), "e") == [EOS] * 3


def test_no_request_grows_beyond_the_models_length() -> None:
    core = make()
    core.add_request("a", Ask(prompt(38), 10))
    outputs = run(core)
    assert len(tokens(outputs, "a")) == 2
    assert outputs[-1].finish is Finish.LENGTH
    with pytest.raises(ValueError, match="a prompt of 40 tokens leaves no room"):
        core.add_request("b", Ask(prompt(40), 1))


def test_an_id_can_be_used_once_at_a_time() -> None:
    core = make()
    core.add_request("a", Ask(prompt(4), 1))
    with pytest.raises(ValueError, match="request a is here already"):
        core.add_request("a", Ask(prompt(4), 1))


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_who_is_aborted_frees_its_blocks_and_gains_no_more(num_steps: int) -> None:
    core = make()
    core.add_request("a", Ask(prompt(9), 20))
    for _ in range(num_steps):
        core.step(0.0)
    assert core.abort("a") is None
    assert core.usage == 0
    assert run(core) == []
    assert core.abort("a") is None


def test_a_prefill_keeps_its_blocks_for_who_reads_them() -> None:
    core = make()
    core.add_request("a", Ask(prompt(9), 1, hands_off=True))
    params = run(core)[0].handoff
    assert params == ORIGIN.params("a", [1, 2, 3], 9, 0)
    assert core.usage == pytest.approx(0.3)
    assert not core.has_work
    assert not core.reset_prefix_cache()
    assert core.read_lease("another engine", "a", 1.0) is None
    assert core.read_lease("engine-p", "a", 1.0) == prompt(9)
    assert core.end_lease("a")
    assert core.usage == 0
    assert not core.end_lease("a")
    assert core.leases.num_late == 1


def test_a_prefill_whose_blocks_nobody_reads_frees_them() -> None:
    core = make(lease_s=5.0)
    core.add_request("a", Ask(prompt(9), 1, hands_off=True))
    run(core)
    core.expire(4.9)
    assert core.usage > 0
    core.expire(5.0)
    assert core.usage == 0
    assert core.leases.num_expired == 1


def test_without_a_connector_nothing_is_handed_off() -> None:
    core = make(has_connector=False)
    core.add_request("a", Ask(prompt(9), 1, hands_off=True))
    assert run(core)[0].handoff is None
    assert core.usage == 0


def test_an_aborted_prefill_hands_nothing_off() -> None:
    core = make()
    core.add_request("a", Ask(prompt(9), 5, hands_off=True))
    core.step(0.0)
    core.abort("a")
    assert core.usage == 0
    assert core.leases.held == {}


def load(core: EngineCore, length: int = 9) -> Step:
    core.add_request("d", Ask(prompt(length), 3, handoff=HANDOFF))
    return core.step(0.0)


def test_a_handoff_is_loaded_and_only_the_last_token_computed() -> None:
    alone = make()
    alone.add_request("d", Ask(prompt(9), 3))
    core = make()
    step = load(core)
    assert [(each.request_id, each.handoff, each.num_blocks) for each in step.loads] == [
        ("d", HANDOFF, 3)
    ]
    # Three blocks of one byte at two a second, and the base.
    assert step.loads[0].duration_s == 1.5 + 1.0
    assert step.duration_s is None
    assert (core.num_running, core.num_waiting) == (0, 1)
    assert core.unread_handoffs == [HANDOFF]
    core.end_load("d", prompt(9), num_bytes=3)
    assert core.unread_handoffs == []
    begun = core.step(0.0)
    assert begun.duration_s == pytest.approx(0.004 + 50e-6 + 9 * 2e-9)
    outputs = run(core)
    assert tokens(outputs, "d") == tokens(run(alone), "d")
    assert outputs[0].num_cached_tokens == 9
    counters = core.counters
    assert (counters.num_loads, counters.loaded_bytes, counters.num_failed_loads) == (1, 3, 0)
    assert counters.external_prefix_cache_queries == counters.external_prefix_cache_hits == 9
    assert core.usage == 0


def test_what_is_here_already_is_not_loaded() -> None:
    core = make()
    core.add_request("first", Ask(prompt(9), 1))
    run(core)
    step = load(core)
    assert step.loads[0].num_blocks == 1
    assert core.counters.external_prefix_cache_hits == 1


def test_loads_share_one_link() -> None:
    core = make()
    core.add_request("a", Ask(prompt(8), 1, handoff=HANDOFF))
    core.add_request("b", Ask(prompt(8, 11), 1, handoff=HANDOFF))
    assert [each.duration_s for each in core.step(0.0).loads] == [2.0, 3.0]


def test_others_blocks_give_others_tokens() -> None:
    right, wrong = make(), make()
    for core, loaded in ((right, prompt(9)), (wrong, prompt(9, 77))):
        load(core)
        core.end_load("d", loaded)
    assert tokens(run(right), "d") != tokens(run(wrong), "d")


@pytest.mark.parametrize("loaded", [None, prompt(8)])
def test_a_failed_load_fails_its_request(loaded: list[int] | None) -> None:
    core = make()
    load(core)
    core.end_load("d", loaded)
    assert run(core) == [Output("d", finish=Finish.ERROR)]
    assert core.counters.num_failed_loads == 1
    assert core.usage == 0


def test_a_failed_load_can_be_computed_instead() -> None:
    alone = make()
    alone.add_request("d", Ask(prompt(9), 3))
    core = make(fails_with_load=False)
    load(core)
    core.end_load("d", None)
    outputs = run(core)
    assert tokens(outputs, "d") == tokens(run(alone), "d")
    assert outputs[0].num_cached_tokens == 0
    assert core.usage == 0


def test_who_is_aborted_while_loading_holds_its_blocks_until_the_load_has_ended() -> None:
    core = make()
    load(core)
    assert core.abort("d") is None
    assert core.usage > 0
    core.end_load("d", prompt(9))
    assert core.usage == 0
    assert run(core) == []


def test_who_is_aborted_before_loading_leaves_a_handoff_to_be_ended() -> None:
    core = make()
    core.add_request("d", Ask(prompt(9), 3, handoff=HANDOFF))
    assert core.abort("d") == HANDOFF


def test_no_load_begins_beside_a_prompt_of_which_more_is_to_come() -> None:
    core = make(max_batch_tokens=4)
    core.add_request("a", Ask(prompt(24), 1))
    core.step(0.0)
    assert load(core, 20).loads == []
    run(core)
    assert core.num_waiting == 1
    assert core.unread_handoffs == [HANDOFF]
