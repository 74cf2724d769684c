"""What real engines published decodes to blocks whose hashes recompute from their tokens."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.block_hashes import DEFAULT_SEED, HashFunction, as_int, chain, sha256, sha256_cbor
from transload_router.core.kv_events.decode import decode_batch
from transload_router.core.kv_events.events import GPU, Batch, BlockHash, Cleared, Removed, Stored
from transload_router.core.kv_events.messages import (
    Apply,
    Count,
    Live,
    Replayed,
    ReplayEnded,
    StreamState,
    Subscribed,
)
from transload_router.core.kv_events.stream import EventStream
from transload_router.io.events.frames import END, read_frames

VECTORS = Path(__file__).parent / "vectors"


@dataclass(frozen=True)
class Capture:
    """A file, and how its hashes were made."""

    name: str
    digest: HashFunction
    seed: str
    as_published: Callable[[bytes], BlockHash]
    are_keys_tagged: bool
    num_events: int


def same(full: bytes) -> BlockHash:
    return full


CAPTURES = (
    Capture("vllm-0.16.0/kv-events-cbor-int-seed0", sha256_cbor, "0", as_int, False, 111),
    Capture("vllm-0.28.0/kv-events-sha256-int-seed0", sha256, "0", as_int, False, 113),
    Capture("vllm-0.32.0/kv-events-cbor-bytes", sha256_cbor, DEFAULT_SEED, same, True, 73),
    Capture("vllm-0.32.0/kv-events-sha256-int", sha256, DEFAULT_SEED, as_int, True, 73),
    Capture("vllm-0.32.0/kv-events-dp2", sha256, DEFAULT_SEED, as_int, True, 6),
)
every_capture = pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.name)


@functools.cache
def messages(name: str) -> tuple[tuple[str, int | None, int, bytes], ...]:
    """Source, port, sequence and payload of every message."""
    found = []
    for line in (VECTORS / f"{name}.jsonl").read_text().splitlines():
        message = json.loads(line)
        if "frames" in message:
            seq, payload = read_frames([bytes.fromhex(frame) for frame in message["frames"]])
            assert seq is not None
            found.append((message["src"], message.get("port"), seq, payload))
    return tuple(found)


def batches(name: str) -> list[Batch]:
    return [decode_batch(payload) for _, _, seq, payload in messages(name) if seq != END]


def salt_of(name: str) -> str | None:
    """The 0.16 events do not carry the salt that their hashes have."""
    return "tenant-a" if name.startswith("vllm-0.16") else None


def recompute(capture: Capture, event: Stored, parent: bytes, salt: str | None) -> list[bytes]:
    """Full hashes; `salt` is the first block's where the event has no extra keys at all."""
    bare: list[list[str] | None] = event.extra_keys or [None] * len(event.block_hashes)
    if salt is not None:
        bare = [[salt], *bare[1:]]
    keys: list[tuple[object, ...] | None] = []
    for block in bare:
        if block is None:
            keys.append(None)
        elif capture.are_keys_tagged:
            keys.append(tuple(("cache_salt", key) for key in block))
        else:
            keys.append(tuple(block))
    return chain(capture.digest, parent, event.token_ids, event.block_size, keys)


@every_capture
def test_every_hash_recomputes_from_its_tokens(capture: Capture) -> None:
    root = capture.digest(capture.seed)
    full: dict[BlockHash, bytes] = {}
    num_salted = num_children = 0
    events = [event for batch in batches(capture.name) for event in batch.events]
    # Replays, which hold the parents, come last in the files.
    for event in events * 2:
        if not isinstance(event, Stored):
            continue
        parent = root
        if event.parent_block_hash is not None:
            if event.parent_block_hash not in full:
                continue
            parent = full[event.parent_block_hash]
            num_children += 1
        assert len(event.token_ids) == len(event.block_hashes) * event.block_size
        hashes = recompute(capture, event, parent, None)
        if [capture.as_published(one) for one in hashes] != event.block_hashes:
            hashes = recompute(capture, event, parent, salt_of(capture.name))
            num_salted += 1
        elif event.extra_keys is not None and any(event.extra_keys):
            num_salted += 1
        assert [capture.as_published(one) for one in hashes] == event.block_hashes
        full.update(zip(event.block_hashes, hashes, strict=True))
    stored = {h for event in events if isinstance(event, Stored) for h in event.block_hashes}
    assert set(full) == stored
    if "dp2" not in capture.name:
        assert num_salted > 0
        assert num_children > 0


@every_capture
def test_no_event_of_a_real_engine_is_skipped(capture: Capture) -> None:
    found = batches(capture.name)
    events = [event for batch in found for event in batch.events]
    # An engine's removals are of one block each; neighbours are read as one.
    num_blocks = sum(len(event.block_hashes) - 1 for event in events if isinstance(event, Removed))
    assert len(events) + num_blocks == capture.num_events
    assert sum(batch.num_skipped for batch in found) == 0
    assert {type(event) for batch in found for event in batch.events} >= {Stored}
    for batch in found:
        for event in batch.events:
            if isinstance(event, Stored | Removed):
                assert (event.medium, event.group_idx) == (GPU, 0)
    if "dp2" not in capture.name:
        assert any(isinstance(event, Cleared) for batch in found for event in batch.events)


def test_ranks_are_told_apart_by_port_not_by_topic() -> None:
    by_port: dict[int | None, set[int | None]] = {}
    for _, port, _, payload in messages("vllm-0.32.0/kv-events-dp2"):
        by_port.setdefault(port, set()).add(decode_batch(payload).rank)
    assert by_port == {5662: {0}, 5663: {1}}


@pytest.mark.parametrize("capture", CAPTURES[:4], ids=lambda capture: capture.name)
def test_a_late_joiner_reaches_the_same_by_replay(capture: Capture) -> None:
    """Live batches are missed up to the last one; the replay makes the stream exact."""
    live = [(seq, p) for src, _, seq, p in messages(capture.name) if src == "pub"]
    stream = EventStream()
    commands = [*stream.handle(Subscribed()), *stream.handle(Live(*live[-1]))]
    for src, _, seq, payload in messages(capture.name):
        if src == "replay":
            commands += stream.handle(ReplayEnded() if seq == END else Replayed(seq, payload))
    assert stream.state is StreamState.EXACT
    assert not [command for command in commands if isinstance(command, Count)]
    applied = [command.batch for command in commands if isinstance(command, Apply)]
    assert len(applied) == live[-1][0] + 1
    assert applied[-len(live) :] == [decode_batch(payload) for _, payload in live]
