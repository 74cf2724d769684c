"""Harnesses as strangers use them: other processes, of our implementation and of another one."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.harnesses import VECTORS, take_abi_vectors
from transload_abi import vectors
from transload_abi.harness.protocol import Answer, Done, Fields, Implementation
from transload_abi.harness.report import run
from transload_abi.wire import cli
from transload_abi.wire.conformance.checks import vectors_in
from transload_abi.wire.conformance.ours import ours

TESTS = Path(__file__).parents[1]
OURS = (sys.executable, "-m", "transload_abi")
FROM_THE_DOCUMENT = (sys.executable, "-m", "conformance.abi_from_the_document_harness")
DOCUMENT = (TESTS.parent / "connector" / "HARNESS.md").read_text()
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


# --- the document


def test_the_example_is_a_harness(some: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    status, lines = check("check", some, "--with", shlex.join([sys.executable, str(script)]))
    told = dict(line.split(": ", 1) for line in lines[:-1])
    assert status == 1
    assert told["decode/bare"] == "skipped, not offered: read: not yet"
    assert told["convert/error-null-block"] == "skipped, not offered: move: not yet"
    assert told["convert/f32-to-bf16"] == "verdict on src-0: expected lossy, got lossless"
    assert lines[-1] == "14 vectors, 2 failed, 12 skipped"


class Noting:
    """An implementation, and what it was asked and answered."""

    def __init__(self, by: Implementation) -> None:
        self._by = by
        self.given: dict[str, set[str]] = {}
        self.told: dict[str, set[str]] = {}

    def ask(self, operation: str, fields: Fields) -> Answer:
        answer = self._by.ask(operation, fields)
        self.given.setdefault(operation, set()).update(fields)
        if isinstance(answer, Done):
            self.told.setdefault(operation, set()).update(answer.fields)
        return answer


def documented(section: int) -> dict[str, tuple[set[str], set[str]]]:
    """By operation, the fields of requests and answers."""
    text = DOCUMENT.split(f"\n## {section}. ")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*)\|$", text, re.M)
    return {name: (_names(args), _names(told)) for name, args, told in rows if name != "op"}


def _names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_operations_of_the_abi_are_documented() -> None:
    noting = Noting(vectors.OURS)
    list(run(vectors.vectors_in(VECTORS / "abi", noting)))
    told = documented(3)
    told["read"][0].difference_update({"json", "msgpack"})
    assert told == {name: (noting.given[name], noting.told[name]) for name in noting.given}


def test_operations_of_the_wire_are_documented() -> None:
    noting = Noting(ours(cli._compare))
    list(run(vectors_in(VECTORS / "wire", noting)))
    told = documented(4)
    sides = DOCUMENT.split("\n## 5. ")[1].split("| an event of")[0].split("| of both")[1]
    rows = re.findall(r"^\| ([^|]*) \|", sides, re.M)
    assert told.pop("play") == (set(), {"said", "reads"})
    assert set().union(*map(_names, rows)) == noting.given.pop("play")
    assert told == {name: (noting.given[name], noting.told[name]) for name in noting.given}


def test_the_wire_needs_msgspec_alone() -> None:
    code = (
        "import sys\n"
        "for name in ('numpy', 'torch', 'pydantic', 'httpx', 'fastapi', 'zmq'):\n"
        "    sys.modules[name] = None\n"
        "from transload_router.__main__ import run\n"
        "sys.exit(run())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "wire", "check", str(VECTORS / "wire")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(" vectors, 0 failed\n")


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", DOCUMENT)
    assert len(targets) > 3
    assert all((TESTS.parent / "connector" / each).exists() for each in targets)
