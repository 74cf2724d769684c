"""What the demonstration asks: chats, streamed, and the engines' own counts."""

import http.client
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from transload_engine.demo.stage import MODEL

MAX_TOKENS: Final = 48
TIMEOUT_S: Final = 120.0
"""Between two pieces of an answer: the whole demo took 8-30 s on 2 shared cores at load 5-11."""

Message = dict[str, str]
Counts = dict[str, float]


class AskFailed(RuntimeError):
    """A server answered with something else than an answer."""


@dataclass(frozen=True)
class Answer:
    """A chat's answer, and when it came.

    Attributes:
        headers: Names in small letters.
        first_token_s: From asking to the first text.
        total_s: From asking to the end.
    """

    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    headers: dict[str, str]
    first_token_s: float
    total_s: float


def ask(
    url: str,
    messages: list[Message],
    *,
    show: Callable[[str], None] | None = None,
    salt: str | None = None,
) -> Answer:
    """Ask for the likeliest tokens, as a stream.

    Args:
        url: Of a router or an engine.
        messages: The conversation.
        show: Called with each piece of text as it comes.
        salt: Nothing is found cached that was not asked with it.

    Raises:
        AskFailed: It was refused, or broke off.
        OSError: Nobody is there any more.
    """
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    if salt is not None:
        body["cache_salt"] = salt
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    try:
        return _streamed(connection, body, show or (lambda text: None))
    except http.client.HTTPException as error:
        raise AskFailed(f"the answer broke off: {error!r}") from error
    finally:
        connection.close()


def _streamed(
    connection: http.client.HTTPConnection, body: dict[str, Any], show: Callable[[str], None]
) -> Answer:
    headers = {"content-type": "application/json", "x-transload-explain": "1"}
    begun = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != http.HTTPStatus.OK:
        raise AskFailed(f"HTTP {response.status}: {response.read().decode(errors='replace')}")
    pieces: list[str] = []
    token_ids: list[int] = []
    num_prompt_tokens, first_token_s = 0, 0.0
    for event in _events(response):
        if event.get("usage"):
            num_prompt_tokens = event["usage"]["prompt_tokens"]
        for choice in event["choices"]:
            token_ids += choice.get("token_ids") or ()
            if piece := choice["delta"].get("content"):
                first_token_s = first_token_s or time.monotonic() - begun
                pieces.append(piece)
                show(piece)
    return Answer(
        text="".join(pieces),
        token_ids=tuple(token_ids),
        num_prompt_tokens=num_prompt_tokens,
        headers={name.lower(): value for name, value in response.getheaders()},
        first_token_s=first_token_s,
        total_s=time.monotonic() - begun,
    )


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events."""
    for line in response:
        _, is_data, data = line.rstrip(b"\n").partition(b"data: ")
        if data == b"[DONE]":
            return
        if is_data:
            event: dict[str, Any] = json.loads(data)
            if "choices" not in event:
                raise AskFailed(f"an error within the answer: {data.decode(errors='replace')}")
            yield event
    raise AskFailed("the answer broke off")


def counts(url: str) -> Counts:
    """An engine's series, summed over their labels.

    Raises:
        OSError: Nobody is there any more.
    """
    found: Counts = {}
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    for name, value in re.findall(r"^([a-z_:]+)(?:\{.*\})? (\S+)$", text, re.M):
        found[name] = found.get(name, 0.0) + float(value)
    return found
