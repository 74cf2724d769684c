"""A new replica's start with the index of one that has run for a while."""

import logging

import httpx

from transload_router.app.state import Router
from transload_router.core.index.snapshot import SnapshotError

log = logging.getLogger("transload")

SNAPSHOT_PATH = "/admin/index/snapshot"
# The engines' replays give the same in the end; a start is not worth more waiting than this.
_TIMEOUT_S = 10.0
# Of what a snapshot may take: a block is some 30 bytes of it.
_BYTES_PER_BLOCK = 256


async def load_snapshot(router: Router) -> None:
    """Take another replica's index, if it gives one; without it the start is a cold one."""
    settings = router.settings
    assert settings.index_snapshot_from is not None
    key = settings.admin_api_key
    headers = {"authorization": f"Bearer {key.get_secret_value()}"} if key is not None else {}
    limit = _BYTES_PER_BLOCK * settings.index_max_blocks
    url = settings.index_snapshot_from.rstrip("/") + SNAPSHOT_PATH
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
            data = await _fetch(client, url, headers, limit)
        num_owners = router.index.load(data)
    except (httpx.HTTPError, httpx.InvalidURL, SnapshotError, ValueError) as error:
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
