"""`transload demo` as a first reader runs it: two engines, the router, and what it says of them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "transload_router", "demo", "--oneshot")

# It took 8-30 s on 2 shared cores at load 5-11.
TIMEOUT_S = 100


@pytest.mark.timeout(TIMEOUT_S + 10)
def test_two_turns_of_a_chat_are_shown_and_are_what_they_should_be(tmp_path: Path) -> None:
    done = subprocess.run(
        COMMAND,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert "a page of prefill's cache: NHD, 16 tokens" in text
    assert "a page of decode's cache: k-transposed, 32 tokens" in text
    assert "both ways lossless" in text
    first, second = re.findall(r'turn, asked .*?" read (.*?) s after the prompt was read', text)
    assert "prefill-0: 993 of the prompt's 993 tokens computed, 0 found in its cache" in first
    assert "moved 993 tokens: 63 blocks of 16 became 32 of 32; 3.10 MB, converted" in first
    assert "decode-0: 0 of the prompt's tokens found in its cache, 993 loaded, 0 computed" in first
    assert "992 found in its cache" in second
    assert "predicted from the engine's events: 992" in second
    assert "decode-0: 1,024 of the prompt's tokens found in its cache, 82 loaded" in second
    assert "first the same 48 tokens, in" in text
    assert "second the same 48 tokens, in" in text
