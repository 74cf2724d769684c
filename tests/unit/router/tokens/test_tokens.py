"""Prompts of one model: what is cached, what is cut, what is not known."""

import json
from typing import Any

import pytest

from support.small_tokenizers import (
    CHATML,
    byte_level,
    greedy_marks,
    llama,
    made,
    noon,
    recorded_files,
    swallowing,
    unigram,
)
from transload_router.core.bodies.members import read_members
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.chat import Chat, Templates
from transload_router.core.tokens.encoder import Encoder
from transload_router.core.tokens.job import ChatJob, Cut, Reason, TextJob, Unknown
from transload_router.core.tokens.read import read_prompt
from transload_router.core.tokens.template import Template
from transload_router.core.tokens.tokens import Plan, Tokens

_ME = Identity("m")
_LONG = "What is it? " * 500


def _tokens(tokenizer: Any = None, **sizes: Any) -> Tokens:
    template = Template(CHATML, noon)
    chat = Chat(Templates(plain=template, tool_use=template), {})
    return Tokens(Encoder(tokenizer or byte_level()), chat, **sizes)


def _job(*texts: str, **fields: Any) -> ChatJob:
    messages = [{"role": "user", "content": text} for text in texts]
    return ChatJob(messages, None, {"add_generation_prompt": True}, **fields)


def _prompt(tokens: Tokens, job: ChatJob | TextJob, identity: Identity = _ME) -> Prompt:
    prompt = tokens.prompt(job, identity)
    assert isinstance(prompt, Prompt)
    return prompt


