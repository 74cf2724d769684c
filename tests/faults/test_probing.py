"""What probes learn of engines: who is up, which pairs hand off, whether a release frees."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from support import behaviours
from support.behaviours import Gate
from support.ledger import Ledger
from support.router_server import QUICK, Fleet, serve_router
from support.scripted_engine import Behaviour, Exchange, Leg, ScriptedEngine
from support.vllm_api import CHAT
from support.vllm_behaviour import VllmBehaviour, model_card
from support.waiting import PATIENCE_S, soon, until
from transload_router.app import probing
from transload_router.app.probing import MAX_TIMEOUTS
from transload_router.io import probe
from transload_router.settings import Settings

# Long enough for an answer on a loaded machine, and what a silence costs a test.
SILENCE_S = 0.3
SOON_S = 0.03


@dataclass(eq=False)
class Metered(VllmBehaviour):
    """vLLM with the two gauges that probes read; the page is that of the engine's last own step.

    Attributes:
        has_gauges: Whether the page names them.
        loads: Whether a decode leg loads what prefill computed.
        frees: Whether a release through a decode engine comes to this engine.
        takes_blocks: Whether a handoff held can be seen in the usage.
        num_loaded: Tokens loaded so far.
    """

    has_gauges: bool = True
    loads: bool = True
    frees: bool = True
    takes_blocks: bool = True
    num_loaded: int = 100
    page: bytes = b"# no step yet\n"

    async def __call__(self, exchange: Exchange) -> None:
        leg = exchange.request.leg
        if leg is Leg.DECODE and self.loads:
            self.num_loaded += 16
        if leg is Leg.LOCAL and exchange.request.path == "/v1/completions":
            self.page = self._step(exchange.engine)
        if exchange.request.path == "/metrics" and self._is_allowed(exchange.request):
            await exchange.answer(200, self.page, [("content-type", "text/plain")])
        else:
            await super().__call__(exchange)

    def _step(self, engine: ScriptedEngine) -> bytes:
        if not self.has_gauges:
            return b"vllm:other 1.0\n"
        ledger, name = engine.ledger, f"-{engine.name}".encode()
        num_held = sum(
            not ledger.presented[one] + (ledger.released[one] if self.frees else 0)
            for one in ledger.issued
            if name in one
        )
        usage = 0.25 + (0.125 * num_held if self.takes_blocks else 0.0)
        # Two ranks, the first of them idle: what counts is their sum.
        return (
            "# HELP vllm:kv_cache_usage_perc of\n"
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 1e-05\n'
            f'vllm:kv_cache_usage_perc{{engine="1",model_name="m"}} {usage}\n'
            f'vllm:external_prefix_cache_hits_total{{engine="0"}} 50.0\n'
            f'vllm:external_prefix_cache_hits_total{{engine="1"}} {self.num_loaded}\n'
            "vllm:external_prefix_cache_hits_created 9.0\n"
        ).encode()


def pool(letter: str, ledger: Ledger, *defaults: VllmBehaviour) -> list[ScriptedEngine]:
    return [ScriptedEngine(f"{letter}{i}", ledger, one) for i, one in enumerate(defaults)]


@contextlib.asynccontextmanager
async def probed(
    prefill: Iterable[VllmBehaviour] | None = None,
    decode: Iterable[VllmBehaviour] | None = None,
    *,
    by_leg: dict[Leg, Behaviour] | None = None,
    by_path: dict[str, Behaviour] | None = None,
    absent: Iterable[str] = (),
    **settings: Any,
) -> AsyncIterator[Fleet]:
    """A router that probes handoffs, in front of engines that were scripted before it began.

    Args:
        prefill: One engine each; None for a metered one.
        decode: One engine each; None for a metered one.
        by_leg: For all engines.
        by_path: For all engines.
        absent: Names of engines that do not listen yet.
        **settings: Over those of other tests.
    """
    ledger = Ledger()
    prefills = pool("p", ledger, *((Metered(),) if prefill is None else prefill))
    decodes = pool("d", ledger, *((Metered(),) if decode is None else decode))
    async with contextlib.AsyncExitStack() as stack:
        for engine in (*prefills, *decodes):
            engine.by_leg.update(by_leg or {})
            engine.by_path.update(by_path or {})
            await engine.start()
            stack.push_async_callback(engine.stop)
            if engine.name in absent:
                await engine.stop()
        values = {
            **QUICK,
            "handoff_probe": True,
            "prefill": [engine.url for engine in prefills],
            "decode": [engine.url for engine in decodes],
            **settings,
        }
        router = await stack.enter_async_context(serve_router(Settings(**values)))
        fleet = Fleet(router, prefills, decodes)
        yield fleet
        await fleet.assert_settled()


async def report(fleet: Fleet) -> dict[str, Any]:
    answer = await fleet.router.client.get("/readyz")
    found: dict[str, Any] = answer.json()
    assert answer.status_code == (200 if found["is_ready"] else 503)
    return found


async def ready(fleet: Fleet) -> dict[str, Any]:
    """The report once the first look is over."""
    async with asyncio.timeout(PATIENCE_S):
        found = await report(fleet)
        while not found["is_ready"]:
            found = await report(fleet)
    return found


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {
        f"{pair['prefill'][-1]}>{pair['decode'][-1]}": pair["verdict"] for pair in found["handoffs"]
    }


async def judged(fleet: Fleet, **wanted: str) -> None:
    """Wait until pairs (`p0d1`) have these verdicts."""
    members = fleet.router.app.state.router.fleet
    await until(
        lambda: all(
            members.pair(f"prefill-{key[1]}", f"decode-{key[3]}") == verdict
            for key, verdict in wanted.items()
        ),
        f"{wanted}, not {members.pairs()}",
    )


def health(fleet: Fleet, engine: str) -> str:
    return str(fleet.router.app.state.router.fleet.members[engine].health)


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


@pytest.fixture(autouse=True)
def log_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "transload")


@pytest.fixture
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silences cost tenths of seconds, and engines that are down are asked at once."""
    monkeypatch.setattr(probing, "PROBE_TIMEOUT_S", SILENCE_S)
    monkeypatch.setattr(probing, "DOWN_INTERVAL_S", SOON_S)


