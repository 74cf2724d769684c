"""Whose events are followed: found, configured, changed, forgotten, and too late."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.knowing_engine import stored
from transload_router.app.caches import Caches
from transload_router.app.state import Router
from transload_router.core.index.approximate import Text
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.events import Cleared, Event, Stored
from transload_router.core.kv_events.messages import StreamState
from transload_router.core.policy import Ask
from transload_router.core.prompt import Prompt, pack_tokens
from transload_router.io.events import Source
from transload_router.settings import Settings

# Nobody listens there; a subscription does not mind.
HERE, ELSEWHERE = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
P0 = ("prefill-0", 0)
IDS = list(range(64))


class World:
    """A router and its caches, without probes."""

    def __init__(self, **settings: Any) -> None:
        self.router = Router(Settings(prefill=["p:1", "[::1]:2"], decode=["d:1"], **settings))
        for name in self.router.fleet.members:
            self.router.fleet.mark_up(name, {"m": None})
        self.caches = Caches(self.router)

    def follow(self, told: list[Source] | None, name: str = "prefill-0") -> None:
        self.caches.follow(self.router.fleet.members[name], told)

    def destinations(self) -> list[tuple[str, int, int]]:
        view = self.router.view(Ask(num_prompt_tokens=1), frozenset())
        return [(*one.key, one.num_ranks) for one in view.prefill if one.key[0] == "prefill-0"]

    def hit(self) -> int:
        match = self.router.index.match(Prompt(Identity("m"), pack_tokens([*IDS, 1])))
        return max((hit.num_tokens for hit in match.values()), default=0)

    def apply(self, key: tuple[str, int] = P0) -> None:
        self.caches.apply(key, event())


def event() -> Event:
    fields = stored(IDS)[0]
    return Stored(
        block_hashes=tuple(fields["block_hashes"]),  # type: ignore[arg-type]
        parent_block_hash=None,
        token_ids=IDS,
        block_size=16,
    )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.caches.stop()


async def test_ranks_become_destinations(world: World) -> None:
    assert world.destinations() == [("prefill-0", 0, 1)]
    world.follow([Source(0, HERE), Source(2, ELSEWHERE)])
    assert world.destinations() == [("prefill-0", 0, 2), ("prefill-0", 2, 2)]
    assert world.router.index.owners() == [("prefill-0", 0), ("prefill-0", 2)]
    world.follow([Source(3, HERE)])
    assert world.destinations() == [("prefill-0", 3, 1)]
    world.follow([Source(0, HERE), Source(1, ELSEWHERE)])
    world.follow([])
    assert world.destinations() == [("prefill-0", 0, 1)]
    assert world.router.index.owners() == []


async def test_the_same_answer_changes_nothing(world: World) -> None:
    world.follow([Source(0, HERE)])
    world.apply()
    assert world.hit() == 64
    world.follow([Source(0, HERE)])
    assert world.hit() == 64


@pytest.mark.parametrize(
    "told",
    [
        [Source(0, ELSEWHERE)],
        [Source(0, HERE, ELSEWHERE)],
        [Source(0, HERE), Source(1, ELSEWHERE)],
        [],
        None,
    ],
)
async def test_another_answer_forgets(world: World, told: list[Source] | None) -> None:
    world.follow([Source(0, HERE)])
    world.apply()
    world.caches.set_state(P0, StreamState.EXACT, "")
    world.router.texts.predict(P0, Text(Identity("m"), b"x" * 1000))
    world.follow(told)
    assert world.hit() == 0
    assert (
        world.router.texts.num_chunks == 0
        or world.router.texts.match(Text(Identity("m"), b"x" * 1000)) == {}
    )
    assert not world.router.is_followed(P0)


async def test_another_model_forgets(world: World) -> None:
    world.follow([Source(0, HERE)])
    world.apply()
    for name in world.router.fleet.members:
        world.router.fleet.mark_up(name, {"other": None})
    world.follow([Source(0, HERE)])
    assert world.hit() == 0
    assert world.router.index.owners() == [P0]


async def test_who_does_not_tell_its_models_is_not_followed(world: World) -> None:
    world.router.fleet.mark_up("prefill-0", None)
    world.follow([Source(0, HERE)])
    assert world.router.index.owners() == []


async def test_late_events_are_nobodys(world: World) -> None:
    world.apply()
    assert world.hit() == 0
    world.follow([Source(0, HERE)])
    world.caches.forget("prefill-0")
    world.caches.forget("prefill-0")
    world.apply()
    world.caches.clear(P0)
    assert world.hit() == 0
    assert world.router.index.num_late_events == 0
    # A rank that was never told of.
    world.follow([Source(0, HERE)])
    world.apply(("prefill-0", 5))
    assert world.hit() == 0
    assert world.router.index.num_late_events == 1


async def test_clearing(world: World) -> None:
    world.follow([Source(0, HERE), Source(1, ELSEWHERE)])
    world.apply()
    world.apply(("prefill-0", 1))
    world.caches.clear(P0)
    assert world.hit() == 64
    world.caches.apply(("prefill-0", 1), Cleared())
    assert world.hit() == 0


async def test_an_endpoint_that_cannot_be_subscribed_to(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.follow([Source(0, "tcp://a b:1"), Source(1, HERE)])
    assert world.router.index.owners() == []
    assert world.destinations() == [("prefill-0", 0, 1)]
    assert "cannot be subscribed to" in caplog.text


async def test_what_is_counted(world: World) -> None:
    world.caches.count(P0, "gaps", 3)
    assert world.router.metrics.kv_events.value("prefill-0", "gaps") == 3


async def test_restarts_are_told(world: World) -> None:
    """A process anew may have another template; it need not have been found down between."""
    told: list[str] = []
    world.router.on_restart = told.append
    for what in ("gap", "restart", "duplicate"):
        world.caches.count(P0, what, 1)
    assert told == ["prefill-0"]


async def test_degraded_is_loud(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.caches.set_state(P0, StreamState.EXACT, "replayed")
    assert world.router.is_followed(P0)
    world.caches.set_state(P0, StreamState.DEGRADED, "hole")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    world.caches.set_state(P0, StreamState.DEGRADED, "hole")
    assert len(caplog.records) == 1


async def test_whoever_was_down_has_an_unknown_cache(world: World) -> None:
    text = Text(Identity("m"), b"x" * 1000)
    for name in ("prefill-0", "decode-0"):
        world.router.texts.predict((name, 0), text)
    world.caches.note_return("prefill-0")
    assert list(world.router.texts.match(text)) == [("decode-0", 0)]


async def test_configured_endpoints() -> None:
    world = World(
        kv_event_endpoint=[
            "prefill-0=tcp://*:5557;tcp://*:5657",
            "prefill-0/1=tcp://10.0.0.9:7000",
            "prefill-1=tcp://*:5557",
        ]
    )
    assert not world.caches.wants_sources("prefill-0")
    assert world.caches.wants_sources("decode-0")
    world.follow(None)
    assert world.caches._followed["prefill-0"][2] == (
        Source(0, "tcp://p:5557", "tcp://p:5657"),
        Source(1, "tcp://10.0.0.9:7000"),
    )
    world.follow(None, "prefill-1")
    assert world.caches._followed["prefill-1"][2] == (Source(0, "tcp://[::1]:5557"),)
    await world.caches.stop()


async def test_off() -> None:
    world = World(kv_events="off", kv_event_endpoint=["prefill-0=tcp://*:5557"])
    assert not world.caches.wants_sources("decode-0")
    world.follow(None)
    world.follow([Source(0, HERE)], "decode-0")
    assert world.router.index.owners() == []
    await world.caches.stop()


async def test_expectations_end_while_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("transload_router.app.caches.monotonic", lambda: now)
    world = World()
    world.follow([Source(0, HERE)])
    world.router.index.predict(P0, Prompt(Identity("m"), pack_tokens(IDS)), now, 5.0)
    world.caches.start()
    assert world.router.index.num_predictions == 1
    now = 1005.0
    timer = world.caches._timer
    assert timer is not None
    timer._run()
    timer.cancel()
    assert world.router.index.num_predictions == 0
    await world.caches.stop()
    assert world.caches._timer is not None
    assert world.caches._timer.cancelled()
