"""A new replica's start with the index of one that has run for a while.

Both name engines by their place in the settings, so a snapshot says which engines those are: one
of other engines is refused, or its blocks would be looked for where they never were.
"""

import asyncio
import logging

import httpx
import msgspec

from transload_router.app.state import Router

log = logging.getLogger("transload")

SNAPSHOT_PATH = "/admin/index/snapshot"
# The engines' replays give the same in the end; a start is not worth more waiting than this,
# however slowly the bytes come.
_TIMEOUT_S = 10.0
# Of what a snapshot may take: a block is some 30 bytes of it.
_BYTES_PER_BLOCK = 256


class Snapshot(msgspec.Struct, frozen=True):
    """What replicas give each other.

    Attributes:
        engines: Address by id.
        index: As `Index.export` writes it.
    """

    engines: dict[str, str]
    index: bytes


def export_snapshot(router: Router) -> bytes:
    """This replica's index, for another."""
    return msgspec.msgpack.encode(Snapshot(_addresses(router), router.index.export()))


def import_snapshot(router: Router, data: bytes) -> int:
    """Take in another replica's index.

    Returns:
        Number of caches in it.

    Raises:
        ValueError: It is no snapshot, or one of other engines; nothing was taken in.
    """
    try:
        snapshot = msgspec.msgpack.decode(data, type=Snapshot)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no snapshot: {error}") from None
    here = _addresses(router)
    others = [name for name, url in snapshot.engines.items() if here.get(name, url) != url]
    if others:
        name = others[0]
        raise ValueError(f"{name} is {snapshot.engines[name]} there, and {here[name]} here")
    return router.index.load(snapshot.index)


def _addresses(router: Router) -> dict[str, str]:
    return {name: member.engine.address.url() for name, member in router.fleet.members.items()}


async def load_snapshot(router: Router) -> None:
    """Ask another replica for its index; without it the start is a cold one."""
    settings = router.settings
    assert settings.index_snapshot_from is not None
    key = settings.admin_api_key
    headers = {"authorization": f"Bearer {key.get_secret_value()}"} if key is not None else {}
    limit = _BYTES_PER_BLOCK * settings.index_max_blocks
    url = settings.index_snapshot_from + SNAPSHOT_PATH
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client,
        ):
            data = await _fetch(client, url, headers, limit)
        num_owners = import_snapshot(router, data)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
        log.warning("no snapshot of the index, starting cold: %s: %s", type(error).__name__, error)
        router.metrics.snapshots.add("failed")
        return
    router.metrics.snapshots.add("loaded")
    log.info("loaded a snapshot of the index: %d caches", num_owners)


async def _fetch(
    client: httpx.AsyncClient, url: str, headers: dict[str, str], limit_bytes: int
) -> bytes:
    """The snapshot's bytes.

    Raises:
        httpx.HTTPError: No good answer.
        ValueError: It is longer than the index could be.
    """
    chunks, num_bytes = [], 0
    async with client.stream("GET", url, headers=headers) as answer:
        answer.raise_for_status()
        async for chunk in answer.aiter_bytes():
            num_bytes += len(chunk)
            if num_bytes > limit_bytes:
                raise ValueError(f"the snapshot has more than {limit_bytes} bytes")
            chunks.append(chunk)
    return b"".join(chunks)
