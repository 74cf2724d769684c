"""Coroutines driven without a task."""

import asyncio
from collections.abc import Generator
from types import coroutine
from typing import Any

from transload_router.app.byhand import ByHand

Ends = list[tuple[object, BaseException | None]]


def by_hand(run: Any, *waits_for: object) -> tuple[ByHand[Any], Ends]:
    ends: Ends = []
    return ByHand(run, lambda value, error: ends.append((value, error)), *waits_for), ends


async def test_one_that_never_waits_ends_at_once() -> None:
    async def run() -> int:
        return 7

    driven, ends = by_hand(run())
    assert ends == []
    driven.start()
    assert ends == [(7, None)]


async def test_one_that_waits_goes_on_when_its_future_is_done() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run() -> str:
        return await future

    driven, ends = by_hand(run())
    driven.start()
    assert ends == []
    future.set_result("there")
    await asyncio.sleep(0)
    assert ends == [("there", None)]


async def test_a_bare_yield_takes_one_pass_of_the_loop() -> None:
    async def run() -> str:
        await asyncio.sleep(0)
        return "after"

    driven, ends = by_hand(run())
    driven.start()
    assert ends == []
    await asyncio.sleep(0)
    assert ends == [("after", None)]


async def test_one_that_its_owner_drove_to_a_bare_yield() -> None:
    """It is assigned before it goes on, so that its end finds it in its place."""

    @coroutine
    def yields() -> Generator[None, None, str]:
        yield
        return "done"

    run = yields()
    waits_for = run.send(None)
    driven, ends = by_hand(run, waits_for)
    driven.start()
    assert ends == []
    await asyncio.sleep(0)
    assert ends == [("done", None)]


async def test_errors_are_given_not_raised() -> None:
    async def run() -> None:
        raise LookupError("lost")

    driven, ends = by_hand(run())
    driven.start()
    [(value, error)] = ends
    assert value is None
    assert isinstance(error, LookupError)


async def test_closed_it_says_nothing_more() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = []

    async def run() -> None:
        try:
            await future
        finally:
            left.append("left")

    driven, ends = by_hand(run())
    driven.start()
    driven.close()
    driven.close()
    assert left == ["left"]
    future.set_result(None)
    await asyncio.sleep(0)
    assert ends == []


async def test_a_failed_future_is_raised_where_it_is_awaited() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    caught: list[str] = []

    async def run() -> str:
        try:
            await future
        except LookupError as error:
            caught.append(str(error))
        return "mended"

    driven, ends = by_hand(run())
    driven.start()
    future.set_exception(LookupError("lost"))
    await asyncio.sleep(0)
    assert (caught, ends) == (["lost"], [("mended", None)])


async def test_a_cancelled_future_ends_it_as_cancelled() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        await future

    driven, ends = by_hand(run())
    driven.start()
    future.cancel()
    await asyncio.sleep(0)
    [(_, error)] = ends
    assert isinstance(error, asyncio.CancelledError)


async def test_closed_at_a_bare_yield_it_is_not_resumed() -> None:
    went_on = []

    async def run() -> None:
        await asyncio.sleep(0)
        went_on.append("on")

    driven, ends = by_hand(run())
    driven.start()
    driven.close()
    await asyncio.sleep(0)
    assert (went_on, ends) == ([], [])


async def test_closed_before_it_began() -> None:
    async def run() -> None:
        raise AssertionError("ran")

    driven, ends = by_hand(run())
    driven.close()
    driven.start()
    assert ends == []


async def test_what_waits_for_one_future_goes_on_in_the_order_of_waiting() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    order: list[str] = []

    async def run(name: str) -> None:
        await future
        order.append(name)
        await asyncio.sleep(0)
        order.append(name.upper())

    for name in ("a", "b", "c"):
        by_hand(run(name))[0].start()
    future.set_result(None)
    assert order == [], "never from within whoever ends the future"
    for _ in range(2):
        await asyncio.sleep(0)
    assert order == ["a", "b", "c", "A", "B", "C"]


async def test_several_waits_one_end() -> None:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[int]] = [loop.create_future() for _ in range(3)]

    async def run() -> int:
        return sum([await future for future in futures])

    driven, ends = by_hand(run())
    driven.start()
    for number, future in enumerate(futures):
        assert ends == []
        future.set_result(number)
        await asyncio.sleep(0)
    assert ends == [(3, None)]
