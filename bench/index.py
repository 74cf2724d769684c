"""What does the index cost? Events taken in, prompts matched, memory per block, predictions.

Everything is measured in this process, in CPU time (`time.process_time`), so that other work on
the machine counts little; medians over the repeats, with the lowest and the highest.

What is measured:
    - *Applied*: blocks per CPU second of `BlockStored` events with 32 blocks of 16 tokens, all
      new; *removed*: `BlockRemoved` of one hash each, as engines send them; *decoded and applied*:
      the same blocks from the bytes of batches with eight events.
    - *Match*: one prompt of 8k or 128k tokens against 8, 64 and 256 engines, keys known. Engines
      hold from nothing to all of it, evenly spread (*spread*: every length once), or all of it
      (*all hold it*: the longest walk with the widest masks). *Keys*: computing them, once a
      prompt.
    - *Memory*: resident bytes of the process per block after a million blocks of one owner; and
      per holder of shared blocks.
    - *Predict*: one prompt of 8k tokens claimed, and its share of expiring.
    - *Worst apply*: the longest that one event of 32 new blocks keeps the event loop, while an
      index fills up. Engines of 50,000 blocks are the usual; one engine with all of them shows what
      its own dict of names costs, which is in one part. *Worst predict*: the same of a claim of 512
      keys, until as many are claimed as may be. The collector is off here, too.
"""

import argparse
import datetime
import gc
import pathlib
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from transload_router.core.index.index import Index
from transload_router.core.index.keys import Identity
from transload_router.core.index.predictions import MAX_CLAIMED_KEYS
from transload_router.core.kv_events.decode import decode_batch
from transload_router.core.kv_events.events import BlockHash, Event, Removed, Stored
from transload_router.core.prompt import Prompt, pack_tokens

BENCH = pathlib.Path(__file__).parent
BLOCK_SIZE = 16
BLOCKS_PER_EVENT = 32
MODEL = "m"


