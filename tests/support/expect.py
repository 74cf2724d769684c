"""What a client must be able to rely on, for every endpoint: one function a promise."""

import json
from typing import Any

from support.vllm_api import MESSAGES, RESPONSES, Api


def assert_own_error(api: Api, status: int, body: bytes) -> str:
    """The router's own error, in the API's shape.

    Returns:
        Its type.
    """
    error = json.loads(body)
    if api is MESSAGES:
        assert error["type"] == "error", error
        assert set(error["error"]) == {"type", "message"}, error
        assert error["error"]["message"]
        return str(error["error"]["type"])
    assert set(error) == {"error"}, error
    assert set(error["error"]) == {"message", "type", "param", "code"}, error
    assert error["error"]["code"] == status
    assert error["error"]["message"]
    return str(error["error"]["type"])


def split_stream(body: bytes) -> list[tuple[str, Any]]:
    """(event name, data) of each event; data that is no JSON stays text."""
    found = []
    for block in body.decode().split("\n\n"):
        if not block:
            continue
        name, data = "", ""
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line[len("event: ") :]
            elif line.startswith("data: "):
                data = line[len("data: ") :]
        found.append((name, data if data == "[DONE]" else json.loads(data)))
    return found


def assert_cut_stream(api: Api, body: bytes, whole_events: bytes) -> None:
    """A stream that broke off: the engine's whole events, the API's error event, no more."""
    assert body.startswith(whole_events)
    assert api.done not in body
    rest = split_stream(body[len(whole_events) :])
    assert len(rest) == 1, rest
    name, data = rest[0]
    if api is RESPONSES:
        before = [data["sequence_number"] for _, data in split_stream(whole_events)]
        assert (name, data["type"]) == ("error", "error")
        assert data["sequence_number"] == (before[-1] + 1 if before else 0)
        assert data["message"]
    elif api is MESSAGES:
        assert (name, data["type"]) == ("error", "error")
        assert data["error"]["message"]
    else:
        assert name == ""
        assert set(data) == {"error"}
        assert data["error"]["message"]
