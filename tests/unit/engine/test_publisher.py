"""Frames on the wire, and replay."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import zmq
import zmq.asyncio

from support.waiting import soon
from transload_engine.server.publisher import EventPublisher, advertised

ANY = "tcp://127.0.0.1:*"


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
async def publisher(context: zmq.Context[Any]) -> AsyncIterator[EventPublisher]:
    publisher = EventPublisher(context, ANY, ANY, "kv@e", buffer_steps=3)
    yield publisher
    publisher.close()


async def _replay(context: zmq.Context[Any], publisher: EventPublisher, first: int) -> list[Any]:
    with zmq.asyncio.Context(context).socket(zmq.DEALER) as dealer:
        dealer.connect(publisher.replay_endpoint)
        await dealer.send_multipart([b"", first.to_bytes(8, "big")])
        frames = [await soon(dealer.recv_multipart())]
        while frames[-1][2] != b"\xff" * 8:
            frames.append(await soon(dealer.recv_multipart()))
    return frames


async def test_messages_carry_topic_number_and_payload(
    context: zmq.Context[Any], publisher: EventPublisher
) -> None:
    with zmq.asyncio.Context(context).socket(zmq.SUB) as subscriber:
        subscriber.subscribe(b"kv@")
        subscriber.connect(publisher.endpoint)
        sent = 0

        async def arrives() -> bool:
            nonlocal sent
            publisher.publish(b"%d" % sent)
            sent += 1
            return bool(await subscriber.poll(20))

        while not await soon(arrives()):
            pass
        topic, number, payload = await subscriber.recv_multipart()
        assert topic == b"kv@e"
        assert number == int(payload).to_bytes(8, "big")
        assert int(payload) < sent


async def test_what_is_kept_is_replayed_and_then_its_end(
    context: zmq.Context[Any], publisher: EventPublisher
) -> None:
    for number in range(5):
        publisher.publish(b"payload-%d" % number)
    assert await _replay(context, publisher, 3) == [
        [b"", b"kv@e", b"\0" * 7 + b"\x03", b"payload-3"],
        [b"", b"kv@e", b"\0" * 7 + b"\x04", b"payload-4"],
        [b"", b"", b"\xff" * 8, b""],
    ]
    assert [frames[3] for frames in await _replay(context, publisher, 0)] == [
        *(b"payload-2", b"payload-3", b"payload-4", b"")
    ]


async def test_dropped_messages_keep_their_numbers_and_can_be_replayed(
    context: zmq.Context[Any], publisher: EventPublisher
) -> None:
    publisher.drops = True
    publisher.publish(b"a")
    assert [frames[3] for frames in await _replay(context, publisher, 0)] == [b"a", b""]


async def test_what_is_not_kept_is_not_replayed(
    context: zmq.Context[Any], publisher: EventPublisher
) -> None:
    publisher.publish(b"a")
    publisher.keeps = False
    assert [frames[3] for frames in await _replay(context, publisher, 0)] == [b""]


async def test_a_malformed_question_is_passed_over(
    context: zmq.Context[Any], publisher: EventPublisher
) -> None:
    with zmq.asyncio.Context(context).socket(zmq.DEALER) as dealer:
        dealer.connect(publisher.replay_endpoint)
        await dealer.send_multipart([b"what?"])
        await dealer.send_multipart([b"", b"\0" * 8])
        assert await soon(dealer.recv_multipart()) == [b"", b"", b"\xff" * 8, b""]


def test_all_interfaces_are_told_as_a_star() -> None:
    assert advertised("tcp://0.0.0.0:5557") == "tcp://*:5557"
    assert advertised("tcp://127.0.0.1:5557") == "tcp://127.0.0.1:5557"
