"""A prefill and a decode core in virtual time, asked what a recorded session asked of real ones."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import msgspec

from transload_engine.core.engine_core import EngineCore
from transload_engine.core.events import Event
from transload_engine.core.handoff import Handoff, Origin
from transload_engine.core.request import Ask
from transload_engine.core.scheduler import Load
from transload_engine.core.serving import Output
from transload_engine.core.settings import CoreSettings

Line = dict[str, Any]
_numbers = itertools.count()


@dataclass
class Names:
    """Block hashes by the order in which they first appeared; 0 is no parent."""

    by_hash: dict[int | bytes, int] = field(default_factory=dict)

    def normalised(self, event: Event) -> Line:
        """An event as a recorded line has it."""
        line: Line = msgspec.json.decode(msgspec.json.encode(event))
        if "block_hashes" in line:
            line["block_hashes"] = [self._name(each) for each in line["block_hashes"]]
        if "parent_block_hash" in line:
            parent = line["parent_block_hash"]
            line["parent_block_hash"] = 0 if parent is None else self._name(parent)
        return line

    def _name(self, block_hash: int | bytes) -> int:
        return self.by_hash.setdefault(block_hash, len(self.by_hash) + 1)


@dataclass
class VirtualEngine:
    """One core with a clock of its own, stepped until it has nothing to do."""

    core: EngineCore
    peers: "dict[str, VirtualEngine]"
    now: float = 0.0
    events: list[Event] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)

    def run(self) -> None:
        """Step until idle; loads end when their time has come."""
        pending: list[tuple[float, Load]] = []
        while self.core.has_work or pending:
            step = self.core.step(self.now)
            self.events += step.events
            self.outputs += step.outputs
            pending += [(self.now + load.duration_s, load) for load in step.loads]
            if step.duration_s is not None:
                self.now += step.duration_s
            elif pending:
                due, load = pending.pop(0)
                self.now = max(self.now, due)
                self._end_load(load)

    def _end_load(self, load: Load) -> None:
        handoff = load.handoff
        peer = self.peers[handoff.engine_id].core
        tokens = peer.read_lease(handoff.engine_id, handoff.request_id, self.now)
        self.core.end_load(load.request_id, tokens)
        peer.end_lease(handoff.request_id)

    def complete(self, ask: Ask) -> list[Output]:
        """Serve one request alone; its outputs."""
        self.outputs = []
        self.core.add_request(f"request-{next(_numbers)}", ask)
        self.run()
        return self.outputs

    def take_events(self) -> list[Event]:
        """Those since the last call."""
        events, self.events = self.events, []
        return events


def make_pair(**settings: Any) -> dict[str, VirtualEngine]:
    """Cores by the names that recordings give them."""
    vocabulary = range(20, 2000)
    engines: dict[str, VirtualEngine] = {}
    for number, name in enumerate(("prefill", "decode")):
        origin = Origin(name, "127.0.0.1", 7000 + number)
        core = EngineCore(CoreSettings(**settings), origin, vocabulary, eos=0)
        engines[name] = VirtualEngine(core, engines)
    return engines


def replay(lines: list[Line]) -> list[Line]:
    """What simulated engines do where real ones did `lines`, in the same form."""
    setting = lines[0]
    engines = make_pair(
        block_size=setting["block_size"],
        num_blocks=setting["num_blocks"],
        max_model_tokens=setting["max_model_tokens"],
        schedules_async=setting["schedules_async"],
    )
    names = {name: Names() for name in engines}
    replayed: list[Line] = [setting]
    params: dict[str, Any] = {}
    for engine in engines.values():
        assert engine.core.reset_prefix_cache()
    for line in lines[1:]:
        engine = engines[line["engine"]]
        if line["do"] == "reset":
            done: Line = {"success": engine.core.reset_prefix_cache()}
        else:
            done, handed = _complete(engine, line, params)
            params = handed or params
        events = [names[line["engine"]].normalised(event) for event in engine.take_events()]
        replayed.append({**line, **done, "events": events})
    return replayed


def _complete(
    engine: VirtualEngine, line: Line, params: dict[str, Any]
) -> tuple[Line, dict[str, Any] | None]:
    ask = Ask(
        prompt=line["prompt"],
        max_tokens=line["max_tokens"],
        cache_salt=line["cache_salt"],
        hands_off=line["leg"] == "prefill",
        handoff=Handoff.read(params) if line["leg"] == "decode" else None,
    )
    outputs = engine.complete(ask)
    handed = outputs[-1].handoff
    cached = outputs[0].num_cached_tokens
    if ask.handoff is not None and ask.handoff.num_cached_tokens is not None:
        cached = ask.handoff.num_cached_tokens
    answer = [token for output in outputs for token in output.token_ids]
    blocks = len(handed["remote_block_ids"][0]) if handed else None
    return {"answer": answer, "cached_tokens": cached, "num_handoff_blocks": blocks}, handed


_FACTS = ("do", "engine", "leg", "cached_tokens", "num_handoff_blocks", "success")


def facts(line: Line) -> Line:
    """What an action came to, its events aside."""
    return {name: line.get(name) for name in _FACTS}


def comparable_events(line: Line) -> list[Line]:
    """An action's events, with an answer's tokens by their places in it, since models differ."""
    prompt, answer = line.get("prompt", []), line.get("answer", [])
    return [_placed(event, prompt, [*prompt, *answer]) for event in line.get("events", ())]


def _placed(event: Line, prompt: list[int], whole: list[int]) -> Line:
    if "token_ids" not in event:
        return event
    tokens = event["token_ids"]
    starts = range(0, len(whole), event["block_size"])
    start = next(at for at in starts if whole[at : at + len(tokens)] == tokens)
    end = start + len(tokens)
    places = [*prompt[start:end], *(-at for at in range(max(start, len(prompt)), end))]
    return {**event, "token_ids": places}
