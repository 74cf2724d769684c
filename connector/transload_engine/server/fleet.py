"""Many engines in one process and one event loop."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import zmq

from transload_engine.core.settings import CoreSettings
from transload_engine.server.engine import EngineSpec, SimulatedEngine
from transload_engine.server.peers import Peers
from transload_engine.server.tokens import ByteTokenizer, FolderTokenizer, Tokenizer

LOCAL = "local"
"""Engines of this role have no connector; whatever other roles are called, all others can both
hand off and load."""


class SimulatedFleet:
    """Engines that run within an `async with` block.

    Attributes:
        specs: As given.
        engines: In the order of their specs; none outside the block.

    Args:
        specs: Each model's tokenizer is that of its first engine; it is read here.

    Raises:
        ValueError: A tokenizer is none, or what reads it is not installed.
        OSError: Its files cannot be read.
    """

    def __init__(self, specs: Sequence[EngineSpec]) -> None:
        self.specs = list(specs)
        self._tokenizers = _tokenizers(self.specs)
        self.engines: list[SimulatedEngine] = []

    @classmethod
    def of(cls, spec: EngineSpec, **counts: int) -> "SimulatedFleet":
        """So many engines of each role, alike but for names and ports.

        Args:
            spec: Of all. Ports that are not 0 are the first engine's, the next engine's follow.
            **counts: By role; see `LOCAL`.
        """
        specs: list[EngineSpec] = []
        for role, count in counts.items():
            core: CoreSettings = replace(spec.core, has_connector=role != LOCAL)
            for number in range(count):
                own = replace(spec, name=f"{role}-{number}", core=core)
                specs.append(_shifted(own, len(specs)))
        return cls(specs)

    def named(self, role: str) -> list[SimulatedEngine]:
        """The engines of a role."""
        return [each for each in self.engines if each.spec.name.startswith(f"{role}-")]

    async def __aenter__(self) -> Self:
        """Start all; each can be reached when this returns."""
        async with contextlib.AsyncExitStack() as stack:
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            stack.callback(context.destroy, linger=0)
            peers = Peers()
            self.engines = [
                SimulatedEngine(spec, peers, context, self._tokenizers[spec.model])
                for spec in self.specs
            ]
            for engine in self.engines:
                stack.push_async_callback(engine.close)
                await engine.start()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop all; ports are free when this returns."""
        await self._stack.aclose()


def _tokenizers(specs: Sequence[EngineSpec]) -> dict[str, Tokenizer]:
    found: dict[str, Tokenizer] = {}
    for spec in specs:
        if spec.model not in found:
            path = spec.tokenizer_path
            found[spec.model] = FolderTokenizer(path) if path else ByteTokenizer()
    return found


def _shifted(spec: EngineSpec, number: int) -> EngineSpec:
    """The n-th engine's ports: of HTTP each the next, of others as many as it has ranks."""
    ranks = number * spec.num_ranks
    ports = spec.ports and replace(
        spec.ports,
        events=spec.ports.events and spec.ports.events + ranks,
        replay=spec.ports.replay and spec.ports.replay + ranks,
    )
    return replace(
        spec,
        port=spec.port and spec.port + number,
        side_channel_port=spec.side_channel_port and spec.side_channel_port + ranks,
        ports=ports,
    )