# Handoffs


async def hands_off_nonsense(exchange: Exchange) -> None:
    await exchange.answer(200, b"not json")


@pytest.mark.parametrize(
    ("prefill", "decode", "by_leg", "verdict"),
    [
        (Metered(), Metered(), {}, "works"),
        (Metered(), Metered(loads=False), {}, "missing"),
        (Metered(has_connector=False), Metered(), {}, "missing"),
        (Metered(), Metered(has_gauges=False), {}, "works"),
        (Metered(), VllmBehaviour(), {}, "works"),
        (Metered(), Metered(), {Leg.DECODE: behaviours.refuse(500)}, "fails"),
        (Metered(), Metered(), {Leg.DECODE: behaviours.reset_before_header}, "fails"),
        (Metered(), Metered(), {Leg.PREFILL: behaviours.refuse(500)}, "fails"),
        (Metered(), Metered(), {Leg.PREFILL: hands_off_nonsense}, "fails"),
        (Metered(), Metered(), {Leg.PREFILL: behaviours.reset_before_header}, "fails"),
        (Metered(), Metered(models=[model_card("other")]), {}, "unknown"),
    ],
    ids=[
        "loads",
        "answers_without_loading",
        "no_connector",
        "no_gauges",
        "no_gauges_at_all",
        "decode_fails",
        "decode_resets",
        "prefill_fails",
        "prefill_is_odd",
        "prefill_resets",
        "no_model_in_common",
    ],
)
async def test_verdicts_on_a_pair(
    prefill: VllmBehaviour, decode: VllmBehaviour, by_leg: dict[Leg, Behaviour], verdict: str
) -> None:
    async with probed([prefill], [decode], by_leg=by_leg) as fleet:
        found = await ready(fleet)
        assert verdicts(found) == {"0>0": verdict}
        # Whatever was found out, a decode engine serves.
        fleet.p.by_leg.clear()
        fleet.d.by_leg.clear()
        body = CHAT.request(model=found["engines"][1]["models"][0])
        assert (await fleet.router.client.post(CHAT.path, json=body)).status_code == 200


