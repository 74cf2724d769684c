"""For all tests: a test that leaves a task or a socket behind has failed."""

import asyncio
import gc
import inspect
import os
from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from support.leaks import new_tcp_sockets, other_tasks, sockets

# Finished tasks need a turn of the loop or two to leave it; a leak stays.
_GRACE_S = 1.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI everything that a test needs is there, so a test that skips has failed."""
    report = yield
    if report.skipped and "CI" in os.environ and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


def _shares_servers(request: pytest.FixtureRequest) -> bool:
    """Tests on a module's loop keep connections among them; their module looks for leaks."""
    marker = request.node.get_closest_marker("asyncio")
    return marker is not None and marker.kwargs.get("loop_scope") == "module"


@pytest.fixture(autouse=True)
def no_leaked_sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """No TCP socket more than before."""
    if _shares_servers(request):
        yield
        return
    before = sockets()
    yield
    if new_tcp_sockets(before):
        gc.collect()
    assert new_tcp_sockets(before) == {}, "sockets leaked (local, remote, state)"


@pytest.fixture
async def no_leaked_tasks_in_loop() -> AsyncIterator[None]:
    """No task more than before; set up first, so torn down behind all of a test's fixtures."""
    before = other_tasks()
    yield
    left = other_tasks() - before
    if left:
        await asyncio.wait(left, timeout=_GRACE_S)
    assert {task for task in left if not task.done()} == set(), "tasks leaked"


@pytest.fixture(autouse=True)
def no_leaked_tasks(request: pytest.FixtureRequest) -> None:
    """Watch the tasks of every asynchronous test."""
    function = getattr(request.node, "function", None)
    if inspect.iscoroutinefunction(function) and not _shares_servers(request):
        request.getfixturevalue("no_leaked_tasks_in_loop")