class Figure(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        target: What it should reach, "" where there is none.
    """

    name: str
    unit: str
    median: float
    lowest: float
    highest: float
    target: str = ""


class Results(msgspec.Struct, frozen=True):
    """All rows, and where they were measured."""

    date: str
    machine: str
    python: str
    repeats: int
    figures: list[Figure]


def figure(name: str, unit: str, values: list[float], target: str = "") -> Figure:
    """A row of repeated measurements."""
    return Figure(name, unit, statistics.median(values), min(values), max(values), target)


def cpu_s(work: Callable[..., object], *arguments: Any) -> float:
    """CPU seconds of one run, with the collector out of the way."""
    gc.collect()
    gc.disable()
    start = time.process_time()
    work(*arguments)
    spent = time.process_time() - start
    gc.enable()
    return spent


def new_blocks(num_events: int, seed: int) -> list[Stored]:
    """Announcements of distinct prompts of 512 tokens."""
    chance = random.Random(seed)
    events = []
    for _ in range(num_events):
        names: list[BlockHash] = [chance.getrandbits(64) for _ in range(BLOCKS_PER_EVENT)]
        tokens = [chance.randrange(150_000) for _ in range(BLOCKS_PER_EVENT * BLOCK_SIZE)]
        events.append(Stored(names, None, tokens, BLOCK_SIZE, extra_keys=[None] * BLOCKS_PER_EVENT))
    return events


def payloads(events: list[Stored]) -> list[bytes]:
    """Batches as vLLM 0.32 writes them."""
    encode = msgspec.msgpack.Encoder().encode
    batches = []
    for at in range(0, len(events), 8):
        maps = [
            {
                "type": "BlockStored",
                "block_hashes": event.block_hashes,
                "parent_block_hash": None,
                "token_ids": event.token_ids,
                "block_size": event.block_size,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": event.extra_keys,
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
            for event in events[at : at + 8]
        ]
        batches.append(encode([0.0, maps, 0]))
    return batches


def apply_all(index: Index, events: list[Event]) -> None:
    """Bring events of one engine into the index."""
    for event in events:
        index.apply(("e0", 0), 0, event)


def apply_bytes(index: Index, batches: list[bytes]) -> None:
    """The same from what the engine published."""
    for payload in batches:
        apply_all(index, decode_batch(payload).events)


def ask(index: Index, prompts: list[Prompt]) -> None:
    """Match each prompt once."""
    for prompt in prompts:
        index.match(prompt)


def predict(index: Index, prompts: list[Prompt]) -> None:
    """Claim each prompt at another engine."""
    for number, prompt in enumerate(prompts):
        index.predict((f"e{number % 64}", 0), prompt, 0.0, 5.0)


def intake(num_events: int, repeats: int) -> Iterator[Figure]:
    """Events per second."""
    num_blocks = num_events * BLOCKS_PER_EVENT
    applied, removed, decoded = [], [], []
    for repeat in range(repeats):
        events = new_blocks(num_events, repeat)
        batches = payloads(events)
        removals: list[Event] = [Removed([name]) for one in events for name in one.block_hashes]
        index = fleet(1)
        applied.append(num_blocks / cpu_s(apply_all, index, [*events]))
        removed.append(num_blocks / cpu_s(apply_all, index, removals))
        decoded.append(num_blocks / cpu_s(apply_bytes, fleet(1), batches))
    yield figure("applied", "blocks/s", applied, ">= 300000")
    yield figure("removed", "blocks/s", removed)
    yield figure("decoded and applied", "blocks/s", decoded, ">= 200000")


def fleet(num_engines: int) -> Index:
    """An index of engines that hold nothing."""
    index = Index(max_blocks=50_000_000)
    for number in range(num_engines):
        index.add_owner((f"e{number}", 0), MODEL, 0)
    return index


def held_by(num_engines: int, tokens: list[int], *, is_spread: bool) -> Index:
    """An index of engines that hold parts of one prompt, or all of it."""
    index = fleet(num_engines)
    num_blocks = len(tokens) // BLOCK_SIZE
    for number in range(num_engines):
        count = num_blocks * number // (num_engines - 1) if is_spread else num_blocks
        names: list[BlockHash] = [number * 1_000_000 + block for block in range(count)]
        if names:
            event = Stored(names, None, tokens[: count * BLOCK_SIZE], BLOCK_SIZE)
            index.apply((f"e{number}", 0), 0, event)
    return index


def new_keys(packed: bytes) -> None:
    """What a prompt costs before its first match."""
    Prompt(Identity(MODEL), packed).keys(BLOCK_SIZE)


def matches(repeats: int) -> Iterator[Figure]:
    """Time of a match by prompt and fleet."""
    chance = random.Random(1)
    for num_tokens in (8192, 131_072):
        tokens = [chance.randrange(150_000) for _ in range(num_tokens)]
        packed = pack_tokens([*tokens, 0])
        size = f"{num_tokens // 1024}k tokens"
        keys = [1e6 * cpu_s(new_keys, packed) for _ in range(repeats)]
        yield figure(f"keys, {size}", "us", keys)
        prompt = Prompt(Identity(MODEL), packed)
        prompt.keys(BLOCK_SIZE)
        rounds = 100 if num_tokens < 10_000 else 10
        for num_engines in (8, 64, 256):
            for is_spread in (True, False):
                index = held_by(num_engines, tokens, is_spread=is_spread)
                assert index.match(prompt)[f"e{num_engines - 1}", 0].num_tokens == num_tokens
                spent = [
                    1e6 * cpu_s(ask, index, [prompt] * rounds) / rounds for _ in range(repeats)
                ]
                held = "spread" if is_spread else "all hold it"
                name = f"match, {size}, {num_engines} engines, {held}"
                is_aim = (num_tokens, num_engines) == (8192, 64)
                yield figure(name, "us", spent, "<= 150" if is_aim else "")


def resident_bytes() -> int:
    """Of this process."""
    gc.collect()
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory(num_events: int) -> Iterator[Figure]:
    """Bytes that the process grows by, per block."""
    index = fleet(4)
    chance = random.Random(7)
    before = resident_bytes()
    num_blocks = num_events * BLOCKS_PER_EVENT
    tokens_of = []
    for owner in range(4):
        at_start = resident_bytes()
        for number in range(num_events):
            if owner == 0:
                seed = chance.getrandbits(32)
                tokens_of.append(seed)
            rng = random.Random(tokens_of[number])
            tokens = [rng.randrange(150_000) for _ in range(BLOCKS_PER_EVENT * BLOCK_SIZE)]
            names: list[BlockHash] = [chance.getrandbits(64) for _ in range(BLOCKS_PER_EVENT)]
            index.apply((f"e{owner}", 0), 0, Stored(names, None, tokens, BLOCK_SIZE))
        if owner == 0:
            alone = (resident_bytes() - before) / num_blocks
            yield figure("memory, blocks of one owner", "bytes/block", [alone])
        else:
            shared = (resident_bytes() - at_start) / num_blocks
            yield figure(f"memory, the same for owner {owner + 1}", "bytes/block", [shared])


def predictions(repeats: int) -> Iterator[Figure]:
    """Time of claims: made, met by a match, ended."""
    chance = random.Random(3)
    prompts = []
    for _ in range(50):
        tokens = [chance.randrange(150_000) for _ in range(8192)]
        prompts.append(Prompt(Identity(MODEL), pack_tokens(tokens)))
        prompts[-1].keys(BLOCK_SIZE)
    made, asked, ended = [], [], []
    for _ in range(repeats):
        index = fleet(64)
        made.append(1e6 * cpu_s(predict, index, prompts) / len(prompts))
        asked.append(1e6 * cpu_s(ask, index, prompts) / len(prompts))
        ended.append(1e6 * cpu_s(index.expire, 6.0) / len(prompts))
    yield figure("predict, 8k tokens", "us", made)
    yield figure("match of it, 50 others claimed, 64 engines", "us", asked)
    yield figure("expire of it", "us", ended)


def clears(repeats: int) -> Iterator[Figure]:
    """Time of giving an owner's blocks up, and of sweeping them."""
    spent, slices = [], []
    for repeat in range(repeats):
        index = fleet(1)
        apply_all(index, [*new_blocks(2000, repeat)])
        spent.append(1e6 * cpu_s(index.clear, ("e0", 0)))
        slices.append(1e3 * cpu_s(index.expire, 0.0))
    yield figure("clear of 64,000 blocks", "us", spent)
    yield figure("a slice of sweeping (2048 blocks)", "ms", slices)


def filling(num_engines: int, num_blocks: int) -> Iterator[float]:
    """CPU seconds of each event that brings new blocks to one engine after the other."""
    index = fleet(num_engines)
    chance = random.Random(9)
    tokens = [chance.randrange(150_000) for _ in range(BLOCKS_PER_EVENT * BLOCK_SIZE)]
    clock = time.process_time
    for number in range(num_blocks // BLOCKS_PER_EVENT):
        names: list[BlockHash] = [chance.getrandbits(64) for _ in range(BLOCKS_PER_EVENT)]
        # The first token makes all keys after it others.
        event = Stored(names, None, [number, *tokens[1:]], BLOCK_SIZE)
        dest_key = (f"e{number % num_engines}", 0)
        start = clock()
        index.apply(dest_key, 0, event)
        yield clock() - start


def claiming() -> Iterator[float]:
    """CPU seconds of each claim, until there is no room for more."""
    index = fleet(64)
    chance = random.Random(10)
    tokens = [chance.randrange(150_000) for _ in range(8192)]
    clock = time.process_time
    for number in range(MAX_CLAIMED_KEYS * BLOCK_SIZE // len(tokens)):
        prompt = Prompt(Identity(MODEL), pack_tokens([number, *tokens[1:]]))
        prompt.keys(BLOCK_SIZE)
        start = clock()
        index.predict((f"e{number % 64}", 0), prompt, 0.0, 5.0)
        yield clock() - start


def worst_ms(spent: Iterator[float]) -> float:
    """Milliseconds of the longest, with the collector out of the way."""
    gc.collect()
    gc.disable()
    worst = max(spent)
    gc.enable()
    return 1e3 * worst


def stalls(repeats: int) -> Iterator[Figure]:
    """The longest that the event loop waits for one call."""
    for num_engines, num_blocks in ((20, 1_000_000), (80, 4_000_000), (1, 1_000_000)):
        worst = [worst_ms(filling(num_engines, num_blocks)) for _ in range(repeats)]
        engines = f"{num_engines} engines" if num_engines > 1 else "one engine"
        yield figure(f"worst apply, {num_blocks // 1_000_000}M blocks, {engines}", "ms", worst)
    yield figure("worst predict, 64 engines", "ms", [worst_ms(claiming()) for _ in range(repeats)])


def row(one: Figure) -> str:
    """A line of the table."""
    spread = f"{one.lowest:,.1f}-{one.highest:,.1f}"
    return f"{one.name:<50} {one.median:>13,.1f} {spread:>25} {one.unit:<12} {one.target}".rstrip()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement")
    parser.add_argument("--events", type=int, default=4000, help="announcements of 32 blocks")
    parser.add_argument("--out", type=pathlib.Path, default=BENCH / "results/index.json")
    arguments = parser.parse_args()
    figures = []
    for part in (
        intake(arguments.events, arguments.repeats),
        matches(arguments.repeats),
        memory(8 * arguments.events),
        predictions(arguments.repeats),
        clears(arguments.repeats),
        stalls(arguments.repeats),
    ):
        for one in part:
            print(row(one), flush=True)
            figures.append(one)
    results = Results(
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        platform.processor() or platform.machine(),
        platform.python_version(),
        arguments.repeats,
        figures,
    )
    arguments.out.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


if __name__ == "__main__":
    main()