def test_a_prompt_carries_identity_and_salt() -> None:
    prompt = _prompt(_tokens(), _job("hi", cache_salt="s"))

    assert (prompt.identity, prompt.cache_salt) == (_ME, "s")
    assert prompt.tokens == Encoder(byte_level()).whole(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_next_turn_is_new_text_only() -> None:
    tokens = _tokens()
    first = _prompt(tokens, _job(_LONG))

    plan = tokens.plan(_job(_LONG, "go on"), _ME)

    assert isinstance(plan, Plan)
    # "user\ngo on" and nothing else: the answer's head was known from the turn before.
    assert plan.num_new_characters == len("user\ngo on")
    second = tokens.finish(plan)
    assert isinstance(second, Prompt)
    assert (
        tokens.stats.num_prefix_tokens
        == first.num_tokens - Encoder(byte_level()).whole("<|im_start|>assistant\n").__len__() // 4
    )


def test_the_next_turns_keys_go_on_from_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = _tokens()
    first = _prompt(tokens, _job(_LONG)).keys(16)
    second = _prompt(tokens, _job(_LONG, "go on"))
    hashed: list[int] = []

    def chain_keys(parent: int, rest: Any, *more: Any) -> list[int]:
        hashed.append(len(rest))
        return []

    monkeypatch.setattr("transload_router.core.prompt.chain_keys", chain_keys)

    num_known = len(second.keys(16))
    assert num_known >= len(first) - 1
    assert hashed == [len(second.tokens) - 4 * 16 * num_known]


@pytest.mark.parametrize(
    "other",
    [
        (Identity("m"), _job(_LONG, "b", cache_salt="s")),
        (Identity("m", "lora"), _job(_LONG, "b")),
        (Identity("n"), _job(_LONG, "b")),
        (Identity("m"), _job(_LONG, "b", add_special_tokens=True)),
    ],
)
def test_keys_are_not_shared_across_identities_salts_or_special_tokens(other: Any) -> None:
    identity, job = other
    tokens = _tokens(llama())
    _prompt(tokens, _job(_LONG)).keys(16)

    prompt = _prompt(tokens, job, identity)

    alone = Prompt(identity, prompt.tokens, job.cache_salt)
    assert prompt.keys(16) == alone.keys(16)
    assert tokens.stats.num_prefix_tokens > 0


def test_the_same_prompt_again_keeps_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = _tokens()
    keys = _prompt(tokens, _job(_LONG)).keys(16)
    _prompt(tokens, _job(_LONG))  # whose keys nobody asks for
    again = _prompt(tokens, _job(_LONG))
    monkeypatch.setattr("transload_router.core.prompt.chain_keys", lambda *_: [])

    assert again.keys(16)[: len(keys) - 1] == keys[:-1]


def test_a_system_prompt_is_known_to_other_conversations() -> None:
    tokens = _tokens()
    _prompt(tokens, _job(_LONG, "a"))

    plan = tokens.plan(_job(_LONG, "b"), _ME)

    assert isinstance(plan, Plan)
    assert plan.num_new_characters == len("user\nb")


def test_a_seam_may_grow_into_a_longer_one_with_the_next_turn() -> None:
    tokens, encoder = _tokens(greedy_marks()), Encoder(greedy_marks())
    for text in (f"{_LONG}<|im_end|>", f"{_LONG}<|im_end|>er is", f"{_LONG}<|im_end|> is"):
        assert _prompt(tokens, TextJob(text)).tokens == encoder.whole(text)

    assert tokens.stats.num_prefix_tokens > 0


def test_what_follows_the_last_seam_is_no_part_of_what_is_gone_on_from() -> None:
    tokens = _tokens()
    _prompt(tokens, TextJob(f"{_LONG}<|im_end|>東京"))
    _prompt(tokens, TextJob(f"{_LONG}<|im_end|>is"))

    assert tokens.stats.num_prefix_tokens > 0


def test_caches_are_bounded() -> None:
    tokens = _tokens(prefix_cache_bytes=100_000, segment_cache_bytes=50_000)
    for number in range(40):
        _prompt(tokens, _job(f"{number} {_LONG}"))

    assert 50_000 < tokens.num_cached_bytes <= 150_000


def test_a_tokenizer_that_cannot_be_cut_is_used_whole_and_counted() -> None:
    tokens = _tokens(swallowing())
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

    assert not tokens.is_segmented
    assert _prompt(tokens, _job("hi")).tokens == Encoder(swallowing()).whole(text)
    assert (tokens.stats.num_whole, tokens.stats.num_prompts) == (1, 1)
    assert tokens.stats.num_tokens > 0


def test_a_cut_keeps_the_end_with_special_tokens_around() -> None:
    tokens = _tokens(llama())
    whole = Encoder(llama()).whole(_LONG)

    assert _prompt(tokens, TextJob(_LONG, cut=Cut(3))).tokens == b"\x01\0\0\0" + whole[-8:]
    bare = TextJob(_LONG, add_special_tokens=False, cut=Cut(3))
    assert _prompt(tokens, bare).tokens == whole[-12:]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_cut_with_a_side_counts_special_tokens_as_others(side: str) -> None:
    tokens = _tokens(llama())
    dressed = Encoder(llama()).whole("What is it?", add_special_tokens=True)

    kept = _prompt(tokens, TextJob("What is it?", cut=Cut(3, side))).tokens

    assert kept == (dressed[:12] if side == "right" else dressed[-12:])


def test_cuts_that_depend_on_the_engines_context_are_not_known() -> None:
    tokens = _tokens(unigram())

    assert tokens.prompt(TextJob("a", cut=Cut(1)), _ME) == Unknown(Reason.TRUNCATION)
    assert tokens.prompt(TextJob(_LONG, cut=Cut(2, "left")), _ME) == Unknown(Reason.TRUNCATION)


def test_half_a_character_has_no_ids() -> None:
    tokens = _tokens()

    assert tokens.prompt(TextJob("\ud800"), _ME) == Unknown(Reason.INVALID)
    assert tokens.prompt(_job("\ud800"), _ME) == Unknown(Reason.INVALID)


def test_reasons_come_through() -> None:
    assert _tokens().prompt(_job(), _ME) == Unknown(Reason.INVALID)


def test_what_threads_share_is_guarded() -> None:
    class Guard:
        depth = num_entered = 0

        def __enter__(self) -> None:
            assert self.depth == 0
            self.depth += 1
            self.num_entered += 1

        def __exit__(self, *_: object) -> None:
            self.depth -= 1

    guard = Guard()
    template = Template(CHATML, noon)
    chat = Chat(Templates(plain=template, tool_use=template), {})
    tokens = Tokens(Encoder(byte_level()), chat, guard)
    _prompt(tokens, _job(_LONG))

    assert guard.depth == 0
    assert guard.num_entered > 3


def test_a_second_turn_of_the_messages_api_goes_on_from_the_first() -> None:
    tokens = made(recorded_files())

    def prompt(*messages: dict[str, Any]) -> Prompt:
        body = {"system": _LONG, "messages": messages, "max_tokens": 5}
        job = read_prompt("messages", read_members(json.dumps(body).encode()))
        assert isinstance(job, ChatJob)
        return _prompt(tokens, job)

    user = {"role": "user", "content": "hi"}
    first = prompt(user).keys(16)
    second = prompt(user, {"role": "assistant", "content": "ho"}, user).keys(16)

    assert len(first) > 50
    # The last block holds the head of the answer, which is the same; all others are whole.
    assert second[: len(first) - 1] == first[:-1]
    assert tokens.stats.num_prefix_tokens > 16 * (len(first) - 2)
