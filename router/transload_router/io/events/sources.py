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
_LOCAL = re.compile(r"(?:ipc|inproc)://\S+")
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
        topic: As published; the same on all ranks, so it tells nobody apart.
    """

    rank: int
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


class _Config(msgspec.Struct):
    """What the router reads of vLLM's `KVEventsConfig`."""

    endpoint: str
    enable_kv_cache_events: bool = True
    publisher: str | None = "zmq"
    replay_endpoint: str | None = None
    topic: str = ""


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
        Source(
            rank,
            _reachable(config.endpoint, host, 0),
            _reachable(config.replay_endpoint, host, 0) if config.replay_endpoint else None,
            config.topic,
        )
        for rank, config in sorted(configs.items())
        if config.enable_kv_cache_events and config.publisher == "zmq"
    ]


def rank_sources(
    endpoint: str, replay_endpoint: str | None, topic: str, num_ranks: int, host: str
) -> list[Source]:
    """Sources of an engine that does not tell them, from its `--kv-events-config`.

    Rank r listens on the port configured plus r (`kv_events.py:offset_endpoint_port` @ 0.32).

    Raises:
        BadSources: An endpoint cannot be subscribed to.
    """
    return [
        Source(
            rank,
            _reachable(endpoint, host, rank),
            _reachable(replay_endpoint, host, rank) if replay_endpoint else None,
            topic,
        )
        for rank in range(num_ranks)
    ]


def _reachable(endpoint: str, host: str, offset: int) -> str:
    """The endpoint as it is reached from here."""
    if _LOCAL.fullmatch(endpoint):
        if offset:
            raise BadSources(f"{endpoint} has no port, so ranks above 0 have no endpoint")
        return endpoint
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise BadSources(f"expected tcp://host:port, ipc:// or inproc://, got {endpoint!r}")
    named = match["host"].removeprefix("[").removesuffix("]")
    port = int(match["port"]) + offset
    if not 0 < port < 65536:
        raise BadSources(f"{endpoint} has no port that could be reached (rank {offset})")
    reached = host if named in _WILDCARDS else named
    return f"tcp://[{reached}]:{port}" if ":" in reached else f"tcp://{reached}:{port}"
