"""One engine as it is served, and the simulated one: what can be done to it while it runs."""

import abc
import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from transload_engine.core.engine_core import EngineCore
from transload_engine.core.events import EventForm
from transload_engine.core.handoff import Handoff, Origin
from transload_engine.core.serving import ServingCore
from transload_engine.core.settings import CoreSettings
from transload_engine.server.api import Api, SimulatedApi
from transload_engine.server.faults import Faults
from transload_engine.server.listen import MAX_PORT, HttpServer
from transload_engine.server.metrics import exposition, nixl_series, serving_series
from transload_engine.server.peers import Peers, SideChannel
from transload_engine.server.publisher import BUFFER_STEPS, HIGH_WATER, EventPublisher, advertised
from transload_engine.server.rank import Rank
from transload_engine.server.simulated_rank import SimulatedRank
from transload_engine.server.tokens import ByteTokenizer, Tokenizer
from transload_engine.server.wants import Body, Limits, Want, read_want

LOOPBACK = "127.0.0.1"
AnyRank = TypeVar("AnyRank", bound=Rank[Any])


@dataclass(frozen=True)
class EventPorts:
    """Where an engine's events go; each rank takes the next port, or any where it is 0.

    Attributes:
        buffer_steps: Messages that are kept for replay.
    """

    events: int = 0
    replay: int = 0
    topic: str = ""
    form: EventForm = EventForm.MAP
    buffer_steps: int = BUFFER_STEPS

    def __post_init__(self) -> None:
        """Refuse ports that are none.

        Raises:
            ValueError: As it says.
        """
        _check_ports(self.events, self.replay)


@dataclass(frozen=True)
class EngineSpec:
    """One engine.

    Attributes:
        name: For people; others know it by its address.
        port: Of HTTP; 0 leaves it to the system, and so do the other ports.
        side_channel_host: Where other engines reach this one for its blocks
            (`VLLM_NIXL_SIDE_CHANNEL_HOST`).
        side_channel_port: Of the first rank.
        ports: Of its events; None for no events.
        speed: Simulated seconds in a real one.
        reports_cached: Whether usage tells of cached tokens (`--enable-prompt-tokens-details`).
        default_max_tokens: Of chats that do not say; a model's generation config may do the same.
    """

    name: str = "engine"
    host: str = LOOPBACK
    port: int = 0
    side_channel_host: str = LOOPBACK
    side_channel_port: int = 0
    model: str = "simulated"
    core: CoreSettings = field(default_factory=CoreSettings)
    num_ranks: int = 1
    ports: EventPorts | None = field(default_factory=EventPorts)
    speed: float = 1.0
    reports_cached: bool = True
    default_max_tokens: int = 256
    tokenizer_path: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot run.

        Raises:
            ValueError: No rank, no time that passes, or a port that is none.
        """
        if self.num_ranks < 1:
            raise ValueError(f"an engine has at least one rank; got {self.num_ranks}")
        if not self.speed > 0:
            raise ValueError(
                f"speed: more than 0 simulated seconds in a real one; got {self.speed}"
            )
        _check_ports(self.port, self.side_channel_port)


def _check_ports(*ports: int) -> None:
    for port in ports:
        if not 0 <= port <= MAX_PORT:
            raise ValueError(f"a port is at most {MAX_PORT}, and 0 is any; got {port}")


@dataclass(frozen=True)
class Identity:
    """What an engine says it is.

    Attributes:
        owner: Of its models.
        fingerprint: `system_fingerprint` of answers.
    """

    owner: str
    version: str
    fingerprint: str


VLLM = Identity("vllm", "0.32.0", "vllm-0.32.0-simulated")
"""What a simulated engine passes itself off as."""


class Engine(abc.ABC, Generic[AnyRank]):
    """What engines of either kind are to the HTTP surface.

    Args:
        spec: What to be.
        identity: What to say it is.
        context: Of ZMQ; must outlive the engine.
        tokenizer: Of its model.
        api: The ASGI application, made for this engine.
    """

    def __init__(
        self,
        spec: EngineSpec,
        identity: Identity,
        context: zmq.Context[zmq.Socket[bytes]],
        tokenizer: Tokenizer,
        api: Api,
    ) -> None:
        self.spec = spec
        self.identity = identity
        self.tokenizer = tokenizer
        self.ranks: list[AnyRank] = []
        self._context = context
        self._turns = itertools.count()
        self._server = HttpServer(api)

    @property
    @abc.abstractmethod
    def refuses(self) -> bool:
        """Whether the core is dead: everything is answered 503."""

    @abc.abstractmethod
    def metrics(self) -> bytes:
        """The answer of `/metrics`."""

    def read(self, body: Body, *, is_chat: bool) -> Want:
        """What a body asks for.

        Raises:
            Refusal: Whatever vLLM would refuse.
        """
        spec = self.spec
        limits = Limits(
            model=spec.model,
            max_model_tokens=spec.core.max_model_tokens,
            default_max_tokens=spec.default_max_tokens,
            vocab_size=self.tokenizer.vocab_size,
        )
        return read_want(body, self.tokenizer, limits, is_chat=is_chat)

    def give_up(self, params: dict[str, Any]) -> None:
        """Have the blocks of a refused request freed, as vLLM's connector does."""
        handoff = Handoff.read(params)
        if handoff is not None and self.spec.core.has_connector:
            self.ranks[0].give_up(handoff)

    @property
    def url(self) -> str:
        """Base URL; valid once started."""
        return f"http://{self.spec.host}:{self.spec.port}"

    @property
    def cores(self) -> Sequence[ServingCore]:
        """Of each rank."""
        return [rank.core for rank in self.ranks]

    def _publisher(self, number: int) -> EventPublisher | None:
        ports = self.spec.ports
        if ports is None:
            return None
        events = f"tcp://{self.spec.host}:{ports.events + number if ports.events else '*'}"
        replay = f"tcp://{self.spec.host}:{ports.replay + number if ports.replay else '*'}"
        return EventPublisher(self._context, events, replay, ports.topic, ports.buffer_steps)

    def choose_rank(self, header: str | None) -> AnyRank | None:
        """The rank that a request's header names, else the least loaded; None for no such rank."""
        with contextlib.suppress(ValueError):
            if header is not None:
                number = int(header)
                return self.ranks[number] if 0 <= number < len(self.ranks) else None
        start = next(self._turns)
        turned = [self.ranks[(start + each) % len(self.ranks)] for each in range(len(self.ranks))]
        return min(turned, key=lambda rank: rank.core.num_running + rank.core.num_waiting)

    def event_sources(self) -> dict[str, Any]:
        """The answer of `/kv_event_sources`."""
        publishers = {rank.number: rank.publisher for rank in self.ranks if rank.publisher}
        topic = self.spec.ports.topic if self.spec.ports else ""
        return {
            str(number): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": advertised(publisher.endpoint),
                "replay_endpoint": advertised(publisher.replay_endpoint),
                "buffer_steps": self.spec.ports.buffer_steps if self.spec.ports else 0,
                "hwm": HIGH_WATER,
                "max_queue_size": HIGH_WATER,
                "topic": topic,
            }
            for number, publisher in publishers.items()
        }

    def description(self) -> bytes:
        """One line of JSON for whoever started the process."""
        return msgspec.json.encode(
            {
                "name": self.spec.name,
                "url": self.url,
                "model": self.spec.model,
                "num_ranks": self.spec.num_ranks,
                "kv_event_sources": self.event_sources(),
            }
        )


