"""Harnesses as strangers use them: other processes, of our implementation and of another one."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.harnesses import VECTORS, take_abi_vectors

TESTS = Path(__file__).parents[1]
OURS = (sys.executable, "-m", "transload_abi")
FROM_THE_DOCUMENT = (sys.executable, "-m", "conformance.abi_from_the_document_harness")
TIMEOUT_S = 50

DECODED = ("decode/bare", "decode/qsa-ring", "decode/mla-656-planes", "decode/opaque-page")
MOVED = (
    "convert/error-heads-that-no-source-has",
    "convert/error-null-block",
    "convert/f32-to-bf16",
    "convert/heads-2-and-2-to-4",
    "convert/refused-window-to-full",
)
DOCUMENTS = (
    "accepted/plain.json",
    "accepted/plain.msgpack",
    "accepted/extensions.json",
    "refused/align-three.json",
    "refused/scale-missing.json",
)


def check(*args: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [*OURS, *args],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.fixture
def some(tmp_path: Path) -> str:
    """Small vectors of each kind."""
    take_abi_vectors(tmp_path, (*DECODED, *MOVED, *DOCUMENTS))
    return str(tmp_path)


def test_ours_answers_as_another_process(some: str) -> None:
    status, lines = check("check", some, "--with", shlex.join([*OURS, "harness"]))
    assert lines[-1] == "14 vectors, 0 failed"
    assert status == 0
    assert {line.partition(": ")[2] for line in lines[:-1]} == {"ok"}


def test_ours_answers_for_the_wire_as_another_process() -> None:
    folder = str(VECTORS / "wire")
    status, lines = check("wire", "check", folder, "--with", shlex.join([*OURS, "wire", "harness"]))
    assert status == 0
    assert {line.partition(": ")[2] for line in lines[:-1]} == {"ok"}
    kinds = {line.partition("/")[0] for line in lines[:-1]}
    assert kinds == {"messages", "refused", "frames", "proofs", "payloads", "sessions"}
    assert check("wire", "check", folder) == (0, lines)


def test_what_was_written_from_the_document_answers(some: str) -> None:
    args = ("check", some, "--with", shlex.join(FROM_THE_DOCUMENT))
    status, lines = check(*args)
    left_out = "skipped, not offered: encode: not written"
    assert lines == [
        *(f"{name}: {left_out}" for name in sorted(DECODED)),
        *(f"{name}: ok" for name in (*MOVED, *DOCUMENTS)),
        "14 vectors, 0 failed, 4 skipped",
    ]
    assert status == 1
    assert check(*args, "--allow-unsupported") == (0, lines)
