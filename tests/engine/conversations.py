"""Random conversations whose prompts share prefixes, cut anywhere around the block size.

`Conversations` knows no engine: the caller sends `next_body` and gives back what was answered.
"""

from __future__ import annotations

import random
from typing import Any

import httpx

from engine.routing_world import BLOCK_TOKENS, MAX_MODEL_LEN, Answer, Fleet, ask, wait_followed
from engine.world import FIRST_PLAIN_TOKEN, LAST_PLAIN_TOKEN
from real_engine.router import RouterProcess

NUM_CONVERSATIONS = 6
"""Of some 200 tokens each; one engine's cache holds two or three."""

MAX_ANSWER = 40
"""More than a block, so answers fill blocks, too."""

ROOM_TOKENS = 140
"""A chat's next turn adds at most its answer and some 60 tokens of question and template."""

RESET_EVERY = 25
"""Requests; then some engine's cache is emptied."""

WORDS = ("for", "name", "in", "return", "self", "value", "if", "not", "None", "def", "list")


class Conversations:
    """Yields one request after another; equal seeds and answers give equal requests."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._systems = [self._tokens(length) for length in (31, 64, 100)]
        self._system_texts = [" ".join(self._words(count)) for count in (6, 15)]
        self._token_chats = [self._begin_tokens() for _ in range(NUM_CONVERSATIONS)]
        self._text_chats = [self._begin_text() for _ in range(NUM_CONVERSATIONS)]
        self._asked: tuple[str, int] = ("", 0)

    def next_body(self, *, has_text: bool) -> dict[str, Any]:
        """The next request's own members; `has_text`: chats as text, besides prompts as ids."""
        limit = self._random.randint(1, MAX_ANSWER)
        place = self._random.randrange(NUM_CONVERSATIONS)
        if has_text and self._random.random() < 0.4:
            self._asked = ("text", place)
            return {"messages": list(self._text_chats[place]), "max_tokens": limit}
        self._asked = ("tokens", place)
        return {"prompt": self._cut(self._token_chats[place]), "max_tokens": limit}

    def answered(self, answer: Answer) -> None:
        """Goes on with the conversation that was asked last, or begins it anew, or asks again."""
        kind, place = self._asked
        if self._random.random() < 0.2:
            return
        if kind == "tokens":
            chat = self._token_chats[place] + answer.token_ids
            chat += self._tokens(self._random.randint(1, 60))
            is_full = len(chat) + MAX_ANSWER > MAX_MODEL_LEN
            self._token_chats[place] = self._begin_tokens() if is_full else chat
            return
        turns = [("assistant", answer.text), ("user", " ".join(self._words(8)))]
        messages = [{"role": role, "content": content} for role, content in turns]
        is_full = answer.num_prompt_tokens + 2 * MAX_ANSWER + ROOM_TOKENS > MAX_MODEL_LEN
        self._text_chats[place] = (
            self._begin_text() if is_full else self._text_chats[place] + messages
        )

    def _cut(self, tokens: list[int]) -> list[int]:
        """Now and then a prefix that ends at a block's end, or one token beside it."""
        if self._random.random() >= 0.4 or len(tokens) <= BLOCK_TOKENS + 1:
            return tokens
        num_blocks = self._random.randint(1, (len(tokens) - 1) // BLOCK_TOKENS)
        return tokens[: num_blocks * BLOCK_TOKENS + self._random.choice((-1, 0, 0, 1))]

    def _begin_tokens(self) -> list[int]:
        return self._random.choice(self._systems) + self._tokens(self._random.randint(1, 90))

    def _begin_text(self) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": self._random.choice(self._system_texts)},
            {"role": "user", "content": " ".join(self._words(self._random.randint(3, 20)))},
        ]

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(FIRST_PLAIN_TOKEN, LAST_PLAIN_TOKEN) for _ in range(count)]

    def _words(self, count: int) -> list[str]:
        return self._random.choices(WORDS, k=count)


def converse(
    client: httpx.Client, fleet: Fleet, router: RouterProcess, num_requests: int, seed: str
) -> list[Answer]:
    """One request after another, with an engine's cache emptied now and then."""
    source = random.Random(seed)
    conversations = Conversations(seed)
    answers = []
    for number in range(num_requests):
        if number % RESET_EVERY == RESET_EVERY - 1:
            fleet.reset(source.choice(list(fleet.by_id)))
        wait_followed(fleet, router)
        body = conversations.next_body(has_text=True)
        answer = ask(client, router.url, body, is_stream=source.random() < 0.5)
        conversations.answered(answer)
        answers.append(answer)
    return answers
