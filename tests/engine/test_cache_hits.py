"""The index beside vLLM's own cache manager, on schedules that no vector holds."""

import os
import subprocess
from pathlib import Path

import pytest

import engine_env
from support.cache_hits import DOUBTFUL, EXACT, SHORT, check, compare

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
RECORDER = Path(__file__).parents[2] / "tools" / "record_cache.py"
NUM_STEPS, FIRST_SEED, NUM_SEEDS = 120, 100, 5


def test_hits_agree() -> None:
    python = engine_env.ensure() / "bin" / "python"
    recorded = subprocess.run(
        [python, RECORDER, str(NUM_STEPS), str(FIRST_SEED), str(NUM_SEEDS)],
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    compared = list(compare(recorded.stdout.splitlines()))
    assert len(compared) == NUM_SEEDS * len(EXACT | SHORT | DOUBTFUL)
    for one in compared:
        check(one)
