"""What does a plan cost? CPU time of compiling a pair, planning and lowering, and how it grows.

    python bench/plan.py [--repeats N] [--json FILE]

Nothing is copied. Models have 8 heads of 128 elements in bf16, 100 layers and blocks of 16 tokens
unless told otherwise. Each figure is the median of the repeats, the least of them beside it.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from transload_abi.plan import Blocks, Pair, Plan, num_runs
from transload_abi.plan.lower import kernel_table, nixl_descriptors, nixl_strided
from transload_abi.types import (
    VERSION,
    Descriptor,
    Group,
    Model,
    Owner,
    Place,
    Pool,
    Role,
    Rope,
)

RESULTS = Path(__file__).parent / "results"
TOKENS = 16
HEADS = 8
SIZE = 128
BASES = {"kv": (1 << 40, 0)}


def attention(
    layout: str, layers: int = 100, blocks: int = 10_000, heads: tuple[int, int] = (0, HEADS)
) -> Descriptor:
    """bf16 keys and values, packed in cells as `layout` says; `cpu` has K transposed."""
    count = heads[1] - heads[0]
    cell = 4 * SIZE
    extent = {"L": layers, "B": blocks, "H": count, "N": TOKENS}
    stride, step = {}, cell
    for axis in reversed("LBHN" if layout == "cpu" else layout[:-1]):
        stride[axis] = step
        step *= extent[axis]
    outer = ("H", 1, count, 8 * stride["H"])
    row = ("N", 1, TOKENS, 8 * stride["N"])
    places = {
        "k": ((outer, row, ("D", 1, SIZE, 16)), 0),
        "v": ((outer, row, ("D", 1, SIZE, 16)), 16 * SIZE),
    }
    if layout == "cpu":
        places = {
            "k": ((outer, ("N", 1, TOKENS, 16), ("D", 1, SIZE, 16 * TOKENS)), 0),
            "v": ((outer, ("N", 1, TOKENS, 16 * SIZE), ("D", 1, SIZE, 16)), 16 * SIZE * TOKENS),
        }
    roles = tuple(
        Role(name, "bf16", 16, {"H": count, "N": TOKENS, "D": SIZE}, terms, base)
        for name, (terms, base) in places.items()
    )
    return _described(layers, blocks, roles, stride["B"], stride["L"], step, (*heads, HEADS))


def latents(layers: int = 100, blocks: int = 400_000) -> Descriptor:
    """bf16 latents of 1152 bytes a token, blocks outermost."""
    row = 1152 * 8
    roles = tuple(
        Role(
            name, "bf16", 16, {"N": TOKENS, "D": n}, (("N", 1, TOKENS, row), ("D", 1, n, 16)), base
        )
        for name, n, base in (("latent", 512, 0), ("rope", 64, 8192))
    )
    page = TOKENS * 1152
    size = layers * page
    return _described(layers, blocks, roles, size, page, size * blocks, (0, 1, 1))


def buffers(layers: int = 100, blocks: int = 10_000) -> Descriptor:
    """A buffer of keys and one of values for each layer, as SGLang has them."""
    page = TOKENS * HEADS * SIZE * 2
    terms = (
        ("H", 1, HEADS, SIZE * 16),
        ("N", 1, TOKENS, HEADS * SIZE * 16),
        ("D", 1, SIZE, 16),
    )
    shape = {"H": HEADS, "N": TOKENS, "D": SIZE}
    names = [[f"{side}{layer}" for layer in range(layers)] for side in "kv"]
    pools = tuple(
        Pool(name, "device", page * blocks, blocks, 256, page) for side in names for name in side
    )
    places = tuple(Place(tuple(side), page, page_bytes=page) for side in names)
    roles = tuple(Role(name, "bf16", 16, shape, terms, 0, at) for at, name in enumerate("kv"))
    group = Group(
        "attention",
        "full",
        tuple(range(layers)),
        TOKENS,
        places,
        roles,
        owner=Owner((0, HEADS, HEADS)),
    )
    return Descriptor(VERSION, _model(layers), pools, (group,))


def _described(
    layers: int,
    blocks: int,
    roles: tuple[Role, ...],
    block_stride: int,
    layer_stride: int,
    size: int,
    heads: tuple[int, int, int],
) -> Descriptor:
    place = Place(("kv",), block_stride, layer_stride)
    owns = block_stride if size == block_stride * blocks else 0
    group = Group(
        "attention",
        "full" if heads[2] > 1 else "mla",
        tuple(range(layers)),
        TOKENS,
        (place,),
        roles,
        owner=Owner(heads),
    )
    pool = Pool("kv", "device", size, blocks, 256, owns)
    return Descriptor(VERSION, _model(layers), (pool,), (group,))


def _model(layers: int) -> Model:
    return Model("bench", layers, Rope("applied"), weights="sha256:" + "0" * 64)


class Timer:
    """Takes medians of process CPU time, prints them, and keeps them."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.figures: dict[str, dict[str, float]] = {}

    def take(self, name: str, work: Callable[[], object], note: str = "") -> None:
        """Time one piece of work by itself, several times."""
        work()
        spent = []
        for _ in range(self.repeats):
            # The clock has steps: a sample is as many calls as take 2 ms.
            calls, begin = 0, time.process_time_ns()
            while calls == 0 or time.process_time_ns() - begin < 2_000_000:
                work()
                calls += 1
            spent.append((time.process_time_ns() - begin) / calls / 1000)
        median, least = statistics.median(spent), min(spent)
        self.figures[name] = {"median_us": round(median, 1), "least_us": round(least, 1)}
        print(f"{name:<58} {median:>11.1f} {least:>11.1f}  {note}")

    def title(self, text: str) -> None:
        """Begin a table."""
        print(f"\n{text:<58} {'median us':>11} {'least us':>11}")


