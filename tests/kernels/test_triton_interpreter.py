"""Triton's kernels by its interpreter: other tunings, many launches, far offsets, any format."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: its kernels were not run")

TESTS = Path(__file__).parents[1]

WALKS = (
    "rows_of_all_sizes",
    "tiles_of_all_shapes",
    "numbers_of_all_formats",
    "every_number_of_16_bits",
    "digests_of_all_shapes",
    "runs_of_all_lengths",
    "calls_of_many_launches",
    "beyond_4_gib",
)


@cache
def walked() -> tuple[dict[str, int], str]:
    """Calls made by each walk that went well, and what stopped the next; one process for all."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.triton_walks"],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: int(calls) for name, calls in lines}, done.stderr


@pytest.mark.timeout(240)
@pytest.mark.parametrize("walk", WALKS)
def test_the_interpreter_does_what_the_reference_does(walk: str) -> None:
    calls, stopped_by = walked()
    assert calls.get(walk, 0) > 0, stopped_by[-3000:]
