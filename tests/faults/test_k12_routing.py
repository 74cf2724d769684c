"""K12 in the service: requests go where their prefix is, and not all to one place."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from support import behaviours
from support.knowing_engine import KnownFleet, serve_known
from support.scripted_engine import Leg
from support.vllm_api import MODEL
from support.waiting import until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PREDICTED = "x-transload-predicted-cached-tokens"
QUESTION = "Tell me of the mill by the river, its wheel and its owners. " * 12
POLICIES = pytest.mark.parametrize("policy", ["prefix", "cost"])
UNTOLD = {f"{role}-{number}": 0 for role in ("prefill", "decode") for number in range(4)}


def served_by(headers: Any) -> str:
    """Who read the prompt."""
    return str(headers.get("x-transload-prefill", headers["x-transload-decode"]))


async def converse(known: KnownFleet, name: str, path: str) -> None:
    """A conversation of three turns stays where it began."""
    messages = [{"role": "user", "content": f"I am {name}. {QUESTION}"}]
    places, hits = [], []
    for turn in range(3):
        body: dict[str, Any] = {"messages": messages, "max_tokens": 4}
        if path == COMPLETIONS:
            body = {"prompt": "\n".join(each["content"] for each in messages), "max_tokens": 4}
        headers = await known.ask(path, body)
        places.append(served_by(headers))
        hits.append(int(headers[PREDICTED]))
        messages += [
            {"role": "assistant", "content": f"It turns, and turns {turn}."},
            {"role": "user", "content": QUESTION},
        ]
    assert len(set(places)) == 1, places
    assert hits[0] == 0
    assert hits[1] > 0
    assert hits[2] > 0


@POLICIES
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_conversations_stay_where_they_are_though_nothing_but_text_is_known(
    policy: str, path: str
) -> None:
    async with serve_known(3, 3, ranks=UNTOLD, policy=policy) as known:
        for name in ("Ada", "Bo", "Cyd"):
            await converse(known, name, path)


@POLICIES
async def test_a_prefix_is_followed_where_events_say_it_is(policy: str) -> None:
    async with serve_known(3, 3, policy=policy, tokenizer=["none"]) as known:
        for number, holder in enumerate(("prefill-2", "prefill-0", "prefill-1", "prefill-2")):
            ids = [10_000 * (number + 1) + each for each in range(2000)]
            await known.hold(holder, ids)
            headers = await known.ask(COMPLETIONS, {"prompt": ids, "max_tokens": 4})
            assert headers["x-transload-prefill"] == holder
            assert headers[PREDICTED] == "1984"


@POLICIES
async def test_a_burst_of_siblings_goes_to_one_place(policy: str) -> None:
    """Cold: what is on its way counts before any event has come, up to the bound on load."""
    async with serve_known(4, 4, policy=policy, tokenizer=["none"]) as known:
        gate = behaviours.Gate()
        for engine in known.fleet.engines:
            engine.by_leg[Leg.PREFILL] = engine.by_leg[Leg.LOCAL] = gate.before()
        shared = list(range(500, 900))
        asking = [
            asyncio.create_task(
                known.ask(COMPLETIONS, {"prompt": [*shared, 2000 + number], "max_tokens": 4})
            )
            for number in range(20)
        ]
        engines = known.fleet.engines
        await until(
            lambda: sum(len(one.asked(Leg.PREFILL, Leg.LOCAL)) for one in engines) == 20,
            "all are on their way",
        )
        gate.opened.set()
        hits = Counter(int(answer[PREDICTED]) for answer in await asyncio.gather(*asking))
        assert set(hits) == {0, 400}
        assert hits[400] >= 17


@POLICIES
async def test_distinct_prompts_one_after_another_are_spread(policy: str) -> None:
    async with serve_known(1, 3, policy=policy, tokenizer=["none"]) as known:
        places: Counter[str] = Counter()
        for number in range(60):
            ids = [1000 * (number + 1) + each for each in range(40)]
            headers = await known.ask(COMPLETIONS, {"prompt": ids, "max_tokens": 4})
            places[headers["x-transload-decode"]] += 1
        assert set(places) == {"decode-0", "decode-1", "decode-2"}
        assert min(places.values()) >= 8, places


@POLICIES
async def test_a_holder_that_is_down_or_fails_is_not_waited_for(policy: str) -> None:
    ids = list(range(2000))
    async with serve_known(2, 1, policy=policy, tokenizer=["none"]) as known:
        await known.hold("prefill-1", ids)
        known.fleet.prefill[1].by_leg[Leg.PREFILL] = behaviours.refuse(503)
        headers = await known.ask(COMPLETIONS, {"prompt": ids, "max_tokens": 4})
        assert served_by(headers) != "prefill-1"
        await known.fleet.prefill[1].stop()
        headers = await known.ask(COMPLETIONS, {"prompt": ids, "max_tokens": 4})
        assert served_by(headers) != "prefill-1"


async def test_sessions_stay_together() -> None:
    async with serve_known(3, 3, policy="session") as known:
        for name in ("a", "b", "c"):
            places = set()
            for number in range(4):
                body = {"prompt": f"{number} other words " * 20, "model": MODEL}
                headers = await known.ask(COMPLETIONS, body, **{"x-session-id": name})
                places.add((headers["x-transload-prefill"], headers["x-transload-decode"]))
            assert len(places) == 1
