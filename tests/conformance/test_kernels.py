"""One suite for every implementation of the kernels: bytes, numbers, guards, plans.

`reference` is the specification: calls are compared with what it does. It is itself held to plans,
whose effect the descriptor's oracle knows from the descriptors alone, and by its own unit tests.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from support import plan_calls
from support.abi_placements import PLACEMENTS, Shape
from support.kernel_buffers import sparse
from support.kernel_cases import MOVES, Case, Outcome, assert_same, run
from support.kernel_numbers import NUMBERS
from transload_abi import oracle, vectors
from transload_abi.plan import Blocks, Pair, Plan
from transload_kernels import operations
from transload_kernels.formats import ELEMENT_BITS, ElementType, Format

COMPARED = ("torch", "cpu")
"""Those that run in this process; Triton's interpreter is started by a test of its own."""

TESTS = Path(__file__).parents[1]

FAMILIES = {family.__name__: family for family in (*MOVES, *NUMBERS)}


@cache
def specified(family: str) -> list[tuple[Case, Outcome]]:
    """The calls of a family, and what the reference does."""
    return [(case, run(case, "reference")) for case in FAMILIES[family]()]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", COMPARED)
def test_calls_do_what_the_reference_does(name: str, family: str) -> None:
    for case, expected in specified(family):
        assert_same(case, run(case, name), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_leaves_guards_and_sources_alone(family: str) -> None:
    for case, outcome in specified(family):
        for before, after in zip(case.dst, outcome.dst, strict=True):
            end = before.start + before.num_bytes
            assert torch.equal(before.memory[: before.start], after[: before.start]), case.name
            assert torch.equal(before.memory[end:], after[end:]), case.name
        for before, after in zip(case.src, outcome.src, strict=True):
            assert torch.equal(before.memory, after), case.name


@pytest.mark.timeout(300)
def test_tritons_interpreter_does_what_the_reference_does() -> None:
    """Of the calls those that are light; in a process of its own, as its mode is the process's."""
    pytest.importorskip("triton", reason="Triton is not installed: its kernels were not run")
    path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-m", "support.kernel_interpreter"],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    made = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert made.keys() == FAMILIES.keys()
    assert not [name for name, calls in made.items() if calls.startswith(" 0 ")]


RECORDED = json.loads((TESTS / "vectors" / "numbers.json").read_bytes())
"""Patterns and values of small floats as torch has them."""


@pytest.mark.parametrize("of", RECORDED["encode"])
@pytest.mark.parametrize("name", ["reference", *COMPARED])
def test_small_floats_are_the_recorded_ones(name: str, of: ElementType) -> None:
    dtype = np.dtype("<u1" if ELEMENT_BITS[of] == 8 else "<u2")
    patterns = np.arange(0, 1 << ELEMENT_BITS[of], RECORDED["step"].get(of, 1)).astype(dtype)
    values = _converted(name, patterns, Format(of), Format("f32")).view("<f4")
    recorded = ["7fc00000" if value == "nan" else value for value in RECORDED["decode"][of]]
    np.testing.assert_array_equal(values, _binary32(recorded))
    assert np.isfinite(values).sum() < len(values)
    written, codes = zip(*RECORDED["encode"][of], strict=True)
    came = _converted(name, _binary32(written), Format("f32"), Format(of)).view(dtype)
    assert came.tolist() == list(codes)


def _binary32(numbers: Iterable[str]) -> np.ndarray:
    big: np.ndarray = np.frombuffer(bytes.fromhex("".join(numbers)), ">f4")
    return big.astype("<f4")


def _converted(name: str, elements: np.ndarray, src: Format, dst: Format) -> np.ndarray:
    """The bytes of one row in another format."""
    raw = torch.from_numpy(elements.view(np.uint8).copy())
    made = torch.zeros(len(elements) * ELEMENT_BITS[dst.element] // 8, dtype=torch.uint8)
    at = torch.tensor([0])
    operations.convert_rows(made, raw, at, at, len(elements), (), src, dst, implementation=name)
    converted: np.ndarray = made.numpy()
    return converted


@cache
def planned(src_name: str, dst_name: str) -> tuple[Plan, oracle.Memory, oracle.Memory]:
    """A plan between two placements, the source's bytes, and the destination's afterwards."""
    rng = random.Random(f"{src_name} to {dst_name}")
    small, times = rng.choice((2, 3, 4)), rng.choice((1, 2))
    tokens = [small, small * times]
    rng.shuffle(tokens)
    shape = Shape(
        layers=rng.randint(1, 3),
        heads=rng.randint(1, 3),
        size=rng.choice((8, 16)),
        dtype=rng.choice(("bf16", "bf16", "f32")),
    )
    src, dst = (
        PLACEMENTS[name](shape._replace(tokens=count, blocks=24 // count + 3))
        for name, count in zip((src_name, dst_name), tokens, strict=True)
    )
    num_tokens = rng.randint(1, 24)
    # The null block is never named: ids begin at 1.
    src_ids = rng.sample(range(1, 24 // tokens[0] + 3), -(-num_tokens // tokens[0]))
    dst_ids = rng.sample(range(1, 24 // tokens[1] + 3), -(-num_tokens // tokens[1]))
    plan = Pair.compile(src, dst).plan(Blocks({0: src_ids}, {0: dst_ids}, num_tokens))
    bits = np.random.default_rng(rng.getrandbits(32))
    source = {
        pool: bits.integers(0, 256, bytes_.shape, np.uint8)
        for pool, bytes_ in oracle.blank(src).items()
    }
    expected = oracle.blank(dst)
    oracle.execute(plan, source, expected)
    return plan, source, expected


@pytest.mark.parametrize("src_name", PLACEMENTS)
@pytest.mark.parametrize("name", ["reference", *COMPARED])
def test_plans_between_all_placements_move_exactly_their_bytes(name: str, src_name: str) -> None:
    for dst_name in PLACEMENTS:
        plan, source, expected = planned(src_name, dst_name)
        pools = {pool: np.full_like(bytes_, oracle.FILL) for pool, bytes_ in expected.items()}
        plan_calls.execute(plan, _shared(source), _shared(pools), name)
        for pool, bytes_ in expected.items():
            where = np.flatnonzero(bytes_ != pools[pool])
            assert not where.size, f"{dst_name}: {pool} at {where[:4]}"


ACCEPTED = [
    folder
    for folder in sorted((TESTS / "vectors" / "abi" / "convert").iterdir())
    if not folder.name.startswith("refused")
]


@pytest.mark.parametrize("name", ["reference", *COMPARED])
def test_the_descriptors_vectors_are_carried_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies and conversions whose every byte is on file, with kernels in the oracle's stead."""

    def execute(plan: Plan, src: oracle.Memory, dst: oracle.Memory) -> None:
        # What is read from files cannot be written to, and torch warns of such memory.
        sources = {pool: torch.from_numpy(bytes_.copy()) for pool, bytes_ in src.items()}
        plan_calls.execute(plan, sources, _shared(dst), name)

    monkeypatch.setattr(oracle, "execute", execute)
    failures = {folder.name: list(vectors.check_convert(folder)) for folder in ACCEPTED}
    assert {vector: found for vector, found in failures.items() if found} == {}
    assert len(failures) > 30


@pytest.mark.parametrize("name", COMPARED)
def test_plans_between_all_placements_convert(name: str) -> None:
    shape = Shape(layers=2, blocks=4, heads=2, tokens=4, size=8)
    blocks = Blocks({0: [3, 1]}, {0: [1, 2]}, 7)
    bits = np.random.default_rng(5)
    dtypes = itertools.cycle((("bf16", "f32"), ("f32", "f16"), ("f16", "bf16")))
    for src_name, dst_name in itertools.product(PLACEMENTS, PLACEMENTS):
        src_dtype, dst_dtype = next(dtypes)
        src = PLACEMENTS[src_name](shape._replace(dtype=src_dtype))
        dst = PLACEMENTS[dst_name](shape._replace(dtype=dst_dtype))
        plan = Pair.compile(src, dst, allow_lossy=True).plan(blocks)
        source = {
            pool: bits.integers(0, 256, bytes_.shape, np.uint8)
            for pool, bytes_ in oracle.blank(src).items()
        }
        expected, came = oracle.blank(dst), oracle.blank(dst)
        oracle.execute(plan, source, expected)
        plan_calls.execute(plan, _shared(source), _shared(came), name)
        for pool, bytes_ in expected.items():
            np.testing.assert_array_equal(came[pool], bytes_, f"{src_name}, {dst_name}: {pool}")


def _shared(memory: oracle.Memory) -> dict[str, torch.Tensor]:
    """Pools as tensors of the same memory."""
    return {pool: torch.from_numpy(bytes_) for pool, bytes_ in memory.items()}


def test_plans_come_to_both_kinds_of_calls() -> None:
    """Or the tests above would not have tried them."""
    found = [call for pair in (("vllm_cpu", "LBHNC"), ("LBHNC", "rocm")) for call in _calls(pair)]
    assert any(call.tile for call in found)
    assert any(call.tile is None for call in found)


def _calls(pair: tuple[str, str]) -> Iterator[plan_calls.Call]:
    return plan_calls.calls(planned(*pair)[0])


HIGH = (1 << 32) + 12_345
"""Beyond what 32 bits can say, with or without a sign, and at an odd place."""

SIZE = HIGH + (1 << 20)


@pytest.fixture(scope="module")
def huge() -> torch.Tensor:
    """Five GiB of addresses; only what is written takes memory."""
    return sparse(SIZE)


@pytest.mark.parametrize("name", ["reference", *COMPARED])
def test_offsets_and_strides_beyond_four_gigabytes(name: str, huge: torch.Tensor) -> None:
    content = torch.arange(64, dtype=torch.uint8) + 1
    huge[:64], huge[HIGH : HIGH + 64] = content, content.flip(0)
    found = torch.zeros(64, dtype=torch.uint8)
    zero, high, start = (torch.tensor([at]) for at in (0, HIGH, 100))

    def check(expected: torch.Tensor, call: Callable[..., None], *arguments: object) -> None:
        found.zero_()
        call(*arguments, implementation=name)
        assert found.tolist() == expected.tolist(), call.__name__

    low_part, high_part = content[:16], content.flip(0)[:16]
    rest = torch.zeros(32, dtype=torch.uint8)
    loops = ((2, HIGH, 16),)
    check(
        torch.cat((low_part, high_part, rest)),
        operations.relayout_rows,
        *(found, huge, zero, zero, 16, loops),
    )
    tile = ((2, HIGH, 1), (16, 1, 2))
    check(
        torch.cat((torch.stack((low_part, high_part), 1).flatten(), rest)),
        operations.transpose_pages,
        *(found, huge, zero, zero, 1, tile),
    )
    runs = torch.tensor([[0, 0, 0, HIGH, 64]])
    check(content.flip(0), operations.copy_runs, [found], [huge], runs)
    byte_formats = (Format("i8"), Format("i8"))
    check(
        content.flip(0),
        operations.convert_rows,
        *(found, huge, zero, high, 64, (), *byte_formats),
    )
    # And the reverse: written far away.
    operations.relayout_rows(huge, content, high + 100, zero, 64, (), implementation=name)
    check(content, operations.relayout_rows, found, huge, zero, high + start, 64)
    near, far = (
        operations.digest_blocks(of, at, 64, implementation=name)
        for of, at in ((content, zero), (huge, high + start))
    )
    assert near.tolist() == far.tolist()
    operations.zero_tail(huge, start, 8, ((2, HIGH),), implementation=name)
    assert not huge[HIGH + 100 : HIGH + 108].any()
    assert huge[HIGH + 108 : HIGH + 164].tolist() == content[8:].tolist()
