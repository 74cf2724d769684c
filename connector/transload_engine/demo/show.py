"""The demonstration itself: what it starts, asks and tells, in this order."""

import sys
import time
from typing import Final

from transload_engine.demo.chat import Answer, AskFailed, Message, ask, counts
from transload_engine.demo.checkpoint import cache_root, ensure
from transload_engine.demo.stage import Stage
from transload_engine.demo.turns import Turn, compared, complaints, grown, told

PROMPT: Final = (
    "In the nineteenth century every railway chose how far apart its rails should lie. Where two "
    "companies met with different gauges, no wagon could go on, and so all that was in it had to "
    "be transloaded: carried over the platform, by hand, from the wagon on this side to a wagon on "
    "that side. The towns where this was done grew rich, and the goods grew late. Some stations "
    "laid a third rail, some lifted whole wagons onto other wheels, and a few built axles whose "
    "wheels could be moved along them while the train was rolling slowly over a special track. "
    "Engines that serve language models are built by several companies, too. What they compute "
    "for a prompt is the same, but each stores it in its own order: by layer, by head, by token, "
    "in blocks of this or that many tokens. Explain to somebody who has never seen a railway what "
    "it takes to carry a prompt's cache from one such engine to another, what could be lost on "
    "the way, and how both sides can be certain that nothing was."
)
QUESTION: Final = "And what would change if both stored it alike?"

INTRODUCTION: Final = """\
Two engines on this machine share the work: prefill reads prompts, decode writes answers. What
prefill computed of a prompt, its KV cache, travels to decode; the router sees to it. The model is
small and its weights are random: the answers are noise, all else is as with a real one.
"""

ALONE_SALT: Final = "alone"
"""Prompts asked with it find nothing cached of those asked without."""

CURL: Final = """\
curl -i {url}/v1/chat/completions -H 'content-type: application/json' \\
  -H 'x-transload-explain: 1' \\
  -d '{{"model": "demo", "max_tokens": 16, "messages": [{{"role": "user", "content": "hello"}}]}}'
"""


class NotShown(RuntimeError):
    """Something is not as the demonstration says; the text tells what."""


def show(*, is_oneshot: bool) -> None:
    """Show all of it, and serve until interrupted unless it is for one time.

    Raises:
        NotShown: Something is not as it says.
        ProcessFailed: An engine or the router ended, or does not come up.
        AskFailed: One of them does not answer.
        OSError: Likewise, or the model cannot be written.
        KeyboardInterrupt: It was interrupted before it served.
    """
    begun = time.monotonic()
    say(INTRODUCTION)
    model = ensure(cache_root())
    say(f"The model: {model}")
    say("Starting two engines, whose caches lie differently in memory:")
    with Stage(model) as stage:
        from transload_engine.demo.pages import pages_text

        say("")
        say(pages_text(model))
        prefill, decode = stage.wait_engines()
        say(f"prefill-0  {prefill}")
        say(f"decode-0   {decode}")
        say("Starting the router, which has a block handed from one to the other ...")
        router = stage.wait_router(prefill, decode)
        say(f"router     {router}   ready after {time.monotonic() - begun:.1f} s")
        try:
            _chat(router, prefill, decode)
        except (AskFailed, OSError):
            stage.check()
            raise
        if not is_oneshot:
            _serve(stage, router)


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _chat(router: str, prefill: str, decode: str) -> None:
    """Two turns, and the same of one engine alone."""
    messages: list[Message] = [{"role": "user", "content": PROMPT}]
    turns: list[tuple[Turn, Answer]] = []
    for name in ("first", "second"):
        say("")
        say(f"The {name} turn, asked of the router: {messages[-1]['content'][:46]} ...")
        turn = _turn(router, prefill, decode, messages)
        for line in told(turn):
            say(line)
        turns.append((turn, ask(prefill, messages, salt=ALONE_SALT)))
        messages.append({"role": "assistant", "content": turn.answer.text})
        messages.append({"role": "user", "content": QUESTION})
    say("")
    say("The same asked of prefill-0 alone, where nothing moves:")
    for name, (turn, alone) in zip(("first", "second"), turns, strict=True):
        say(f"  {name:<8}{compared(turn, alone)}")
    found = [
        f"  {name} turn: {each}"
        for name, (turn, alone) in zip(("first", "second"), turns, strict=True)
        for each in complaints(turn, alone, is_first=name == "first")
    ]
    if found:
        raise NotShown("\n".join(["not everything is as it should be:", *found]))


def _turn(router: str, prefill: str, decode: str, messages: list[Message]) -> Turn:
    before = counts(prefill), counts(decode)
    sys.stdout.write('  "')
    answer = ask(router, messages, show=_show_piece)
    say('"')
    after = counts(prefill), counts(decode)
    return Turn(answer, grown(before[0], after[0]), grown(before[1], after[1]))


def _show_piece(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _serve(stage: Stage, router: str) -> None:
    try:
        say("")
        say("Serving until Ctrl-C. Try:")
        say(CURL.format(url=router))
        stage.wait_end()
    except KeyboardInterrupt:
        say("Ending ...")
