"""What all requests share: choices, aliases, labels, and defects that an orchestrator sees."""

import asyncio
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from transload_router.app import create_app
from transload_router.app.caches import Caches
from transload_router.app.probing import Probing
from transload_router.app.prompts import Prompts
from transload_router.app.state import Router, parse_address
from transload_router.core.membership import Health
from transload_router.core.policy import Ask
from transload_router.core.routing import Choice
from transload_router.core.types import Address, Role
from transload_router.errors import EngineUnreachable
from transload_router.settings import Settings

ALONE = Ask(num_prompt_tokens=1, may_split=False)
BOTH = Ask(num_prompt_tokens=1000)


def settings(**more: Any) -> Settings:
    return Settings(prefill=["p:1"], decode=["d:1", "d:2"], **more)


async def dies() -> None:
    raise RuntimeError("a defect")


async def ends() -> None:
    return


async def waits() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host:80", Address("host", 80)),
        ("https://host:443/base", Address("host", 443, True, "/base")),
        ("http://[::1]:8000", Address("::1", 8000)),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert parse_address(url) == address
    assert parse_address(url).url() == url


def test_engines_are_named_by_pool_and_place() -> None:
    router = Router(settings())
    assert list(router.fleet.members) == ["prefill-0", "decode-0", "decode-1"]
    assert router.fleet.engine("decode-1").address == Address("d", 2)


def decode_of(choice: Choice | None) -> str | None:
    return choice.decision.decode.engine.id if choice is not None else None


def test_choice_is_narrowed_by_only_and_avoid() -> None:
    router = Router(settings())
    for _ in range(20):
        assert decode_of(router.choose(ALONE, frozenset(), "decode-1")) == "decode-1"
        assert decode_of(router.choose(ALONE, frozenset({"decode-1"}))) == "decode-0"
    assert router.choose(ALONE, frozenset({"decode-1"}), "decode-1") is None
    router.fleet.mark_down("decode-1", "x")
    assert router.choose(ALONE, frozenset(), "decode-1") is None
    assert router.has_other(Role.DECODE, None, frozenset())
    assert not router.has_other(Role.DECODE, None, frozenset({"decode-0"}))


def test_prefill_is_in_view_only_where_it_may_take_a_leg() -> None:
    router = Router(settings())

    def prefills(ask: Ask, avoid: frozenset[str] = frozenset()) -> list[str]:
        return [one.engine.id for one in router.view(ask, avoid).prefill]

    assert prefills(BOTH) == ["prefill-0"]
    assert prefills(ALONE) == []
    assert prefills(replace(BOTH, handoff_from=("prefill-0", 0))) == []
    assert prefills(BOTH, frozenset({"prefill-0"})) == []


def test_the_target_between_tokens_reaches_the_policy() -> None:
    router = Router(settings(inter_token_target_s=0.02))
    assert router.routing.weights is not None
    assert router.routing.weights.inter_token_target_s == 0.02


def test_ranks_are_destinations_of_their_own() -> None:
    router = Router(settings())
    engine = router.fleet.engine("decode-0")
    router.set_ranks(engine, [0, 1])
    keys = [one.key for one in router.view(ALONE, frozenset()).decode]
    assert keys == [("decode-0", 0), ("decode-0", 1), ("decode-1", 0)]
    before = router.view(ALONE, frozenset()).decode[0]
    router.set_ranks(engine, [0, 1])
    assert router.view(ALONE, frozenset()).decode[0] is before
    router.set_ranks(engine, [3])
    (alone, _other) = router.view(ALONE, frozenset()).decode
    assert (alone.key, alone.num_ranks) == (("decode-0", 3), 1)


def test_only_where_nobody_listens_an_engine_is_down() -> None:
    router = Router(settings())
    told: list[str] = []
    router.on_down = told.append
    engine = router.fleet.engine("decode-0")
    router.note_unreachable(engine, EngineUnreachable("decode-0", "no room", is_gone=False))
    assert router.fleet.members["decode-0"].health is Health.JOINING
    assert told == []
    router.note_unreachable(engine, EngineUnreachable("decode-0", "no connection"))
    member = router.fleet.members["decode-0"]
    assert (member.health, member.detail) == (Health.DOWN, "engine decode-0: no connection")
    assert told == ["decode-0"]


def test_aliases_and_labels() -> None:
    router = Router(settings(model_name=["nick=served", "alone"]))
    assert router.served_name(None) is None
    assert router.served_name("served") is None
    assert router.served_name("nick") == "served"
    assert router.served_name("alone") is None, "no model is known yet"
    router.fleet.mark_up("decode-0", {"served": None})
    assert router.served_name("alone") == "served"
    assert router.model_label("served") == "served"
    assert router.model_label("made up") == "other"
    assert router.model_label(None) == "other"


def test_a_task_that_dies_is_a_defect_others_are_not() -> None:
    async def run() -> list[str]:
        router = Router(settings())
        router.start()
        for work in (ends, dies, waits):
            router.spawn(work())
        assert router.num_background_tasks == 3
        for _ in range(3):
            await asyncio.sleep(0)
        assert router.num_background_tasks == 1, "ended tasks are not kept"
        hanging = set(router._tasks)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        for task in hanging:
            router.note_end(task)
        await router.stop()
        return router.defects

    assert asyncio.run(run()) == ["RuntimeError('a defect')"]


async def test_a_defect_fails_healthz() -> None:
    app = create_app(settings())
    router: Router = app.state.router
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://r", verify=False, trust_env=False
    ) as client:
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        task = asyncio.create_task(dies())
        task.add_done_callback(router.note_end)
        await asyncio.wait([task])
        await asyncio.sleep(0)
        answer = await client.get("/healthz")
        assert answer.status_code == 500
        assert answer.json() == {"status": "defect", "defects": ["RuntimeError('a defect')"]}


async def test_a_probe_that_dies_of_a_defect_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of an engine's failure: the watch of one engine must never end unnoticed."""

    async def broken(_probing: Probing, _member: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(Probing, "_ask", broken)
    router = Router(Settings(decode=["d:1"]))
    router.start()
    probing = Probing(router, Prompts(router), Caches(router))
    probing.start()
    await asyncio.wait(probing._tasks, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0)
    await probing.stop()
    await router.stop()
    assert router.defects == ["KeyError('lost')"]
