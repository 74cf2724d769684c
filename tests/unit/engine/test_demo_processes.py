"""Processes of the demonstration: heard, ended, and never left behind."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from transload_engine.demo.processes import Process, ProcessFailed

SOON_S = 30.0
LISTENS = r"port (\d+)"

# Starts a process that listens, says where, and is killed with no time to end it.
KILLED = """
import os, signal, threading
from transload_engine.demo.processes import Process
environment = {"PYTHONUNBUFFERED": "1"}
arguments = ["--bind", "127.0.0.1", "0"]
web = Process("web", "http.server", arguments, environment, threading.Event())
print(web.wait_line(r"port (\\d+)", 30)[1], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def ending() -> threading.Event:
    return threading.Event()


@pytest.fixture
def web(ending: threading.Event) -> Iterator[Process]:
    arguments = ["--bind", "127.0.0.1", "0"]
    with Process("the web", "http.server", arguments, {"PYTHONUNBUFFERED": "1"}, ending) as web:
        yield web


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), SOON_S).close()
    except OSError:
        return False
    return True


def test_a_line_is_waited_for(web: Process) -> None:
    port = int(web.wait_line(LISTENS, SOON_S)[1])
    assert connects(port)
    assert not web.has_ended
    with pytest.raises(ProcessFailed, match=r"the web said nothing of 'ready' within 0 s; .*last"):
        web.wait_line("ready", 0)


def test_it_has_ended_behind_its_block(ending: threading.Event) -> None:
    with Process("the web", "http.server", ["0"], {"PYTHONUNBUFFERED": "1"}, ending) as web:
        port = int(web.wait_line(LISTENS, SOON_S)[1])
    assert web.has_ended
    assert str(web.failure("")).startswith("the web ended with status -15;")
    assert ending.is_set()
    assert not connects(port)


def test_one_that_ends_is_named_with_what_it_said_last(ending: threading.Event) -> None:
    with Process("the reader", "json.tool", ["/nowhere"], {}, ending) as reader:
        assert ending.wait(SOON_S)
        with pytest.raises(ProcessFailed) as failed:
            reader.wait_line("ready", SOON_S)
    first, *lines = str(failed.value).splitlines()
    assert first == "the reader ended with status 2; it said last:"
    assert "No such file or directory: '/nowhere'" in lines[-1]


def test_its_environment_has_what_is_given(ending: threading.Event) -> None:
    with Process("the sites", "site", [], {"PYTHONUSERBASE": "/theirs"}, ending) as sites:
        assert sites.wait_line("USER_BASE: '(.*?)'", SOON_S)[1] == "/theirs"


def test_none_outlives_who_started_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=SOON_S, check=False
    )
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + SOON_S
    while connects(int(done.stdout)):
        assert time.monotonic() < deadline
