"""One generation request on its way through an engine, from its body to its last byte."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from transload_engine.core.handoff import Handoff
from transload_engine.core.request import Ask, Finish
from transload_engine.core.runner import Chosen
from transload_engine.core.serving import Output
from transload_engine.server.rank import Rank
from transload_engine.server.shapes import DONE, Choice, Shapes, event
from transload_engine.server.tokens import AnswerText, Tokenizer
from transload_engine.server.wants import Refusal, Want


class LoadFailed(Refusal):
    """The engine gave a request up."""

    def __init__(self) -> None:
        super().__init__("Internal server error", status=500, kind="InternalServerError")


class Gone(Exception):
    """The client has left."""


Gain = tuple[Choice, str, list[Chosen]]
"""What a choice gained: text, and the tokens of it or of text that is held back yet."""


def _spell_id(token: int) -> str:
    return f"token_id:{token}"


class Generation:
    """All choices of one request. `close` must follow, whatever happened.

    Args:
        want: What was asked.
        rank: That serves it.
        tokenizer: The engine's.
        asked_id: The client's id of the request, None where it gave none.
        fingerprint: Of the engine.
        reports_cached: Whether usage tells of cached tokens.
    """

    def __init__(
        self,
        want: Want,
        rank: Rank[Any],
        tokenizer: Tokenizer,
        asked_id: str | None,
        *,
        fingerprint: str,
        reports_cached: bool,
    ) -> None:
        prefix = "chatcmpl" if want.is_chat else "cmpl"
        answer_id = f"{prefix}-{asked_id or uuid.uuid4().hex[:16]}"
        self.choices: list[Choice] = []
        self.handoff: dict[str, Any] | None = None
        self._want = want
        self._rank = rank
        spell = _spell_id if want.names_ids else tokenizer.name
        self._shapes = Shapes(want, answer_id, int(time.time()), spell, fingerprint, reports_cached)
        self._texts: list[AnswerText] = []
        self._untold: list[str] = []
        # What may become a stop string is held back until it cannot, as in vLLM's detokenizer.
        self._num_held_back = max((len(stop) - 1 for stop in want.stop), default=0)
        self._ids: dict[str, int] = {}
        self._arrived: list[Output] = []
        self._arrival = asyncio.Event()
        self._is_gone = False
        self._put_in(tokenizer)

    def _put_in(self, tokenizer: Tokenizer) -> None:
        want = self._want
        for number, prompt in enumerate(want.prompts):
            for copy in range(want.num_choices):
                self.choices.append(Choice(len(self.choices), prompt))
                self._texts.append(AnswerText(tokenizer))
                self._untold.append("")
                suffix = uuid.uuid4().hex[:8]
                place = "" if want.is_chat else f"-{number}"
                child = f"{copy}_" if want.num_choices > 1 else ""
                request_id = f"{child}{self._shapes.answer_id}{place}-{suffix}"
                self._ids[request_id] = len(self.choices) - 1
                self._rank.ask(request_id, self._ask(prompt, copy), self._receive)

    def _ask(self, prompt: list[int], copy: int) -> Ask:
        want = self._want
        sampling = want.sampling
        if copy and sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + copy)
        return Ask(
            prompt=prompt,
            max_tokens=want.max_tokens,
            min_tokens=want.min_tokens,
            ignore_eos=want.ignores_eos,
            stop_token_ids=want.stop_token_ids,
            cache_salt=want.cache_salt,
            choice=copy,
            sampling=sampling,
            hands_off=bool(want.handoff.get("do_remote_decode")),
            num_readers=want.num_readers,
            handoff=Handoff.read(want.handoff),
        )

    def leave(self) -> None:
        """The client has left: whoever waits for outputs hears of it."""
        self._is_gone = True
        self._arrival.set()

    def close(self) -> None:
        """Abort what has not ended."""
        for request_id, index in self._ids.items():
            if self.choices[index].finish is None:
                self._rank.abort(request_id)

    async def whole(self) -> bytes:
        """The answer's body.

        Raises:
            LoadFailed: As the class says.
            Gone: The client has left.
        """
        async for _ in self._gains():
            pass
        return self._shapes.whole(self.choices, self.handoff)

    async def stream(self) -> AsyncIterator[bytes]:
        """The answer's events, as many at a time as a step brought.

        Raises:
            Gone: The client has left.
        """
        told: set[int] = set()
        try:
            async for gains in self._gains():
                parts = []
                if self._want.is_chat and not told:
                    parts = [self._shapes.role(choice) for choice in self.choices]
                for choice, text, chosen in gains:
                    is_first = choice.index not in told
                    told.add(choice.index)
                    parts.append(self._shapes.delta(choice, text, chosen, is_first=is_first))
                yield b"".join(parts)
        except LoadFailed as failure:
            yield event(failure.body) + DONE
            return
        last = [self._shapes.final_usage(self.choices)] if self._want.includes_usage else []
        yield b"".join([*last, DONE])

    async def _gains(self) -> AsyncIterator[list[Gain]]:
        """What choices gained, until all have ended."""
        while any(choice.finish is None for choice in self.choices):
            await self._arrival.wait()
            self._arrival.clear()
            if self._is_gone:
                raise Gone
            outputs, self._arrived = self._arrived, []
            gains = [gain for output in outputs if (gain := self._take(output))]
            if gains:
                yield gains

    def _receive(self, output: Output) -> None:
        self._arrived.append(output)
        self._arrival.set()

    def _take(self, output: Output) -> Gain | None:
        choice = self.choices[self._ids[output.request_id]]
        if choice.finish is not None:
            return None
        if output.finish is Finish.ERROR:
            choice.finish = Finish.ERROR
            raise LoadFailed
        if output.num_cached_tokens is not None:
            self._shapes.num_cached = self._cached(output.num_cached_tokens)
        self.handoff = output.handoff or self.handoff
        chosen = [] if output.chosen is None else [output.chosen]
        choice.chosen += chosen
        choice.token_ids += output.token_ids
        choice.finish, choice.stop_reason = output.finish, output.stop_reason
        # A token that was asked to stop at is not part of the text, unless that was asked for, too.
        is_stop_token = choice.stop_reason is not None and not self._want.keeps_stop
        shown = () if is_stop_token else output.token_ids
        text = self._told(choice, self._texts[choice.index].push(shown))
        if choice.finish is Finish.STOP and output.finish is None:
            self._rank.abort(output.request_id)
        choice.text += text
        return choice, text, chosen

    def _told(self, choice: Choice, text: str) -> str:
        """What can be told of a choice that gained this text; ends it at a stop string."""
        untold = self._untold[choice.index] + text
        may_stop = len(choice.token_ids) > self._want.min_tokens
        for stop in self._want.stop if may_stop else ():
            at = untold.find(stop)
            if at >= 0:
                choice.finish, choice.stop_reason = Finish.STOP, stop
                return untold[: at + len(stop) * self._want.keeps_stop]
        end = len(untold)
        if choice.finish is None:
            end = max(end - self._num_held_back, 0)
        self._untold[choice.index] = untold[end:]
        return untold[:end]

    def _cached(self, num_cached: int) -> int:
        """What prefill said it had, where this engine loaded a prompt; else its own."""
        told = self._want.handoff.get("remote_prefill_cached_tokens")
        return (
            told if self._want.handoff.get("do_remote_prefill") and told is not None else num_cached
        )
