"""Where an engine publishes its KV events: one endpoint per data-parallel rank.

A publisher binds, so the router connects. (vLLM connects instead where its endpoint is a tcp
address without a wildcard, `kv_events.py:_is_bind_endpoint` @ 0.32: such a publisher expects a
collector that listens, which the router is not; its stream stays COLD.)
"""

import re
from dataclasses import dataclass

import msgspec

# What stands for "all addresses of this host" in a bound endpoint.
_WILDCARDS = frozenset({"*", "0.0.0.0", "::"})
_TCP = re.compile(r"tcp://(?P<host>[^/\s]+):(?P<port>[0-9]{1,5})")
_LOCAL = re.compile(r"ipc://\S+")
# The most ranks that vLLM deployments have are a few hundred.
MAX_RANKS = 4096


class BadSources(ValueError):
    """An engine or an operator named no endpoint that could be subscribed to."""


@dataclass(frozen=True, slots=True)
class Source:
    """One publisher.

    Attributes:
        rank: Data-parallel rank within the engine.
        endpoint: Where to subscribe.
        replay_endpoint: Where missed batches can be asked for, None for nowhere.
    """

    rank: int
    endpoint: str
    replay_endpoint: str | None = None


class _Config(msgspec.Struct):
    """What the router reads of vLLM's `KVEventsConfig`; its topic tells nobody apart."""

    endpoint: str
    enable_kv_cache_events: bool = True
    publisher: str | None = "zmq"
    replay_endpoint: str | None = None


def read_sources(body: bytes, host: str) -> list[Source]:
    """The answer of `GET /kv_event_sources`: publisher configuration by rank, ports already offset.

    Args:
        body: JSON such as `{"0": {"publisher": "zmq", "endpoint": "tcp://*:5557", ...}}`.
        host: The engine's own, IPv6 without brackets; it takes the place of wildcards.

    Returns:
        Sources by rank; none where the engine publishes nothing.

    Raises:
        BadSources: The answer has another form.
    """
    try:
        configs = msgspec.json.decode(body, type=dict[int, _Config])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadSources(f"no publisher configuration by rank: {error}") from error
    if len(configs) > MAX_RANKS or any(not 0 <= rank < MAX_RANKS for rank in configs):
        raise BadSources(f"ranks must be 0 to {MAX_RANKS - 1}: {sorted(configs)[:4]}...")
    return [
        named_source(rank, config.endpoint, config.replay_endpoint, host)
        for rank, config in sorted(configs.items())
        if config.enable_kv_cache_events and config.publisher == "zmq"
    ]


def named_source(rank: int, endpoint: str, replay_endpoint: str | None, host: str) -> Source:
    """One rank's source, from the endpoints that the engine or the operator names for it.

    Raises:
        BadSources: An endpoint cannot be subscribed to.
    """
    replay = _reachable(replay_endpoint, host) if replay_endpoint else None
    return Source(rank, _reachable(endpoint, host), replay)


def _reachable(endpoint: str, host: str) -> str:
    """The endpoint as it is reached from here."""
    if _LOCAL.fullmatch(endpoint):
        return endpoint
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise BadSources(f"expected tcp://host:port or ipc://path, got {endpoint!r}")
    named = match["host"].removeprefix("[").removesuffix("]")
    port = int(match["port"])
    if not 0 < port < 65536:
        raise BadSources(f"{endpoint} has no port that could be reached")
    reached = host if named in _WILDCARDS else named
    return f"tcp://[{reached}]:{port}" if ":" in reached else f"tcp://{reached}:{port}"
