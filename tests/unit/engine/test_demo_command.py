"""The command `transload demo` before it starts anything."""

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from transload_engine.demo import show
from transload_engine.demo.chat import AskFailed
from transload_engine.demo.command import PACKAGES, main
from transload_engine.demo.processes import ProcessFailed
from transload_engine.demo.show import NotShown

HOUSE = Path(__file__).parents[3]
IMPORTED_AS = {"pyyaml": "yaml", "pyzmq": "zmq"}
TIMEOUT_S = 30

# Raises what an installation without these packages raises.
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
from transload_router.__main__ import run
sys.exit(run())
"""


def run(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("without", "named"), [("torch", "torch"), (",".join(PACKAGES[1:]), PACKAGES[1])]
)
def test_a_missing_package_is_named_with_what_brings_it(without: str, named: str) -> None:
    assert run("-c", WITHOUT, without, "demo", "--oneshot") == (
        1,
        "",
        f"transload demo: the package {named} is missing; the demo is installed with "
        "pip install 'transload[demo]'\n",
    )


def test_its_options_need_no_packages() -> None:
    status, out, _ = run("-c", WITHOUT, ",".join(PACKAGES), "demo", "--help")
    assert status == 0
    assert "--oneshot" in out


def test_all_packages_of_its_extras_are_looked_for() -> None:
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert extras["demo"] == ["transload[router,engine]"]
    asked = [*project["dependencies"]]
    for name in ("router", "engine", "engine-sim"):
        asked += [each for each in extras[name] if not each.startswith("transload[")]
    names = {re.split(r"[><=;\[ ]", each)[0] for each in asked}
    assert {IMPORTED_AS.get(each, each.replace("-", "_")) for each in names} == set(PACKAGES)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (None, 0, ""),
        (KeyboardInterrupt(), 130, ""),
        (ProcessFailed("the router ended"), 1, "transload demo: the router ended\n"),
        (NotShown("other tokens"), 1, "transload demo: other tokens\n"),
        (AskFailed("HTTP 500: no"), 1, "transload demo: HTTP 500: no\n"),
        (OSError("no space left"), 1, "transload demo: no space left\n"),
    ],
)
def test_the_status_says_how_it_went(
    error: BaseException | None,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[bool] = []

    def shown(*, is_oneshot: bool) -> None:
        asked.append(is_oneshot)
        if error is not None:
            raise error

    monkeypatch.setattr(show, "show", shown)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert main(["--oneshot"]) == status
    assert capsys.readouterr().err == said
    assert asked == [True]
