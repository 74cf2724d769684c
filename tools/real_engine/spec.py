"""What engine to start, as values: its role, its cache, its events, and the command line of them.

Starts nothing and knows no zygote: that is `real_engine.launch`.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

MODEL_NAME = "tiny"
HOST = "127.0.0.1"

OWN_PORTS = range(18_000, 32_000)
"""Below those that Linux gives to connections and publishers (ip_local_port_range): one of these
would sooner or later take a port between its choice and its use."""

ANY_PORT = "tcp://*:0"
"""A publisher binds only to endpoints with a wildcard, and connects to any other (kv_events.py:
_is_bind_endpoint @ 0.32.0). With port 0 it binds to VLLM_HOST_IP alone, at a port of its own."""

EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The model runs in the engine core's own process, named in full because vLLM turns "uni" into "mp"
on a CPU. The "mp" executor's shared-memory queue loses wake-ups and looks again only after 5 s
(shm_broadcast.py:SHM_READER_RECHECK_INTERVAL_MS @ 0.32.0), and spins for 1 s after every message:
on 2 shared cores with load 6 a decode leg of one token took 0.05-50 s with it, 0.02-0.05 s without.
"""

NIXL_THREADS = 1
"""UCX workers of one agent (NIXL connector's default: 4); more only cost start-up time here."""


class Role(Enum):
    """What an engine is for; the value is vLLM's ``kv_role``, none for one that works alone."""

    PREFILL = "kv_producer"
    DECODE = "kv_consumer"
    AGGREGATED = None


@dataclass(frozen=True)
class Ports:
    """Where one engine listens; event sockets take free ports, which `/kv_event_sources` tells.

    Attributes:
        side_channel: NIXL's; data-parallel rank n has the n-th port after it.
    """

    api: int
    side_channel: int

    def all(self, num_ranks: int) -> range:
        """Each single port; `ports_for` has chosen neighbours."""
        return range(self.api, self.side_channel + num_ranks)


@dataclass(frozen=True)
class EngineSpec:
    """One engine to start. ``extra_args`` come last on its command line and so win.

    Attributes:
        has_events: Whether it publishes its cache's events over ZMQ, with replay.
        event_endpoints: Where, and where missed ones are asked for.
        num_ranks: Data-parallel size; above 1, each rank has a cache of its own.
    """

    name: str
    role: Role
    load_failure_policy: str = "fail"
    lease_s: int = 120
    num_blocks: int = 512
    has_events: bool = False
    event_endpoints: tuple[str, str] = (ANY_PORT, ANY_PORT)
    num_ranks: int = 1
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    def arguments(self, model: Path, ports: Ports) -> list[str]:
        """The API server's command line."""
        options = []
        if self.role is not Role.AGGREGATED:
            options += ["--kv-transfer-config", json.dumps(self._transfer_config())]
        if self.has_events:
            options += ["--kv-events-config", json.dumps(self._events_config())]
        if self.num_ranks > 1:
            options += ["--data-parallel-size", str(self.num_ranks)]
        return [
            *("--model", str(model), "--served-model-name", MODEL_NAME),
            *("--host", HOST, "--port", str(ports.api)),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"),
            *("--distributed-executor-backend", EXECUTOR),
            *("--num-gpu-blocks-override", str(self.num_blocks)),
            *("--enable-scale-out", "--enable-prompt-tokens-details"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *options,
            *self.extra_args,
        ]

    def _events_config(self) -> dict[str, Any]:
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.event_endpoints[0],
            "replay_endpoint": self.event_endpoints[1],
            "topic": f"kv@{self.name}@{MODEL_NAME}",
        }

    def _transfer_config(self) -> dict[str, Any]:
        return {
            "kv_connector": "NixlConnector",
            "kv_role": self.role.value,
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": self.load_failure_policy,
            "kv_connector_extra_config": {
                "kv_lease_duration": self.lease_s,
                "num_threads": NIXL_THREADS,
            },
        }


def free_ports(count: int, taken: Container[int] = ()) -> range:
    """Neighbouring ports that were free a moment ago.

    Raises:
        OSError: None were found.
    """
    for _ in range(100):
        first = random.randrange(OWN_PORTS.start, OWN_PORTS.stop - count)
        ports = range(first, first + count)
        if all(port not in taken and _is_free(port) for port in ports):
            return ports
    raise OSError(f"found no {count} neighbouring free ports in {OWN_PORTS}")


def ports_for(spec: EngineSpec, taken: Container[int]) -> Ports:
    """Free ports for one engine, with room for every rank's side channel."""
    api, side_channel, *_ = free_ports(1 + spec.num_ranks, taken)
    return Ports(api, side_channel)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
