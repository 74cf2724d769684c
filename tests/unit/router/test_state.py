"""What all requests share: choices, aliases, labels, and defects that an orchestrator sees."""

import asyncio
from typing import Any

import httpx
import pytest

from transload_router.app import create_app
from transload_router.app.probing import Probing
from transload_router.app.state import Router, parse_address
from transload_router.core.membership import Health
from transload_router.core.policy import LegRequest
from transload_router.core.types import Address, Role
from transload_router.errors import EngineUnreachable
from transload_router.settings import Settings

DECODE = LegRequest(Role.DECODE, None, 1, 1)


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


def test_choice_is_narrowed_by_only_and_avoid() -> None:
    router = Router(settings())
    for _ in range(20):
        only = router.choose(DECODE, frozenset(), "decode-1")
        other = router.choose(DECODE, frozenset({"decode-1"}))
        assert only is router.fleet.engine("decode-1")
        assert other is router.fleet.engine("decode-0")
    assert router.choose(DECODE, frozenset({"decode-1"}), "decode-1") is None
    router.fleet.mark_down("decode-1", "x")
    assert router.choose(DECODE, frozenset(), "decode-1") is None
    assert router.has_other(Role.DECODE, None, frozenset())
    assert not router.has_other(Role.DECODE, None, frozenset({"decode-0"}))


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
    probing = Probing(router)
    probing.start()
    await asyncio.wait(probing._tasks, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0)
    await probing.stop()
    await router.stop()
    assert router.defects == ["KeyError('lost')"]
