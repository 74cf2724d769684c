"""A client that goes cancels its request, and nothing else does."""

import asyncio
from typing import Any

import pytest

from transload_router.app.client import ClientWatch, Message

GONE: Message = {"type": "http.disconnect"}
MORE: Message = {"type": "http.request", "body": b"", "more_body": False}


class Client:
    """An ASGI `receive` that gives what it is told to."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.num_closed = 0
        self._message: asyncio.Future[Message] | None = None

    async def receive(self) -> Message:
        """See ASGI."""
        self.num_asked += 1
        self._message = asyncio.get_running_loop().create_future()
        try:
            return await self._message
        except GeneratorExit:
            self.num_closed += 1
            raise

    def say(self, message: Message) -> None:
        """Give a message."""
        assert self._message is not None
        self._message.set_result(message)

    def fail(self, error: Exception) -> None:
        """Raise instead."""
        assert self._message is not None
        self._message.set_exception(error)


class Served:
    """A request under way that waits inside a watch.

    Attributes:
        task: Its result is "gone" where the watch absorbed.
    """

    def __init__(self) -> None:
        self.client = Client()
        self.watch = ClientWatch(self.client.receive)
        self.go: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.ensure_future(self._serve())

    async def _serve(self) -> str:
        with self.watch:
            try:
                await self.go
            except asyncio.CancelledError:
                self.watch.absorb()
                await asyncio.sleep(0)  # A second cancellation would be here.
                task: asyncio.Task[Any] | None = asyncio.current_task()
                assert task is not None
                assert task.cancelling() == 0
                return "gone"
        return "answered"


async def begun() -> Served:
    served = Served()
    await asyncio.sleep(0)
    return served


async def test_a_client_that_goes() -> None:
    served = await begun()
    assert not served.watch.is_gone
    served.client.say(GONE)
    assert await served.task == "gone"
    assert served.watch.is_gone


async def test_a_client_that_stays() -> None:
    served = await begun()
    served.go.set_result(None)
    assert await served.task == "answered"
    assert not served.watch.is_gone
    assert (served.client.num_asked, served.client.num_closed) == (1, 1)


async def test_other_messages_are_passed_over() -> None:
    served = await begun()
    for num_messages in (1, 2):
        served.client.say(MORE)
        await asyncio.sleep(0)
        assert served.client.num_asked == 1 + num_messages
    assert not served.task.done()
    served.client.say(GONE)
    assert await served.task == "gone"


async def test_a_server_that_ends_is_no_client_that_goes() -> None:
    served = await begun()
    served.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await served.task
    assert not served.watch.is_gone
    assert served.client.num_closed == 1


async def test_a_receive_that_fails_is_raised() -> None:
    served = await begun()
    served.client.fail(LookupError("the server's"))
    with pytest.raises(LookupError, match="the server's"):
        await served.task
    assert not served.watch.is_gone


async def test_gone_already_cancels_the_first_wait() -> None:
    async def receive() -> Message:
        return GONE

    reached: list[str] = []

    async def serve() -> None:
        with ClientWatch(receive) as watch:
            reached.append("no wait yet")
            try:
                await asyncio.sleep(0)
                reached.append("too far")
            except asyncio.CancelledError:
                watch.absorb()

    await asyncio.ensure_future(serve())
    assert reached == ["no wait yet"]


async def test_gone_as_the_wait_ends_is_still_told() -> None:
    served = await begun()
    served.go.set_result(None)
    served.client.say(GONE)
    assert await served.task == "answered", "the answer was there first"
    served = await begun()
    served.client.say(GONE)
    served.go.set_result(None)
    assert await served.task == "gone"


async def test_after_the_end_a_client_that_goes_cancels_nobody() -> None:
    client = Client()
    with ClientWatch(client.receive) as watch:
        pass
    client.say(GONE)
    await asyncio.sleep(0)
    assert not watch.is_gone
    assert client.num_closed == 1
