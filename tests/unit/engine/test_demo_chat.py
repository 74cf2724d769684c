"""What the demonstration makes of a server's answers, whole ones and others."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from transload_engine.demo.chat import AskFailed, ask, counts

MESSAGES = [{"role": "user", "content": "hello"}]
OK = b"HTTP/1.1 200 OK\r\nX-Transload-Path: disaggregated\r\nconnection: close\r\n\r\n"
FIRST = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
PIECES = [
    {"choices": [{"delta": {"content": "a "}, "token_ids": [64, 220]}]},
    {"choices": [{"delta": {"content": "b"}, "token_ids": [65]}]},
]
USAGE = {"choices": [], "usage": {"prompt_tokens": 12}}
DONE = b"data: [DONE]\n\n"


def events(*told: object) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in told)


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers one request with these bytes; its URL, and what it was asked."""
    asked: list[bytes] = []

    def serve() -> None:
        peer, _ = listening.accept()
        with peer:
            received = b""
            while not (received.endswith(b"}") or received.startswith(b"GET")):
                received += peer.recv(65_536)
            asked.append(received)
            peer.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        thread.join()


def test_a_stream_is_shown_as_it_comes_and_told_whole() -> None:
    shown: list[str] = []
    with answering(OK + events(FIRST, *PIECES, USAGE) + DONE) as (url, asked):
        answer = ask(url, MESSAGES, show=shown.append)
    assert shown == ["a ", "b"]
    assert (answer.text, answer.token_ids) == ("a b", (64, 220, 65))
    assert answer.num_prompt_tokens == 12
    assert answer.headers["x-transload-path"] == "disaggregated"
    assert 0 < answer.first_token_s <= answer.total_s
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert b"x-transload-explain: 1" in head
    assert json.loads(body)["messages"] == MESSAGES
    assert "cache_salt" not in json.loads(body)


def test_a_salt_is_asked_with() -> None:
    with answering(OK + DONE) as (url, asked):
        ask(url, MESSAGES, salt="alone")
    assert json.loads(asked[0].partition(b"\r\n\r\n")[2])["cache_salt"] == "alone"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 503 No\r\nconnection: close\r\n\r\nnobody is up", "HTTP 503: nobody is up"),
        (OK + events(FIRST, {"error": {"message": "died"}}) + DONE, 'within the answer: .*"died"'),
        (OK + events(FIRST, *PIECES), "the answer broke off"),
        (b"", "the answer broke off: RemoteDisconnected"),
    ],
)
def test_what_is_no_whole_answer_is_said(answer: bytes, said: str) -> None:
    with answering(answer) as (url, _), pytest.raises(AskFailed, match=said):
        ask(url, MESSAGES)


def test_counts_are_sums_over_labels() -> None:
    text = (
        b"# TYPE vllm:loads counter\n"
        b'vllm:loads_total{engine="0",model_name="demo"} 2.0\n'
        b'vllm:loads_total{engine="0",reason="x",path=""} 3.0\n'
        b"up 1\n"
    )
    with answering(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + text) as (url, _):
        assert counts(url) == {"vllm:loads_total": 5.0, "up": 1.0}