def scattered(count: int, blocks: int) -> list[int]:
    """Different blocks of a pool in no order."""
    return random.Random(count).sample(range(1, blocks), count)


def request(count: int, blocks: int, *, is_scattered: bool) -> Blocks:
    """A request of `count` full blocks."""
    ids = list(range(1, 1 + count))
    both = (
        (scattered(count, blocks), scattered(count, blocks)[::-1]) if is_scattered else (ids, ids)
    )
    return Blocks({0: both[0]}, {0: both[1]}, count * TOKENS)


PAIRS: dict[str, Callable[[int], tuple[Descriptor, Descriptor]]] = {
    "LBNHC -> BLHNC": lambda layers: (attention("LBNHC", layers), attention("BLHNC", layers)),
    "LBNHC -> CPU (K transposed)": lambda layers: (
        attention("LBNHC", layers),
        attention("cpu", layers),
    ),
    "LBNHC TP 1 -> 4": lambda layers: (
        attention("LBNHC", layers),
        attention("LBNHC", layers, heads=(2, 4)),
    ),
    "MLA, blocks outermost": lambda layers: (latents(layers), latents(layers)),
    "buffers -> LBNHC": lambda layers: (buffers(layers), attention("LBNHC", layers)),
}


def measure(timer: Timer) -> None:
    """All tables."""
    timer.title("compile a pair, 100 layers")
    for name, make in PAIRS.items():
        src, dst = make(100)
        templates = len(Pair.compile(src, dst).templates)
        timer.take(f"compile {name}", partial(Pair.compile, src, dst), f"{templates} templates")
    timer.title("plan 8,192 tokens: 512 blocks")
    for name, make in PAIRS.items():
        pair = Pair.compile(*make(100))
        for word in ("consecutive", "scattered"):
            blocks = request(512, 10_000, is_scattered=word == "scattered")
            timer.take(f"plan {name}, {word}", partial(pair.plan, blocks), _runs(pair.plan(blocks)))
    timer.title("lower that plan")
    _measure_lowering(timer)
    timer.title("growth: LBNHC -> BLHNC")
    _measure_growth(timer)


def _runs(plan: Plan) -> str:
    return f"{num_runs(plan)} runs"


def _measure_lowering(timer: Timer) -> None:
    for name in ("LBNHC -> BLHNC", "MLA, blocks outermost"):
        pair = Pair.compile(*PAIRS[name](100))
        for word in ("consecutive", "scattered"):
            plan = pair.plan(request(512, 10_000, is_scattered=word == "scattered"))
            lengths = len(nixl_descriptors(plan, BASES, BASES)[0])
            timer.take(f"count runs {name}, {word}", partial(num_runs, plan))
            timer.take(
                f"NIXL rows {name}, {word}",
                partial(nixl_descriptors, plan, BASES, BASES),
                f"{lengths} rows",
            )
            timer.take(
                f"NIXL strided rows {name}, {word}",
                partial(nixl_strided, plan, BASES, BASES),
                f"{len(nixl_strided(plan, BASES, BASES)[0])} rows",
            )
            timer.take(
                f"kernel table {name}, {word}",
                partial(kernel_table, plan),
                f"{len(kernel_table(plan).rows)} rows",
            )


def _measure_growth(timer: Timer) -> None:
    sides = attention("LBNHC", 100, 20_000), attention("BLHNC", 100, 20_000)
    pair = Pair.compile(*sides)
    for count in (10, 100, 1_000, 10_000):
        blocks = request(count, 20_000, is_scattered=True)
        timer.take(f"plan {count} scattered blocks", partial(pair.plan, blocks))
    for size in (1_000, 10_000, 400_000):
        one = Pair.compile(attention("LBNHC", 100, size), attention("BLHNC", 100, size))
        blocks = request(512, 1_000, is_scattered=True)
        timer.take(f"plan 512 blocks of a pool of {size}", partial(one.plan, blocks))
    for layers in (10, 100):
        one = Pair.compile(attention("LBNHC", layers), attention("BLHNC", layers))
        blocks = request(512, 1_000, is_scattered=True)
        timer.take(f"plan 512 blocks of {layers} layers", partial(one.plan, blocks))


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, default=RESULTS / "plan.json")
    arguments = parser.parse_args()
    timer = Timer(arguments.repeats)
    measure(timer)
    arguments.json.write_text(json.dumps(timer.figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
