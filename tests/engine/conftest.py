"""Real engines and the router, started once and when first asked for; a skip is a failure."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import httpx
import pytest

import engine_env
from engine.routing_world import Fleet, small
from engine.world import AT_ONCE_S, REQUEST_S, SPLITTING, World, assert_idle
from real_engine import launch
from real_engine.launch import Engines, EngineSpec, Role
from real_engine.router import RouterProcess


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Whoever asked for the engine tests wants them run."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"engine tests may not be skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """The zygote; what it forks ends with the session."""
    environment = engine_env.ensure()
    model = launch.ensure_model(environment)
    with Engines(environment, model, tmp_path_factory.mktemp("engines")) as engines:
        yield engines


@pytest.fixture(scope="session")
def world(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Prefill, decode and aggregated, with a failed load failing its request; and the router."""
    prefill = engines.start(EngineSpec("prefill", Role.PREFILL))
    decode = engines.start(EngineSpec("decode", Role.DECODE))
    aggregated = engines.start(EngineSpec("aggregated", Role.AGGREGATED))
    for engine in (prefill, decode, aggregated):
        engine.wait_ready()
    log = tmp_path_factory.mktemp("router") / "router.log"
    with RouterProcess([prefill.url], [decode.url], log, SPLITTING) as router:
        router.wait_ready()
        yield World(prefill, decode, aggregated, router)


@pytest.fixture(scope="session")
def fleets(engines: Engines) -> dict[int, Fleet]:
    """Fleets by their number of decode engines, as far as started; they end with the zygote."""
    return {}


@pytest.fixture(
    params=[
        pytest.param(1, id="2x1"),
        pytest.param(2, id="2x2", marks=pytest.mark.engine_full),
    ]
)
def fleet(
    request: pytest.FixtureRequest,
    engines: Engines,
    fleets: dict[int, Fleet],
    tmp_path_factory: pytest.TempPathFactory,
) -> Fleet:
    """Two prefill engines and one or two decode engines, all with small and empty caches.

    `prefill-1` publishes at the same place whenever it starts, the others anywhere.
    """
    num_decode: int = request.param
    if num_decode not in fleets:
        folder = tmp_path_factory.mktemp("kv")
        fixed = (f"ipc://{folder}/events", f"ipc://{folder}/replay")
        specs = [small(f"2x{num_decode}-prefill-{number}", Role.PREFILL) for number in range(2)]
        specs[1] = replace(specs[1], event_endpoints=fixed)
        specs += [small(f"decode-{n}-of-{num_decode}", Role.DECODE) for n in range(num_decode)]
        started = Fleet(engines, specs)
        started.wait_ready()
        fleets[num_decode] = started
    fleets[num_decode].forget()
    return fleets[num_decode]


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> None:
    """Idle engines that remember no prompt of an earlier test, where a test asks for the world.

    Blocks that an earlier test lost have failed that test; their lease is waited for.
    """
    if "world" not in request.fixturenames:
        return
    world: World = request.getfixturevalue("world")
    assert_idle(world, within_s=world.prefill.spec.lease_s + AT_ONCE_S)
    for engine in (world.prefill, world.decode, world.aggregated):
        httpx.post(f"{engine.url}/reset_prefix_cache", timeout=REQUEST_S).raise_for_status()


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    """A client with room for every concurrent request of a test."""
    limits = httpx.Limits(max_connections=64)
    with httpx.Client(timeout=REQUEST_S, limits=limits) as client:
        yield client
