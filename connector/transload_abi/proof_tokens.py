"""Whether a batch's pieces are the tokens that the block lists say, token by token."""

from collections.abc import Sequence

from transload_abi.errors import ProofFailed
from transload_abi.plan.pieces import Blocks
from transload_abi.plan.types import Batch
from transload_abi.proof_bits import Bundle
from transload_abi.types import Group

State = tuple[int, int]
"""Block id and state within the block."""


def check_tokens(batch: Batch, bundle: Bundle, blocks: Blocks, path: str) -> None:
    """Compare a batch's pieces with the states that every token has on either side.

    Raises:
        ProofFailed: A piece holds another token than the lists say, is not asked for, or is not
            moved although the last token of the request sees it.
    """
    states = bundle.src.states_per_block // batch.src_parts
    moved: dict[State, State] = {}
    for src, dst, count in batch.sequences:
        for i in range(count):
            ours, theirs = divmod(src + i, batch.src_parts), divmod(dst + i, batch.dst_parts)
            moved[(theirs[0], theirs[1] * states)] = (ours[0], ours[1] * states)
    asked: set[State] = set()
    for (block, state), source, is_seen in _tokens(bundle, blocks):
        piece = (block, state // states * states)
        into = state - piece[1]
        if piece not in moved:
            if is_seen:
                raise ProofFailed(f"state {state} of block {block} is not moved", path)
            continue
        if source is None or moved[piece] != (source[0], source[1] - into):
            raise ProofFailed(f"state {state} of block {block} comes from another token", path)
        asked.add(piece)
    unasked = moved.keys() - asked
    if unasked:
        raise ProofFailed(f"block {min(unasked)[0]}: a piece without a token is moved", path)


def _tokens(bundle: Bundle, blocks: Blocks) -> list[tuple[State, State | None, bool]]:
    """For each token where it goes to, where it is, and whether the last token sees it."""
    kind, window = bundle.dst.kind, bundle.dst.window
    first, end = blocks.first_token, blocks.num_tokens
    if kind == "cross" and blocks.num_encoder_tokens is not None:
        first, end = 0, blocks.num_encoder_tokens
    if kind in ("recurrent", "ring"):
        last = blocks.src[bundle.src.table][-1:], blocks.dst[bundle.dst.table][-1:]
        if first == end or last[1][0] == bundle.dst.null_block:
            return []
        return [
            ((last[1][0], state), (last[0][0], state), True)
            for state in range(bundle.dst.states_per_block)
        ]
    seen = 0
    if kind in ("sliding_window", "sliding_window_mla"):
        seen = end - window
    elif kind == "chunked_local":
        seen = end - 1 - (end - 1) % window
    found = []
    for token in range(first, end):
        theirs = _states(bundle.dst, blocks.dst[bundle.dst.table], token, end)
        ours = _states(bundle.src, blocks.src[bundle.src.table], token, end)
        if theirs is None or ours is None:
            continue
        for into, source in zip(theirs, ours, strict=True):
            if into[0] is not None:
                start = None if source[0] is None else (source[0], source[1])
                found.append(((into[0], into[1]), start, token >= seen))
    return found


def _states(
    group: Group, ids: Sequence[int], token: int, end: int
) -> list[tuple[int | None, int]] | None:
    """Block (None: not held) and state of a token; None where it is another rank's."""
    tokens, per_block = group.owner.tokens, group.tokens_per_block
    run, cycle = tokens.interleave, tokens.interleave * tokens.size
    if token // run % tokens.size != tokens.rank:
        return None
    local = token // cycle * run + token % run
    if tokens.size == 1 or per_block % run == 0:
        num_blocks = -(-end // (per_block * tokens.size))
    else:
        held = sum(one // run % tokens.size == tokens.rank for one in range(end))
        num_blocks = -(-held // per_block)
    at = local // per_block - (num_blocks - len(ids))
    block = None if at < 0 or ids[at] == group.null_block else int(ids[at])
    numerator, denominator = group.tokens_per_state
    inside = local % per_block
    first, last = inside * denominator // numerator, -(-(inside + 1) * denominator // numerator)
    return [(block, state) for state in range(first, last)]
