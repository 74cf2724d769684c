"""Records what a real prefill and decode engine do with a fixed session: events, cached tokens.

`python tools/record_session.py FOLDER` starts two real engines with small caches and writes
`session.jsonl` (each request with the events it caused and the cached tokens reported for it) and
`answers.jsonl` (the engine's own wording of answers and errors). The simulated engine is held
against both.

**Rules**

* One request at a time: what a busy engine batches together depends on its speed.
* Hashes are numbered by engine in order of first appearance; 0 is no parent.
* Events come a moment after the answer they belong to: a silence of `QUIET_MS` ends them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import zmq

import engine_env
from real_engine import launch
from real_engine.launch import MODEL_NAME, Engine, Engines, EngineSpec, Role

BLOCK_TOKENS = 32
"""The least that vLLM 0.32.0's CPU attention takes."""

NUM_BLOCKS = 24
"""Some three of the session's longer prompts, so that prefixes are evicted while others live."""

MAX_MODEL_TOKENS = 512
QUIET_MS = 250
REQUEST_S = 120.0
SEED = 4
FIRST_PLAIN_TOKEN, LAST_PLAIN_TOKEN = 20, 2000

Action = dict[str, Any]
Line = dict[str, Any]


def plan() -> list[Action]:
    """The session: 60 requests and two resets over families of prompts that share prefixes."""
    source = random.Random(SEED)
    families = [_tokens(source, 150) for _ in range(5)]
    actions: list[Action] = []
    for number in range(60):
        family = source.choice(families)
        shared = source.choice([0, 31, 32, 33, 64, 95, 96, 128, 150])
        prompt = family[:shared] + _tokens(source, source.choice([1, 2, 31, 32, 33, 70]))
        kind = source.choice(["prefill", "decode", "handoff", "handoff"])
        action: Action = {"do": kind, "prompt": prompt, "max_tokens": source.choice([1, 2, 40, 70])}
        if source.random() < 0.1:
            action["cache_salt"] = source.choice(["one", "two"])
        actions.append(action)
        if number in (25, 45):
            actions.append({"do": "reset", "engine": "prefill" if number == 25 else "decode"})
    whole = families[0][:128]
    return [*actions, *({"do": "handoff", "prompt": whole, "max_tokens": 3} for _ in range(2))]


def _tokens(source: random.Random, count: int) -> list[int]:
    return [source.randrange(FIRST_PLAIN_TOKEN, LAST_PLAIN_TOKEN) for _ in range(count)]


@dataclass
class Listener:
    """One engine's published events, subscribed before the engine published any."""

    socket: zmq.Socket[bytes]
    names: dict[Any, int] = field(default_factory=dict)

    def take(self) -> list[Line]:
        """The events since the last call, normalised, once the engine has fallen silent."""
        found = []
        while self.socket.poll(QUIET_MS):
            _topic, _number, payload = self.socket.recv_multipart()
            _time, events, _rank = msgspec.msgpack.decode(payload)
            found += [self.normalised(event) for event in events]
        return found

    def normalised(self, event: dict[str, Any]) -> Line:
        """An event with its hashes numbered."""
        renamed = dict(event)
        if "block_hashes" in event:
            renamed["block_hashes"] = [self._name(each) for each in event["block_hashes"]]
        if "parent_block_hash" in event:
            parent = event["parent_block_hash"]
            renamed["parent_block_hash"] = 0 if parent is None else self._name(parent)
        return renamed

    def _name(self, block_hash: Any) -> int:
        return self.names.setdefault(block_hash, len(self.names) + 1)