class SimulatedEngine(Engine[SimulatedRank]):
    """See the module. `start` and `stop` may alternate; each start is that of an empty engine.

    Args:
        spec: What to be.
        peers: Shared by the engines of a process.
        context: Of ZMQ, likewise; must outlive the engine.
        tokenizer: Shared by engines of one model.
    """

    def __init__(
        self,
        spec: EngineSpec,
        peers: Peers,
        context: zmq.Context[zmq.Socket[bytes]],
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(spec, VLLM, context, tokenizer or ByteTokenizer(), SimulatedApi(self))
        self.faults = Faults()
        self._peers = peers
        self._side_channels: list[SideChannel] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def refuses(self) -> bool:
        """See `Engine`."""
        return self.faults.refuses

    @property
    def cores(self) -> Sequence[EngineCore]:
        """See `Engine`."""
        return [rank.core for rank in self.ranks]

    def metrics(self) -> bytes:
        """See `Engine`."""
        has_nixl = self.spec.core.has_connector
        by_rank = [
            chain(serving_series(rank.core), nixl_series(rank.core) if has_nixl else ())
            for rank in self.ranks
        ]
        return exposition(by_rank, self.spec.model)

    async def start(self) -> None:
        """Be reachable, with empty caches and no faults, where it was before if it was."""
        self._set_faults(Faults())
        for number in range(self.spec.num_ranks):
            await self._start_rank(number)
        port = await self._server.start(self.spec.host, self.spec.port)
        self.spec = replace(self.spec, port=port)

    async def _start_rank(self, number: int) -> None:
        spec = self.spec
        origin = Origin(str(uuid.uuid4()), spec.side_channel_host, 0)
        core = EngineCore(spec.core, origin, self.tokenizer.answer_ids, self.tokenizer.eos)
        publisher = self._publisher(number)
        form = spec.ports.form if spec.ports else EventForm.MAP
        rank = SimulatedRank(core, number, self._peers, self.faults, publisher, form, spec.speed)
        channel = SideChannel(rank)
        wanted = spec.side_channel_port and spec.side_channel_port + number
        port = await channel.start(origin.host, wanted)
        core.origin = replace(origin, port=port)
        self._peers.add(origin.host, port, rank)
        self._side_channels.append(channel)
        self.ranks.append(rank)
        rank.start()

    async def stop(self) -> None:
        """Be gone at once, as a process that is killed."""
        await self._server.stop()
        ranks, self.ranks = self.ranks, []
        channels, self._side_channels = self._side_channels, []
        for rank, channel in zip(ranks, channels, strict=True):
            self._peers.remove(rank.core.origin.host, rank.core.origin.port)
            await channel.stop()
            await rank.close()

    async def close(self) -> None:
        """Stop for good."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.stop()

    def set_faults(self, faults: Faults) -> None:
        """Put these faults in force instead of those before."""
        self._set_faults(faults)
        for rank in self.ranks:
            rank.wake()

    def _set_faults(self, faults: Faults) -> None:
        for name in Faults.__struct_fields__:
            setattr(self.faults, name, getattr(faults, name))

    def die(self, for_s: float | None) -> None:
        """Be killed as soon as the caller has returned, and come back empty after a time."""
        task = asyncio.get_running_loop().create_task(self._die(for_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _die(self, for_s: float | None) -> None:
        await self.stop()
        if for_s is not None:
            await asyncio.sleep(for_s)
            await self.start()