async def test_a_probe_asks_for_a_block_of_its_own() -> None:
    """Sixteen tokens that nobody has cached; the same to both engines; greedy and short."""
    async with probed() as fleet:
        await ready(fleet)
        first, second = (one.request.json() for one in fleet.p.asked(Leg.PREFILL))
        assert len(first["prompt"]) == len(second["prompt"]) == 16
        assert first["prompt"] != second["prompt"]
        [taken] = fleet.d.asked(Leg.DECODE)
        assert taken.request.json()["prompt"] == first["prompt"]
        assert (first["max_tokens"], first["model"]) == (1, "tiny-model")
        assert taken.request.handoff == fleet.p.ledger.issued[0]


async def test_each_engine_is_probed_once_with_one_partner() -> None:
    async with probed([Metered(), Metered()], [Metered(), Metered(loads=False), Metered()]) as f:
        found = await ready(f)
        assert verdicts(found) == {
            "0>0": "works",
            "0>1": "unknown",
            "0>2": "works",
            "1>0": "unknown",
            "1>1": "missing",
            "1>2": "unknown",
        }


async def test_pairs_without_a_common_engine_run_at_once() -> None:
    """Neither prefill engine answers before both were asked."""
    asked: set[str] = set()
    both = asyncio.Event()

    async def meet(exchange: Exchange) -> None:
        asked.add(exchange.engine.name)
        if len(asked) == 2:
            both.set()
        await both.wait()
        await exchange.engine.default(exchange)

    async with probed(
        [Metered(), Metered()], [Metered(), Metered()], by_leg={Leg.PREFILL: meet}
    ) as fleet:
        assert verdicts(await ready(fleet)) == {
            "0>0": "works",
            "0>1": "unknown",
            "1>0": "unknown",
            "1>1": "works",
        }


async def test_operators_can_leave_the_probe_out() -> None:
    async with probed(handoff_probe=False) as fleet:
        assert verdicts(await ready(fleet)) == {"0>0": "unknown"}
        assert fleet.p.asked() == fleet.d.asked() == []


# Releases


@pytest.mark.parametrize(
    ("prefill", "by_leg", "verdict", "released"),
    [
        (Metered(), {}, "works", "request"),
        (Metered(), {Leg.RELEASE: behaviours.refuse(404)}, "works", "request"),
        (Metered(frees=False), {}, "missing", "lease"),
        (Metered(), {Leg.RELEASE: behaviours.answer(200, b"{}")}, "missing", "lease"),
        (Metered(), {Leg.RELEASE: behaviours.refuse(500)}, "missing", "lease"),
        (Metered(takes_blocks=False), {}, "unknown", "request"),
        (Metered(has_gauges=False), {}, "unknown", "request"),
        (Metered(), {Leg.RELEASE: behaviours.reset_before_header}, "unknown", "lease"),
    ],
    ids=[
        "frees",
        "frees_404",
        "frees_nothing",
        "is_generated",
        "fails",
        "hidden",
        "no_gauges",
        "resets",
    ],
)
async def test_verdicts_on_a_release(
    prefill: VllmBehaviour, by_leg: dict[Leg, Behaviour], verdict: str, released: str
) -> None:
    """And a release that is known not to work counts as left to the lease."""
    async with probed([prefill], by_leg=by_leg) as fleet:
        found = await ready(fleet)
        assert found["releases"] == {"decode-0": verdict}
        # A refusal that never saw the handoff is followed by a release.
        fleet.d.by_leg[Leg.DECODE] = behaviours.answer(400, b'{"error":{"type":"Bad Request"}}')
        before = await fleet.router.metrics()
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
        assert answer.status_code == 400
        await until(
            lambda: fleet.router.app.state.router.num_background_tasks == 0, "release ended"
        )
        after = await fleet.router.metrics()
        for name in ("request", "lease"):
            moved = after.since(before, "transload_handoffs_released_total", released=name)
            assert moved == (name == released), name


@pytest.mark.parametrize("how", ["no_connector", "does_not_load"])
async def test_no_release_is_probed_where_nothing_hands_off(how: str) -> None:
    prefill = Metered(has_connector=how != "no_connector")
    async with probed([prefill], [Metered(loads=how != "does_not_load")]) as fleet:
        found = await ready(fleet)
        assert found["releases"] == {"decode-0": "unknown"}
        assert fleet.d.asked(Leg.RELEASE) == []


# Engines that come and go


