"""What random walks over a fleet do to it: engines that fail, clients that leave midway."""

import asyncio
import random

from support import behaviours
from support.raw_client import raw_client
from support.router_server import Fleet
from support.scripted_engine import Behaviour, Leg

FAULTS: tuple[tuple[Leg, Behaviour | None], ...] = (
    (Leg.PREFILL, None),
    (Leg.PREFILL, behaviours.refuse(400)),
    (Leg.PREFILL, behaviours.refuse(503)),
    (Leg.PREFILL, behaviours.reset_before_header),
    (Leg.DECODE, behaviours.refuse(400)),
    (Leg.DECODE, behaviours.refuse(503)),
    (Leg.DECODE, behaviours.close_before_header),
    (Leg.DECODE, behaviours.die_in_body(2)),
)


def break_some(fleet: Fleet, chance: random.Random) -> None:
    """Have each engine fail in one way or none, a few times, instead of what it did before."""
    for engine in fleet.engines:
        engine.script.clear()
        leg, fault = chance.choice(FAULTS)
        if fault is not None and (engine in fleet.prefill) == (leg is Leg.PREFILL):
            engine.script.extend([fault] * chance.randrange(4))


async def ask_and_leave(port: int, request: bytes, chance: random.Random) -> None:
    """Send a request and leave after some turns of the loop, by a reset or in order."""
    async with raw_client(port) as leaving:
        await leaving.send(request)
        for _ in range(chance.randrange(30)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            leaving.reset()
