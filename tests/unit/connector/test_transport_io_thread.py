"""The thread under both sides: order, deadlines, and what is left when it ends."""

import functools
import selectors
import socket
import threading
from collections.abc import Callable

import pytest

from support.transport_world import PATIENCE_S, num_descriptors, until
from transload_connector.transports import io_thread
from transload_connector.transports.io_thread import IoThread


class Recorder:
    """Turns that note what happens."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.due: float | None = None
        self.has_ticked = threading.Event()
        self.has_stopped = threading.Event()

    def turn(self) -> None:
        pass

    def tick(self, _now: float) -> None:
        if self.due is not None:
            self.due = None
            self.has_ticked.set()

    def deadline(self) -> float | None:
        return self.due

    def stop(self) -> None:
        self.heard.append("stop")
        self.has_stopped.set()

    def ready(self, mask: int) -> None:
        self.heard.append(mask)


def test_what_is_posted_is_done_in_order_and_before_the_end() -> None:
    before = num_descriptors()
    recorder = Recorder()
    thread = IoThread("transload-test", recorder)
    for number in range(100):
        assert thread.post(functools.partial(recorder.heard.append, number))
    thread.start()
    thread.close()
    assert recorder.heard == [*range(100), "stop"]
    assert not thread.post(lambda: None)
    thread.close()
    assert num_descriptors() == before


def test_a_deadline_that_came_nearer_is_kept_without_any_socket() -> None:
    recorder = Recorder()
    thread = IoThread("transload-test", recorder)
    thread.start()
    recorder.due = thread.clock() + 0.05
    thread.wake()
    assert recorder.has_ticked.wait(PATIENCE_S)
    thread.close()


def test_a_thread_that_fails_tells_everybody_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[type[BaseException] | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda hook: failures.append(hook.exc_type))
    before = num_descriptors()
    recorder = Recorder()
    thread = IoThread("transload-test", recorder)

    def fail() -> None:
        raise ZeroDivisionError

    thread.post(fail)
    thread.post(lambda: recorder.heard.append("later"))
    thread.start()
    assert recorder.has_stopped.wait(PATIENCE_S)
    thread.close()
    assert recorder.heard == ["stop", "later"]
    assert failures == [ZeroDivisionError]
    assert num_descriptors() == before


def test_a_thread_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_thread, "CLOSE_S", 0.01)
    recorder = Recorder()
    may_end = threading.Event()
    thread = IoThread("transload-test", recorder)
    thread.post(lambda: recorder.heard.append(may_end.wait(PATIENCE_S)))
    thread.start()
    with pytest.raises(RuntimeError, match=r"thread transload-test has not ended within 0\.01 s"):
        thread.close()
    may_end.set()
    monkeypatch.undo()
    thread.close()
    assert recorder.heard == [True, "stop"]


class Rival:
    """Closes the other socket when its own can be read."""

    def __init__(self, recorder: Recorder, close_other: Callable[[], None]) -> None:
        self._recorder = recorder
        self._close_other = close_other

    def ready(self, mask: int) -> None:
        self._recorder.ready(mask)
        self._close_other()


def test_a_socket_that_was_closed_in_the_same_turn_is_not_told_of() -> None:
    recorder = Recorder()
    thread = IoThread("transload-test", recorder)
    pairs = [socket.socketpair(), socket.socketpair()]
    for (near, far), (other, _) in zip(pairs, reversed(pairs), strict=True):
        far.send(b"x")
        forget_both = functools.partial(forget, thread, (near, other))
        thread.watch(near, selectors.EVENT_READ, Rival(recorder, forget_both))
    thread.start()
    until(lambda: recorder.heard, "one of them is told of")
    thread.close()
    for _, far in pairs:
        far.close()
    assert recorder.heard == [selectors.EVENT_READ, "stop"]


def forget(thread: IoThread, socks: tuple[socket.socket, ...]) -> None:
    for sock in socks:
        thread.forget(sock)
