"""What was written from the wire's document holds as a stranger's harness."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_it_answers_for_all_but_sessions() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "transload_abi", "wire", "check"),
            *(str(TESTS / "vectors" / "wire"), "--allow-unsupported"),
            *("--with", f"{sys.executable} -m conformance.wire_from_the_document_harness"),
        ],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    told = {name: said for name, colon, said in lines if colon}
    sessions = {name for name in told if name.startswith("sessions/")}
    assert (done.returncode, done.stderr) == (0, "")
    assert {told[name] for name in sessions} == {"skipped, not offered: play: not written"}
    assert {told[name] for name in told.keys() - sessions} == {"ok"}
    assert {name.partition("/")[0] for name in told.keys() - sessions} == {
        *("messages", "refused", "frames", "proofs", "payloads")
    }
