"""Answers of chat and completions in vLLM 0.32.0's JSON, member for member as recorded."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from transload_engine.core.request import Finish
from transload_engine.core.runner import Chosen
from transload_engine.server.logprobs import Name, of_chat, of_completion
from transload_engine.server.wants import Want

Members = dict[str, Any]
DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def event(members: Members) -> bytes:
    """One server-sent event."""
    return b"data: " + _encoder.encode(members) + b"\n\n"


@dataclass
class Choice:
    """One answer as far as it has come.

    Attributes:
        prompt: Its prompt's tokens.
        stop_reason: The stop string or token that ended it.
        chosen: Its tokens, with what was asked to be told about them.
        num_named: Characters of its tokens as logprobs spell them, as far as those were told.
    """

    index: int
    prompt: list[int]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    stop_reason: str | int | None = None
    chosen: list[Chosen] = field(default_factory=list)
    num_named: int = 0


@dataclass
class Shapes:
    """One request's answers.

    Attributes:
        spell: A token as logprobs have it.
        fingerprint: Of the engine.
        reports_cached: Whether usage tells of cached tokens (`--enable-prompt-tokens-details`).
        num_cached: Prompt tokens that were not computed, once that is known.
    """

    want: Want
    answer_id: str
    created: int
    spell: Name
    fingerprint: str
    reports_cached: bool
    num_cached: int | None = None

    def usage(self, choices: list[Choice], *, is_whole: bool) -> Members:
        """Usage of these choices.

        Args:
            choices: All of them, or one for a stream's running count.
            is_whole: With every member, as answers have it; else without what is null.
        """
        prompts = {id(choice.prompt): len(choice.prompt) for choice in choices}
        num_prompt = sum(prompts.values())
        num_answer = sum(len(choice.token_ids) for choice in choices)
        usage: Members = {
            "prompt_tokens": num_prompt,
            "total_tokens": num_prompt + num_answer,
            "completion_tokens": num_answer,
        }
        details: Members | None = None
        if self.reports_cached and self.num_cached is not None:
            details = {"cached_tokens": self.num_cached}
            if self.want.is_chat:
                details["created_cache_tokens"] = 0
            if is_whole:
                details = {"cached_tokens": self.num_cached, "created_cache_tokens": None}
                details["created_cache_tokens"] = 0 if self.want.is_chat else None
                details["multimodal_tokens"] = None
        if is_whole or details is not None:
            usage["prompt_tokens_details"] = details
        if is_whole:
            usage["completion_tokens_details"] = None
        return usage

    def whole(self, choices: list[Choice], handoff: Members | None) -> bytes:
        """The answer to a request that does not stream."""
        members: Members = {
            "id": self.answer_id,
            "object": "chat.completion" if self.want.is_chat else "text_completion",
            "created": self.created,
            "model": self.want.model,
            "choices": [self._whole_choice(choice) for choice in choices],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": self.usage(choices, is_whole=True),
        }
        if self.want.is_chat:
            members["prompt_logprobs"] = None
            members["prompt_token_ids"] = choices[0].prompt if self.want.returns_ids else None
            members["prompt_text"] = None
        members["kv_transfer_params"] = handoff
        members["ec_transfer_params"] = None
        members["metrics"] = None
        return _encoder.encode(members)

    def _whole_choice(self, choice: Choice) -> Members:
        ids = choice.token_ids if self.want.returns_ids else None
        members: Members = {"index": choice.index}
        if self.want.is_chat:
            members["message"] = {
                "role": "assistant",
                "content": choice.text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            }
        else:
            members["text"] = choice.text
        members["logprobs"] = self._logprobs(choice, choice.chosen)
        members["finish_reason"] = choice.finish
        members["stop_reason"] = choice.stop_reason
        members["token_ids"] = ids
        if not self.want.is_chat:
            members["prompt_logprobs"] = None
            members["prompt_token_ids"] = choice.prompt if self.want.returns_ids else None
        members["routed_experts"] = None
        return members

    def role(self, choice: Choice) -> bytes:
        """The event that begins a chat's stream."""
        ids = choice.prompt if self.want.returns_ids else None
        members = self._chunk(
            {
                "index": choice.index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        )
        members |= {"prompt_token_ids": ids, "prompt_text": None}
        if self.want.continues_usage:
            members["usage"] = self.usage([choice], is_whole=False)
        return event(members)

    def _logprobs(self, choice: Choice, chosen: list[Chosen]) -> Members | None:
        """Those of a choice's next tokens, in the order in which they are told."""
        num_asked = self.want.sampling.num_logprobs
        if num_asked is None:
            return None
        if self.want.is_chat:
            return of_chat(chosen, self.spell, num_asked)
        told = of_completion(chosen, self.spell, num_asked, choice.num_named)
        choice.num_named += sum(map(len, told["tokens"]))
        return told

    def delta(self, choice: Choice, text: str, chosen: list[Chosen], *, is_first: bool) -> bytes:
        """The event of what a choice has gained; its end, too, once `finish` is set.

        Args:
            choice: With the gain in it.
            text: Gained.
            chosen: Gained.
            is_first: Whether the prompt's tokens go with it.
        """
        told = [each.token_id for each in chosen] if self.want.returns_ids else None
        logprobs = self._logprobs(choice, chosen)
        members: Members = {"index": choice.index}
        if self.want.is_chat:
            members |= {"delta": {"content": text}, "logprobs": logprobs}
            members["finish_reason"] = choice.finish
            if choice.finish is not None:
                members["stop_reason"] = choice.stop_reason
            members["token_ids"] = told
        else:
            members |= {"text": text, "logprobs": logprobs, "finish_reason": choice.finish}
            members["stop_reason"] = choice.stop_reason
            with_prompt = is_first and self.want.returns_ids
            members["prompt_token_ids"] = choice.prompt if with_prompt else None
            members["token_ids"] = told
        chunk = self._chunk(members)
        if self.want.continues_usage:
            usage = self.usage([choice], is_whole=False)
            usage.pop("prompt_tokens_details", None)
            chunk["usage"] = usage
        return event(chunk)

    def final_usage(self, choices: list[Choice]) -> bytes:
        """The event behind all choices' ends, where usage was asked for."""
        return event(
            {
                **self._chunk(None),
                "usage": self.usage(choices, is_whole=False),
                "system_fingerprint": self.fingerprint,
            }
        )

    def _chunk(self, choice: Members | None) -> Members:
        return {
            "id": self.answer_id,
            "object": "chat.completion.chunk" if self.want.is_chat else "text_completion",
            "created": self.created,
            "model": self.want.model,
            "choices": [] if choice is None else [choice],
        }