async def test_an_engine_that_comes_up_later_is_probed(quick_probes: None) -> None:
    async with probed(decode=[Metered(), Metered(loads=False)], absent=["d1"]) as fleet:
        assert verdicts(await ready(fleet)) == {"0>0": "works", "0>1": "unknown"}
        num_prefills = len(fleet.p.asked(Leg.PREFILL))
        await fleet.decode[1].start()
        await judged(fleet, p0d1="missing")
        assert len(fleet.p.asked(Leg.PREFILL)) == num_prefills + 1
        assert len(fleet.d.asked(Leg.DECODE)) == 1, "the first pair was left alone"


async def test_an_engine_that_comes_up_during_the_first_look_is_probed(quick_probes: None) -> None:
    gate = Gate()
    async with probed(
        decode=[Metered(), Metered(loads=False)],
        by_leg={Leg.PREFILL: gate.before()},
        absent=["d1"],
    ) as fleet:
        await soon(gate.reached.wait())
        await fleet.decode[1].start()
        await until(lambda: health(fleet, "decode-1") == "up", "the second is up")
        assert (await report(fleet))["is_ready"] is False, "the first look goes on"
        assert fleet.decode[1].asked() == []
        gate.opened.set()
        await judged(fleet, p0d0="works", p0d1="missing")


async def test_an_engine_that_was_replaced_is_judged_anew(quick_probes: None) -> None:
    decode = Metered(loads=False)
    async with probed(decode=[decode], health_interval_s=SOON_S) as fleet:
        assert verdicts(await ready(fleet)) == {"0>0": "missing"}
        await fleet.d.stop()
        await until(lambda: health(fleet, "decode-0") == "down", "it is gone")
        decode.loads = True
        await fleet.d.start()
        await judged(fleet, p0d0="works")


async def test_a_replaced_engines_releases_are_judged_anew(quick_probes: None) -> None:
    async with probed(by_leg={Leg.RELEASE: behaviours.refuse(500)}) as fleet:
        assert (await ready(fleet))["releases"] == {"decode-0": "missing"}
        await fleet.d.stop()
        # What a request finds, probes know at once.
        answer = await fleet.router.client.post("/tokenize", json={})
        assert answer.status_code == 503
        assert (await report(fleet))["releases"] == {"decode-0": "unknown"}
        fleet.d.by_leg.clear()
        await fleet.d.start()
        members = fleet.router.app.state.router.fleet
        await until(lambda: members.release("decode-0") == "works", "judged anew")


async def test_a_pair_without_end_is_given_up_and_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pair's whole time is bounded, and nothing is concluded of it."""
    monkeypatch.setattr(probing, "DOWN_INTERVAL_S", SOON_S)
    async with probed(
        decode=[Metered(), Metered()],
        by_leg={Leg.LOCAL: behaviours.hang},
        handoff_probe_timeout_s=1.0,
        absent=["d1"],
    ) as fleet:
        assert verdicts(await ready(fleet)) == {"0>0": "unknown", "0>1": "unknown"}
        assert said(caplog, "prefill-0 -> decode-0: no end in 1.0 s") == 1
        assert len(fleet.d.asked()) == 1
        for engine in fleet.engines:
            engine.by_leg.clear()
        await fleet.decode[1].start()
        await judged(fleet, p0d0="works", p0d1="works")


@pytest.mark.parametrize("leg", [Leg.PREFILL, Leg.DECODE])
async def test_a_silent_leg_does_not_keep_the_router_from_being_ready(leg: Leg) -> None:
    async with probed(by_leg={leg: behaviours.hang}, handoff_probe_timeout_s=SILENCE_S) as fleet:
        found = await ready(fleet)
        assert verdicts(found)["0>0"] in ("unknown", "fails")
        await until(lambda: fleet.p.is_idle and fleet.d.is_idle, "hung up on")
        # The probe's own handoff may be left to its lease.
        fleet.pinned = len(fleet.p.ledger.pinned)


# Health


