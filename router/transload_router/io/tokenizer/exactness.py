"""Whether the router's tokenizer gives an engine's ids: a few prompts put to both at start-up.

One wrong id makes every block behind it another; the router would look for caches that nobody
has, and say nothing. So a difference is reported with the first id that differs, and the router
then asks engines, or does without ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transload_router.core.index.keys import Identity
from transload_router.core.tokens.asking import read_answer, tokenize_body
from transload_router.core.tokens.job import ChatJob, TextJob, TokenizeJob, Unknown
from transload_router.core.tokens.tokens import Tokens
from transload_router.io.tokenizer.asked import Ask

_UNICODE = "naïve Straße, 東京都 привет 🙂 👩\u200d👩\u200d👧 e\u0301 \xa0…  Ⅷ ﬁ\u3000سلم ไทย\u200b"
_BLANKS = " \n\n two  blanks\t\t\r\n   \n x = f(y)  # 12345 3.14\n "
_TOOL = {
    "name": "get_weather",
    "description": "Tells the <weather> & wind, naïvely",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["東京", "Köln"]}, "n": {"max": 1.5}},
        "required": ["city"],
    },
}
_CALL = {
    "id": "call_012345",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "東京", "n": 1.0, "a": null}'},
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A prompt of which the two make different ids.

    Attributes:
        probe: Its name.
        index: Where the first difference is.
        ours: The router's id there; None where its ids end.
        theirs: The engine's.
    """

    probe: str
    index: int
    ours: int | None
    theirs: int | None

    def __str__(self) -> str:
        return (
            f"probe {self.probe!r}: token {self.index} is {self.ours} here "
            f"and {self.theirs} in the engine"
        )


@dataclass(slots=True)
class Verdict:
    """What the check found.

    Attributes:
        num_equal: Probes with equal ids.
        equal_kinds: Of what kinds they were: an engine that compares texts may refuse chats.
        mismatches: Those with others.
        unknown: Names of probes for which the router has no ids, and the engine has.
        refused: Names of those that the engine refuses; with the router's ids, it is laxer.
    """

    num_equal: int = 0
    equal_kinds: set[type[TokenizeJob]] = field(default_factory=set)
    mismatches: list[Mismatch] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """Whether the router's ids can be relied on: some were compared, and none differed."""
        return self.num_equal > 0 and not self.mismatches


# Some vocabularies end in thousands of added tokens, all alike.
_MAX_ADDED_TOKENS = 1024


def probes(added_tokens: Sequence[str] = ()) -> dict[str, TokenizeJob]:
    """Prompts by name: what tokenizers and templates are known to differ in.

    Args:
        added_tokens: The tokenizer's: a model that was trained on may have more of them, or other
            ones, and be like its base in everything else.
    """
    user = {"role": "user", "content": "What is it?"}
    said = {"role": "assistant", "content": "It is."}
    called = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
    result = {"role": "tool", "tool_call_id": "call_012345", "content": "18 °C"}
    system = {"role": "system", "content": " Be brief.\n"}
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    thought = {**said, "reasoning": "hm\n"}
    empty = [{"role": role, "content": ""} for role in ("user", "assistant", "user")]
    return {
        "text": TextJob("Hello, world"),
        "text, bare": TextJob("Hello, world", add_special_tokens=False),
        "text, unicode": TextJob(_UNICODE),
        "text, blanks": TextJob(_BLANKS),
        "text, added tokens": TextJob(" a".join(added_tokens[-_MAX_ADDED_TOKENS:]) or "a"),
        "text, long": TextJob(f"{_BLANKS}{_UNICODE} and so on. " * 100),
        "chat": _chat([user]),
        "chat, unicode": _chat([{"role": "user", "content": _UNICODE + _BLANKS}]),
        "chat, system": _chat([system, user, said, user]),
        "chat, empty turns": _chat(empty),
        "chat, parts": _chat([{"role": "user", "content": parts}]),
        "chat, developer": _chat([{"role": "developer", "content": "d"}, user]),
        "chat, late system": _chat([user, said, system, user]),
        "chat, reasoning": _chat([user, thought, user]),
        "chat, tools": _chat([system, user], tools=[_TOOL]),
        "chat, calls": _chat([user, called, result, said, user], tools=[_TOOL]),
        "chat, no answer asked for": _chat([user, said], add_generation_prompt=False),
        "chat, goes on": _chat(
            [user, said], add_generation_prompt=False, continue_final_message=True
        ),
        "chat, argument": _chat([user], enable_thinking=False),
        "chat, long": _chat([system] + [user, said] * 40 + [user]),
    }


def _chat(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **arguments: bool
) -> ChatJob:
    given = {"add_generation_prompt": True, "continue_final_message": False, **arguments}
    shown = [{"type": "function", "function": tool} for tool in tools or []]
    return ChatJob(messages=messages, tools=shown or None, arguments=given)


async def check_exactness(ask: Ask, tokens: Tokens, model: str | None = None) -> Verdict:
    """Put the probes to the engine and to the tokenizer.

    Args:
        ask: To the engine.
        tokens: The router's.
        model: A name that the engine serves; None for its first.

    Raises:
        EngineError: From `ask`.
        ValueError: The engine answers with something else than ids.
    """
    verdict = Verdict()
    for name, job in probes(tokens.added_tokens).items():
        ours = tokens.prompt(job, Identity("probe"))
        answer = await ask(tokenize_body(job, model))
        if answer is None:
            verdict.refused.append(name)
            continue
        theirs = read_answer(answer)
        if isinstance(ours, Unknown):
            verdict.unknown.append(name)
        elif ours.tokens == theirs:
            verdict.num_equal += 1
            verdict.equal_kinds.add(type(job))
        else:
            verdict.mismatches.append(_first_difference(name, ours.tokens, theirs))
    return verdict


def _first_difference(probe: str, ours: bytes, theirs: bytes) -> Mismatch:
    index = 0
    while ours[4 * index : 4 * index + 4] == theirs[4 * index : 4 * index + 4]:
        index += 1
    return Mismatch(probe, index, _id_at(ours, index), _id_at(theirs, index))


def _id_at(tokens: bytes, index: int) -> int | None:
    packed = tokens[4 * index : 4 * index + 4]
    return int.from_bytes(packed, "little") if packed else None
