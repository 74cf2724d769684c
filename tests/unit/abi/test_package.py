"""What `import transload_abi` offers, and what it loads."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import transload_abi


def test_all_names_are_there_and_no_others() -> None:
    public = {
        name
        for name, value in vars(transload_abi).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert set(transload_abi.__all__) == public


def test_it_loads_msgspec_and_nothing_else_that_has_to_be_installed() -> None:
    script = (
        "import sys; import transload_abi;"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'numpy', 'torch', 'vllm', 'zmq', 'asyncio', 'transload_router', 'pydantic'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
