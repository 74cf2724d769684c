"""The command `transload demo`: two engines and a router on this machine, two turns of a chat.

Exit status: 0 it showed what it says, or was ended while it served; 1 it did not, or could not
start; 130 it was ended before.
"""

import argparse
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Final, NoReturn

FAILED: Final = 1
INTERRUPTED: Final = 130

PACKAGES: Final = (
    *("msgspec", "fastapi", "uvicorn", "uvloop", "httptools", "httpx", "pydantic"),
    *("pydantic_settings", "yaml", "prometheus_client", "zmq", "xxhash", "tokenizers", "jinja2"),
    *("torch", "numpy", "safetensors", "cbor2"),
)
"""All that the extras `router` and `engine` bring, as they are imported."""


def main(argv: Sequence[str]) -> int:
    """Run the demonstration; the exit status."""
    options = _parser().parse_args(argv)
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        return _fail(
            f"the package {missing[0]} is missing; the demo is installed with "
            "pip install 'transload[demo]'"
        )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    return _run(is_oneshot=options.oneshot)


def _run(*, is_oneshot: bool) -> int:
    from transload_engine.demo.chat import AskFailed
    from transload_engine.demo.processes import ProcessFailed
    from transload_engine.demo.show import NotShown, show

    try:
        show(is_oneshot=is_oneshot)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone; what is left must not be written at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (AskFailed, NotShown, ProcessFailed, OSError) as error:
        return _fail(str(error))
    return 0


def _fail(why: str) -> int:
    sys.stderr.write(f"transload demo: {why}\n")
    return FAILED


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="transload demo",
        description="Two engines whose caches lie differently in memory and the router in front of "
        "them, on this machine's CPU: two turns of a chat, and what happened where. Serves until "
        "Ctrl-C.",
    )
    parser.add_argument(
        "--oneshot", action="store_true", help="end after the answers; 0: they show what they say"
    )
    return parser