async def test_one_probe_without_answer_takes_no_engine_out(
    quick_probes: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with probed(handoff_probe=False, health_interval_s=SOON_S) as fleet:
        await ready(fleet)
        hung: list[Exchange] = []

        async def hang_every_other(exchange: Exchange) -> None:
            hung.append(exchange)
            await (behaviours.hang if len(hung) % 2 else behaviours.answer(200))(exchange)

        fleet.d.by_path["/health"] = hang_every_other
        await until(lambda: len(hung) >= 2 * MAX_TIMEOUTS + 1, "silences apart from each other")
        assert said(caplog, "decode-0 is slow to answer probes") == MAX_TIMEOUTS
        assert said(caplog, "decode-0 is down") == 0
        assert health(fleet, "decode-0") == "up"
        fleet.d.by_path.clear()


async def test_silences_in_a_row_take_it_out(
    quick_probes: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with probed(handoff_probe=False, health_interval_s=SOON_S) as fleet:
        await ready(fleet)
        fleet.d.by_path["/health"] = behaviours.hang
        await until(lambda: health(fleet, "decode-0") == "down", "down")
        assert said(caplog, "decode-0 is slow to answer probes") == MAX_TIMEOUTS - 1
        found = await report(fleet)
        assert found["is_ready"] is False
        assert found["engines"][1]["detail"] == "engine decode-0: /health did not answer in time"
        fleet.d.by_path.clear()
        await until(lambda: health(fleet, "decode-0") == "up", "back by one answer")


async def drip(exchange: Exchange) -> None:
    """An answer without end, a little of it at a time."""
    await exchange.head(200, [("transfer-encoding", "chunked")])
    while True:
        await exchange.chunk(b" ")


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
async def test_an_answer_without_end_is_none(
    quick_probes: None, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(probe, "MAX_ANSWER_BYTES", 1 << 40)
    async with probed(handoff_probe=False, health_interval_s=SOON_S) as fleet:
        await ready(fleet)
        fleet.d.by_path[path] = drip
        await until(lambda: health(fleet, "decode-0") == "down", "down")
        found = await report(fleet)
        assert found["engines"][1]["detail"] == f"engine decode-0: {path} did not answer in time"
        fleet.d.by_path.clear()
        await until(lambda: health(fleet, "decode-0") == "up", "back by one answer")


async def test_a_longer_answer_than_any_is_not_read(
    quick_probes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "MAX_ANSWER_BYTES", 1000)
    async with probed(handoff_probe=False, health_interval_s=SOON_S) as fleet:
        await ready(fleet)
        fleet.d.by_path["/v1/models"] = behaviours.answer(200, b" " * 1001)
        await until(lambda: health(fleet, "decode-0") == "down", "down")
        found = await report(fleet)
        detail = "engine decode-0: /v1/models: its answer is too long"
        assert found["engines"][1]["detail"] == detail
        fleet.d.by_path.clear()


@pytest.mark.parametrize("how", ["refused", "reset", "status"])
async def test_a_clear_no_takes_it_out_at_once(
    quick_probes: None, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    async with probed(handoff_probe=False, health_interval_s=SOON_S) as fleet:
        await ready(fleet)
        if how == "refused":
            await fleet.d.stop()
        else:
            no = behaviours.reset_before_header if how == "reset" else behaviours.answer(503)
            fleet.d.by_path["/health"] = no
        await until(lambda: health(fleet, "decode-0") == "down", "down")
        assert said(caplog, "slow to answer") == 0
        assert said(caplog, "decode-0 is down") == 1


async def test_patience_is_for_engines_that_were_up(
    quick_probes: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with probed(by_path={"/health": behaviours.hang}, handoff_probe=False) as fleet:
        await until(lambda: health(fleet, "decode-0") == "down", "down")
        assert said(caplog, "slow to answer") == 0
        fleet.d.by_path.clear()
        await until(lambda: health(fleet, "decode-0") == "up", "up")


async def test_found_down_by_a_request_it_is_asked_again_soon(quick_probes: None) -> None:
    """The interval of health probes is an hour here."""
    async with probed(handoff_probe=False) as fleet:
        await ready(fleet)
        num_asked = len(fleet.d.asked(Leg.PROBE))
        await fleet.d.stop()
        answer = await fleet.router.client.post("/tokenize", json={})
        assert answer.status_code == 503
        assert health(fleet, "decode-0") == "down"
        await fleet.d.start()
        await until(lambda: health(fleet, "decode-0") == "up", "up")
        assert len(fleet.d.asked(Leg.PROBE)) > num_asked
        assert (await fleet.router.client.post(CHAT.path, json=CHAT.request())).status_code == 200


async def test_models_that_are_not_told_rule_nothing_out() -> None:
    """/v1/models may need a key that the router was not given."""
    async with probed([VllmBehaviour(api_key="k")], handoff_probe=False) as fleet:
        found = await ready(fleet)
        assert [one["models"] for one in found["engines"]] == [None, ["tiny-model"]]
        assert [one["health"] for one in found["engines"]] == ["up", "up"]


async def test_probes_carry_the_keys_of_their_pools() -> None:
    keys: dict[str, Any] = {"prefill_api_key": "kp", "decode_api_key": "kd"}
    async with probed([Metered(api_key="kp")], [Metered(api_key="kd")], **keys) as fleet:
        found = await ready(fleet)
        assert verdicts(found) == {"0>0": "works"}
        assert found["releases"] == {"decode-0": "works"}
        for engine, key in ((fleet.p, "Bearer kp"), (fleet.d, "Bearer kd")):
            sent = {one.request.header("authorization") for one in engine.exchanges}
            assert sent == {key}
            paths = {one.request.path for one in engine.exchanges}
            assert paths == {
                "/health",
                "/kv_event_sources",
                "/v1/models",
                "/metrics",
                "/v1/completions",
            }


async def test_a_wrong_key_is_a_failed_handoff_not_a_dead_engine() -> None:
    keys: dict[str, Any] = {"prefill_api_key": "wrong", "decode_api_key": "kd"}
    served = [model_card("tiny-model")]
    async with probed(
        [Metered(models=served)], [Metered(models=served, api_key="kd")], **keys
    ) as fleet:
        fleet.p.by_leg[Leg.PREFILL] = behaviours.refuse(401)
        found = await ready(fleet)
        assert [one["health"] for one in found["engines"]] == ["up", "up"]


# /readyz


@pytest.mark.parametrize(
    ("down", "settings", "is_ready"),
    [
        ((), {}, True),
        (("d0",), {}, True),
        (("d0", "d1"), {}, False),
        (("p0",), {}, True),
        (("p0",), {"on_empty_prefill": "fail"}, False),
        (("d0", "d1"), {"on_empty_prefill": "fail"}, False),
        (("p0", "d0", "d1"), {}, False),
    ],
)
async def test_ready_is_who_can_be_served(
    down: tuple[str, ...], settings: dict[str, Any], is_ready: bool
) -> None:
    async with probed(
        decode=[Metered(), Metered()], handoff_probe=False, absent=down, **settings
    ) as fleet:
        members = fleet.router.app.state.router.fleet.members.values()
        await until(lambda: all(m.health != "joining" for m in members), "first round")
        if is_ready:
            await ready(fleet)
        found = await report(fleet)
        assert found["is_ready"] is is_ready
        words = {one["id"]: one["health"] for one in found["engines"]}
        assert words == {
            name: "down" if f"{name[0]}{name[-1]}" in down else "up"
            for name in ("prefill-0", "decode-0", "decode-1")
        }


async def test_not_ready_before_every_engine_was_asked() -> None:
    gate = Gate()
    async with probed(prefill=(), by_path={"/health": gate.before()}) as fleet:
        await soon(gate.reached.wait())
        found = await report(fleet)
        assert found["is_ready"] is False
        assert found["engines"][0]["health"] == "joining"
        gate.opened.set()
        assert (await ready(fleet))["engines"][0]["health"] == "up"


async def test_the_report_of_a_fleet() -> None:
    async with probed(absent=["p0"]) as fleet:
        assert await ready(fleet) == {
            "is_ready": True,
            "mode": "disaggregated",
            "engines": [
                {
                    "id": "prefill-0",
                    "role": "prefill",
                    "health": "down",
                    "models": None,
                    "detail": "engine prefill-0: no connection",
                },
                {"id": "decode-0", "role": "decode", "health": "up", "models": ["tiny-model"]},
            ],
            "handoffs": [{"prefill": "prefill-0", "decode": "decode-0", "verdict": "unknown"}],
            "releases": {"decode-0": "unknown"},
            "tokenizers": {},
        }


async def test_the_report_without_prefill() -> None:
    async with probed(prefill=()) as fleet:
        found = await ready(fleet)
        assert found["mode"] == "decode only"
        assert found["handoffs"] == []
        assert fleet.d.asked() == [], "there is no handoff to probe"