@dataclass
class Pair:
    """A prefill and a decode engine, and their events."""

    client: httpx.Client
    urls: dict[str, str]
    listeners: dict[str, Listener]

    def play(self, action: Action) -> list[Line]:
        """Carry out one action; a line for each engine that had a part in it."""
        if action["do"] == "reset":
            engine = action["engine"]
            answer = self.client.post(f"{self.urls[engine]}/reset_prefix_cache")
            return [{**action, **answer.json(), "events": self.listeners[engine].take()}]
        if action["do"] != "handoff":
            return [self._complete(action["do"], action, None)[0]]
        first, handoff = self._complete("prefill", action, {"do_remote_decode": True})
        second, _ = self._complete("decode", action, handoff)
        return [first, second]

    def _complete(
        self, engine: str, action: Action, params: dict[str, Any] | None
    ) -> tuple[Line, dict[str, Any] | None]:
        is_prefill_leg = params is not None and "do_remote_decode" in params and engine == "prefill"
        body = {
            "model": MODEL_NAME,
            "prompt": action["prompt"],
            "max_tokens": 1 if is_prefill_leg else action["max_tokens"],
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        if "cache_salt" in action:
            body["cache_salt"] = action["cache_salt"]
        if params is not None:
            body["kv_transfer_params"] = params
        answer = self.client.post(f"{self.urls[engine]}/v1/completions", json=body)
        answer.raise_for_status()
        said = answer.json()
        handoff = said.get("kv_transfer_params")
        line: Line = {
            "do": "complete",
            "engine": engine,
            "leg": "local" if params is None else "prefill" if is_prefill_leg else "decode",
            "prompt": action["prompt"],
            "max_tokens": body["max_tokens"],
            "cache_salt": action.get("cache_salt"),
            "answer": said["choices"][0]["token_ids"],
            "cached_tokens": said["usage"]["prompt_tokens_details"]["cached_tokens"],
            "num_handoff_blocks": len(handoff["remote_block_ids"][0]) if handoff else None,
            "events": self.listeners[engine].take(),
        }
        return line, handoff


ASKED: list[tuple[str, str, Any]] = [
    ("GET", "/version", None),
    ("GET", "/v1/models", None),
    ("GET", "/kv_event_sources", None),
    ("POST", "/tokenize", {"model": "MODEL", "prompt": "The cargo"}),
    ("POST", "/detokenize", {"model": "MODEL", "tokens": [70, 71, 72]}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": "The cargo", "max_tokens": 2}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [70, 71], "max_tokens": 2, "n": 2,
                                 "return_token_ids": True}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [70, 71], "max_tokens": 2,
                                 "stream": True, "stream_options": {"include_usage": True}}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [70, 71], "max_tokens": 2,
                                 "stream": True, "return_token_ids": True,
                                 "stream_options": {"include_usage": True,
                                                    "continuous_usage_stats": True}}),
    ("POST", "/v1/chat/completions", {"model": "MODEL", "max_tokens": 2,
                                      "messages": [{"role": "user", "content": "Hello"}]}),
    ("POST", "/v1/chat/completions", {"model": "MODEL", "max_tokens": 2, "stream": True,
                                      "return_token_ids": True,
                                      "stream_options": {"include_usage": True},
                                      "messages": [{"role": "user", "content": "Hello"}]}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [70, 71], "max_tokens": 1,
                                 "kv_transfer_params": {"do_remote_decode": True}}),
    ("POST", "/v1/completions", {"model": "none", "prompt": "x"}),
    ("POST", "/v1/chat/completions", {"model": "none",
                                      "messages": [{"role": "user", "content": "x"}]}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": ""}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": []}),
    ("POST", "/v1/completions", {"model": "MODEL"}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [999999], "max_tokens": 1}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [7], "max_tokens": 0}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [7], "max_tokens": -1}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [7], "max_tokens": "many"}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [7] * 600, "max_tokens": 1}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [7] * 500, "max_tokens": 100}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [7], "max_tokens": 2,
                                 "min_tokens": 3}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [7], "temperature": -1}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [7],
                                 "stream_options": {"include_usage": True}}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": [7], "stream": True,
                                 "use_beam_search": True}),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": "x",
                                 "kv_transfer_params": {"prompt_token_ids": []}}),
    ("POST", "/v1/chat/completions", {"model": "MODEL"}),
    ("POST", "/v1/chat/completions", {"model": "MODEL", "messages": []}),
    ("POST", "/v1/chat/completions", {"model": "MODEL", "top_logprobs": 2,
                                      "messages": [{"role": "user", "content": "x"}]}),
    ("POST", "/v1/completions", "{no json"),
    ("POST", "/v1/completions", "[1]"),
    ("GET", "/v1/completions", None),
    ("GET", "/nothing", None),
]  # fmt: skip
"""Method, path, body; a text is sent as it is."""


