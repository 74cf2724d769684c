"""What happened in a turn of the chat, from the engines' counts and the answer's headers.

Values in, lines and complaints out: knows no process and no socket.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from transload_engine.demo.chat import Answer, Counts
from transload_engine.demo.stage import DECODE, PREFILL

_ABSENT: Final = "nothing"
_INDENT: Final = " " * 10


@dataclass(frozen=True)
class Turn:
    """One turn.

    Attributes:
        answer: Of the router.
        prefill, decode: What these engines' counts grew by.
    """

    answer: Answer
    prefill: Counts
    decode: Counts

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return self.answer.num_prompt_tokens

    @property
    def num_found(self) -> int:
        """Of these, what prefill had cached."""
        return _count(self.prefill, "vllm:prompt_tokens_cached")

    @property
    def num_kept(self) -> int:
        """Of these, what decode had cached."""
        return _count(self.decode, "vllm:prefix_cache_hits")

    @property
    def num_loaded(self) -> int:
        """Of these, what decode loaded from prefill."""
        return _count(self.decode, "transload_kv_loaded_tokens")

    def header(self, name: str) -> str:
        """What the router says of this turn."""
        return self.answer.headers.get(f"x-transload-{name}", _ABSENT)

    def num_blocks(self, block_size: int) -> int:
        """Blocks of that size that the loaded tokens are in."""
        return -(-self.num_prompt // block_size) - self.num_kept // block_size


def grown(before: Counts, after: Counts) -> Counts:
    """What counts grew by."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def told(turn: Turn) -> Iterator[str]:
    """What happened where: the prompt read, its blocks moved, the answer written."""
    answer, moved = turn.answer, turn.decode
    prefill_s = _seconds(turn.header("prefill-seconds"))
    num_computed = turn.num_prompt - turn.num_found
    yield (
        f"  read    {turn.header('prefill')}: {num_computed:,} of the prompt's "
        f"{turn.num_prompt:,} tokens computed, {turn.num_found:,} found in its cache; "
        f"{prefill_s:.2f} s"
    )
    predicted = turn.header("predicted-cached-tokens")
    yield f"{_INDENT}found, as the router had predicted from the engine's events: {predicted}"
    yield (
        f"  moved   {turn.num_loaded:,} tokens: {turn.num_blocks(PREFILL.block_size)} blocks of "
        f"{PREFILL.block_size} became {turn.num_blocks(DECODE.block_size)} of {DECODE.block_size}; "
        f"{moved['transload_kv_loaded_bytes_total'] / 1e6:.2f} MB, converted and in place in "
        f"{moved['transload_kv_load_seconds_total']:.3f} s"
    )
    num_computed = turn.num_prompt - turn.num_kept - turn.num_loaded
    yield (
        f"  wrote   {turn.header('decode')}: {turn.num_kept:,} of the prompt's tokens found in its "
        f"cache, {turn.num_loaded:,} loaded, {num_computed:,} computed"
    )
    first_s, last_s = answer.first_token_s - prefill_s, answer.total_s - prefill_s
    yield (
        f"{_INDENT}{len(answer.token_ids)} tokens of answer: the first {first_s:.2f} s after the "
        f"prompt was read, the last {last_s:.2f} s"
    )


def compared(turn: Turn, alone: Answer) -> str:
    """What one engine alone made of the same prompt."""
    verdict = "the same" if alone.token_ids == turn.answer.token_ids else "OTHER"
    return f"{verdict} {len(alone.token_ids)} tokens, in {alone.total_s:.2f} s"


def complaints(turn: Turn, alone: Answer, *, is_first: bool) -> Iterator[str]:
    """What the turn was there to show, and does not."""
    if (path := turn.header("path")) != "disaggregated":
        yield f"two engines were to share it, and its path was {path}"
    if turn.num_loaded == 0:
        yield "decode was to load blocks, and loaded none"
    if turn.num_loaded + turn.num_kept != turn.num_prompt:
        yield f"{turn.num_prompt} tokens were to be loaded or cached at decode, and were not"
    if _count(turn.decode, "transload_kv_load_failures"):
        yield "no load was to fail, and one did"
    if not is_first and 0 in (turn.num_kept, turn.num_found):
        yield "both engines were to have the first turn cached, and one had not"
    if (predicted := turn.header("predicted-cached-tokens")) != str(turn.num_found):
        yield f"the router was to know of {turn.num_found} cached tokens, and knew of {predicted}"
    if not turn.answer.token_ids or alone.token_ids != turn.answer.token_ids:
        yield "the tokens were to be those of one engine alone, and were not"


def _count(counts: Counts, name: str) -> int:
    return int(counts[f"{name}_total"])


def _seconds(text: str) -> float:
    return float("nan") if text == _ABSENT else float(text)