def ask(client: httpx.Client, url: str) -> Iterator[Line]:
    """What an engine answers to each of `ASKED`."""
    for method, path, body in ASKED:
        raw = body if isinstance(body, str) else json.dumps(body).replace("MODEL", MODEL_NAME)
        content = None if body is None else raw
        headers = {"content-type": "application/json"} if body is not None else {}
        answer = client.request(method, url + path, content=content, headers=headers)
        yield {
            "method": method,
            "path": path,
            "body": content,
            "status": answer.status_code,
            "type": answer.headers.get("content-type"),
            "answer": answer.text,
        }
    text = client.get(f"{url}/metrics").text
    names = sorted(
        {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE vllm")}
    )
    yield {"path": "/metrics", "names": names}


def spec(name: str, role: Role, folder: Path) -> EngineSpec:
    """An engine with events on Unix sockets in a folder, and a cache that is soon full."""
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{folder}/{name}",
        "replay_endpoint": f"ipc://{folder}/{name}-replay",
        "topic": f"kv@{name}",
    }
    arguments = (
        *("--block-size", str(BLOCK_TOKENS), "--max-model-len", str(MAX_MODEL_TOKENS)),
        *("--kv-events-config", json.dumps(events)),
    )
    return EngineSpec(name, role, num_blocks=NUM_BLOCKS, extra_args=arguments)


def listen(context: zmq.Context[zmq.Socket[bytes]], folder: Path, name: str) -> Listener:
    """Subscribe to an engine that `spec` describes; it need not run yet."""
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"")
    socket.connect(f"ipc://{folder}/{name}")
    return Listener(socket)


def record(engines: dict[str, Engine], folder: Path) -> tuple[list[Line], list[Line]]:
    """Play the session on two engines that wait, fresh, with events in this folder.

    Returns:
        The session's lines, the first of them its setting; and the answers' lines.
    """
    lines: list[Line] = [
        {
            "do": "set",
            "block_size": BLOCK_TOKENS,
            "num_blocks": NUM_BLOCKS,
            "max_model_tokens": MAX_MODEL_TOKENS,
            "schedules_async": False,  # never on a CPU: vllm/platforms/cpu.py @ 0.32.0
        }
    ]
    with zmq.Context() as context, httpx.Client(timeout=REQUEST_S) as client:
        listeners = {name: listen(context, folder, name) for name in engines}
        try:
            pair = Pair(client, {name: each.url for name, each in engines.items()}, listeners)
            _connect(pair)
            for action in plan():
                lines += pair.play(action)
            answers = list(ask(client, engines["prefill"].url))
        finally:
            for listener in listeners.values():
                listener.socket.close(linger=0)
    return lines, answers


def _connect(pair: Pair) -> None:
    """Warm both engines and the way between them; begin with caches that are empty and known.

    Events of the first requests may be lost, since a subscription takes a moment to arrive.
    """
    source = random.Random("warm")
    for _ in range(20):
        lines = pair.play({"do": "handoff", "prompt": _tokens(source, 70), "max_tokens": 1})
        if all(line["events"] for line in lines):
            break
    else:
        raise RuntimeError("the engines publish no events")
    for engine in pair.urls:
        said = pair.play({"do": "reset", "engine": engine})[0]
        if not said["success"]:
            raise RuntimeError(f"{engine} did not reset its cache: {said}")
    for listener in pair.listeners.values():
        listener.names.clear()


def start(engines: Engines, folder: Path) -> dict[str, Engine]:
    """Both engines, ready."""
    roles = {"prefill": Role.PREFILL, "decode": Role.DECODE}
    specs = {name: spec(name, role, folder) for name, role in roles.items()}
    started = {name: engines.start(each) for name, each in specs.items()}
    for each in started.values():
        each.wait_ready()
    return started


def main() -> int:
    """Record into a folder."""
    parser = argparse.ArgumentParser(description="Record a session of two real engines.")
    parser.add_argument("folder", type=Path)
    target: Path = parser.parse_args().folder
    target.mkdir(parents=True, exist_ok=True)
    environment = engine_env.ensure()
    model = launch.ensure_model(environment)
    with (
        tempfile.TemporaryDirectory(prefix="session-") as scratch,
        Engines(environment, model, Path(scratch) / "logs") as engines,
    ):
        folder = Path(scratch)
        lines, answers = record(start(engines, folder), folder)
    places = {str(folder): "FOLDER", str(model): "MODEL_FOLDER"}
    _write(target / "session.jsonl", lines, places)
    _write(target / "answers.jsonl", answers, places)
    return 0


def _write(path: Path, lines: list[Line], places: dict[str, str]) -> None:
    """Lines of JSON, with this machine's folders by name."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    for place, word in places.items():
        text = text.replace(place, word)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
