"""What differs between two models and two groups, field by field, and what each difference means.

Paths are those of the destination.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

from transload_abi.canonical import canonical_group
from transload_abi.compare_codecs import codec_differences, value_differences, value_roles
from transload_abi.compare_difference import Difference, Verdict, differ
from transload_abi.compare_words import (
    SHORT_WORDS,
    heads_words,
    layout_words,
    shared_marks,
    shared_orders,
    short,
    tokens_words,
)
from transload_abi.errors import MalformedDescriptor
from transload_abi.floats import read_float
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.types import Descriptor, Group, Model, Param, Role

__all__ = ["Difference", "Verdict", "group_differences", "model_differences"]

# --- the model


def model_differences(src: Descriptor, dst: Descriptor) -> Iterator[Difference]:
    """Everything about the models that forbids to convert; all of it is `refused`."""
    a, b = src.model, dst.model
    if src.abi != dst.abi:
        yield differ("abi", "version", (src.abi, dst.abi), "refused")
    yield from _identity_differences(a, b)
    if a.adapter != b.adapter:
        words = (a.adapter or "none", b.adapter or "none")
        yield differ("model.adapter", "adapter", words, "refused")
    yield from _rope_differences(a, b)
    if a.num_layers != b.num_layers:
        counts = (a.num_layers, b.num_layers)
        yield differ("model.num_layers", "layers of the model", counts, "refused")
    if set(a.kv_share) != set(b.kv_share):
        words = (_share_words(a), _share_words(b))
        yield differ("model.kv_share", "layers that read another's KV", words, "refused")


def _identity_differences(a: Model, b: Model) -> Iterator[Difference]:
    if a.weights and b.weights:
        if a.weights != b.weights:
            words = (_weights_words(a), _weights_words(b))
            yield differ("model.weights", "weights", words, "refused")
    elif a.name != b.name:
        yield differ("model.name", "model", (a.name, b.name), "refused")
    elif a.revision != b.revision:
        words = (a.revision or "unknown", b.revision or "unknown")
        yield differ("model.revision", f"revision of {short(a.name)}", words, "refused")
    elif not a.revision:
        words = (_weights_words(a), _weights_words(b))
        note = "no revision either, so nobody can tell whether it is the same model"
        yield differ("model.weights", "weights", words, "refused", note)


def _weights_words(model: Model) -> str:
    return f"{short(model.name)[:40]} {model.weights[:15]}..." if model.weights else "unknown"


def _rope_differences(a: Model, b: Model) -> Iterator[Difference]:
    field = "rotary embedding"
    states = (a.rope.state, b.rope.state)
    if "unknown" in states:
        note = "who does not know cannot convert"
        yield differ("model.rope.state", field, states, "refused", note)
    elif a.rope.state != b.rope.state:
        yield differ("model.rope.state", field, states, "refused")
    for name in sorted(a.rope.params.keys() | b.rope.params.keys()):
        ours, theirs = (_param_value(model.rope.params.get(name)) for model in (a, b))
        if ours != theirs:
            words = _param_words(ours, theirs)
            yield Difference(
                f"model.rope.params.{short(name)}",
                f"{field}, {short(name)}",
                *words,
                "refused",
                f"{field}: the source's {short(name)} is {words[0]}, the destination's {words[1]}",
            )


_Value = float | int | str | list["_Value"] | None


def _param_value(param: Param | None) -> _Value:
    """Numbers by value, so that 8 and `f64:4020000000000000` are the same."""
    if isinstance(param, list):
        return [_param_value(each) for each in param]
    if isinstance(param, str):
        try:
            return read_float(param)
        except MalformedDescriptor:
            return param
    return param


def _param_words(ours: _Value, theirs: _Value) -> tuple[str, str]:
    """What differs, in words; of long lists where they begin to."""
    words = _value_words(ours), _value_words(theirs)
    if max(map(len, words)) > MAX_QUOTED_CHARS and isinstance(ours, list):
        at, pair = _first_difference(ours, theirs if isinstance(theirs, list) else [])
        return f"{short(pair[0])} at index {at}", f"{short(pair[1])} at index {at}"
    return short(words[0]), short(words[1])


def _first_difference(ours: list[_Value], theirs: list[_Value]) -> tuple[int, tuple[str, str]]:
    pairs = enumerate(zip_longest(ours, theirs))
    at, (a, b) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    return at, (_value_words(a), _value_words(b))


def _value_words(value: _Value) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value_words, value))}]"
    if isinstance(value, float):
        return f"{value:.17g}"
    return "not given" if value is None else str(value)


def _share_words(model: Model) -> str:
    pairs = ", ".join(f"{layer} of {source}" for layer, source in sorted(model.kv_share))
    return pairs or "none"


# --- groups


def group_differences(
    src: Group, dst: Group, layers: Sequence[int], path: str
) -> Iterator[Difference]:
    """Everything that differs and has a bearing on moving these layers, gravest kinds first.

    Args:
        src: A group of a checked descriptor.
        dst: Likewise.
        layers: What both hold, at least one.
        path: Of the destination's group.
    """
    found = _differences(src, dst, layers, path)
    if dst.opaque:
        found = map(_moved_as_it_is, sorted(found, key=_opaque_rank))
    yield from found


def _differences(src: Group, dst: Group, layers: Sequence[int], path: str) -> Iterator[Difference]:
    if src.opaque != dst.opaque:
        words = (src.opaque or "known", dst.opaque or "known")
        note = "what nobody has shown to be true moves only between those who say the same"
        yield differ(f"{path}.opaque", "who writes the pages", words, "refused", note)
    yield from _kind_differences(src, dst, path)
    yield from _role_differences(src, dst, path)
    yield from _slice_differences(src, dst, path)
    if {role.role for role in value_roles(src)} == {role.role for role in value_roles(dst)}:
        yield from codec_differences(src, dst, path)
        yield from value_differences(src, dst, layers, path)
        yield from _layout_differences(src, dst, path)


def _moved_as_it_is(found: Difference) -> Difference:
    """What a difference means where nobody has shown what is inside of the pages."""
    if found.verdict == "refused" or found.field == "kind":
        return found
    words = (found.src, found.dst)
    note = "pages whose inside nobody has shown move only as they are"
    path = re.sub(r"(codec\.params\..*)\[\d+\]$", r"\1", found.path)
    return differ(path, found.field, words, "refused", note)


_OPAQUE_FIELDS: Final = (
    "tokens_per_block",
    "owner.heads",
    "owner.tokens",
    "codec.params",
    "dtype",
    "roles",
)
"""In the order in which an opaque group's are named."""


def _opaque_rank(found: Difference) -> int:
    """What refuses any group comes first, then what only an opaque one may not change."""
    if found.verdict == "refused" or found.field == "kind":
        return 0
    ranks = (rank for rank, name in enumerate(_OPAQUE_FIELDS, 1) if name in found.path)
    return next(ranks, 0)


def _kind_differences(src: Group, dst: Group, path: str) -> Iterator[Difference]:
    if src.kind != dst.kind:
        verdict, note = _kind_verdict(src, dst)
        yield differ(f"{path}.kind", "kind", (src.kind, dst.kind), verdict, note)
    if src.window != dst.window:
        windows = (_window_words(src), _window_words(dst))
        yield differ(f"{path}.window", "window", windows, "refused")
    if src.tokens_per_state != dst.tokens_per_state:
        states = (_state_words(src), _state_words(dst))
        is_recurrent = src.kind == dst.kind == "recurrent"
        note = "a state cannot be had at another position" if is_recurrent else ""
        yield differ(f"{path}.tokens_per_state", "tokens of a state", states, "refused", note)
    if src.owner.heads[2] != dst.owner.heads[2]:
        totals = (src.owner.heads[2], dst.owner.heads[2])
        yield differ(f"{path}.owner.heads", "heads of the model", totals, "refused")


def _kind_verdict(src: Group, dst: Group) -> tuple[Verdict, str]:
    if (src.kind, dst.kind) == ("full", "sliding_window"):
        return "lossless", "the source holds all tokens, the window's among them"
    if (src.kind, dst.kind) == ("sliding_window", "full"):
        return "refused", "the source has dropped the tokens before its window"
    latents = [group.kind in ("mla", "sliding_window_mla") for group in (src, dst)]
    if latents == [True, False]:
        return "refused", "K and V of heads come from latents by the model's weights alone"
    if latents == [False, True]:
        return "refused", "no latent can be had from K and V"
    return "refused", "neither is made of the other"


def _window_words(group: Group) -> str:
    return f"{group.window} tokens" if group.window else "none"


def _state_words(group: Group) -> str:
    numerator, denominator = group.tokens_per_state
    return str(numerator) if denominator == 1 else f"{numerator}/{denominator}"


def _role_differences(src: Group, dst: Group, path: str) -> Iterator[Difference]:
    ours, theirs = value_roles(src), value_roles(dst)
    if [role.role for role in ours] != [role.role for role in theirs]:
        words = (_roles_words(ours), _roles_words(theirs))
        yield differ(f"{path}.roles", "what a page holds", words, "refused")
        return
    for a, b in zip(ours, theirs, strict=True):
        sizes = (a.shape.get("D"), b.shape.get("D"))
        if sizes[0] != sizes[1]:
            at = f"{path}.roles[{dst.roles.index(b)}].shape.D"
            yield differ(at, f"elements of {SHORT_WORDS[a.role]}", sizes, "refused")


def _roles_words(roles: list[Role]) -> str:
    return " and ".join(SHORT_WORDS[role.role] for role in roles)


def _slice_differences(src: Group, dst: Group, path: str) -> Iterator[Difference]:
    a, b = canonical_group(src).owner, canonical_group(dst).owner
    note = "what both hold moves"
    if a.heads[:2] != b.heads[:2]:
        heads = (heads_words(a.heads), heads_words(b.heads))
        yield differ(f"{path}.owner.heads", "heads", heads, "lossless", note)
    if a.tokens != b.tokens:
        tokens = (tokens_words(a.tokens), tokens_words(b.tokens))
        yield differ(f"{path}.owner.tokens", "tokens", tokens, "lossless", note)
    sizes = (src.tokens_per_block, dst.tokens_per_block)
    if sizes[0] != sizes[1]:
        at = f"{path}.tokens_per_block"
        if dst.kind == "ring":
            yield differ(at, "tokens of a block", sizes, "refused", "a ring is one block")
        else:
            yield differ(at, "tokens of a block", sizes, "lossless", "blocks are cut or joined")


# --- layouts


def _layout_differences(src: Group, dst: Group, path: str) -> Iterator[Difference]:
    """At most one: of the first role that lies differently in its page.

    Other slices, block sizes and dtypes change strides by themselves; there only another order
    counts.
    """
    words = (layout_words(src), layout_words(dst))
    indices = {role.role: index for index, role in enumerate(dst.roles)}
    src, dst = canonical_group(src), canonical_group(dst)
    for b in dst.roles:
        a = src.role(b.role)
        field = _stride_field(a, b) if a else ""
        if a is None or not field:
            continue
        orders = shared_orders(src, a, dst, b)
        at = f"{path}.roles[{indices[b.role]}].{field}"
        if orders[0] != orders[1]:
            reason = _order_reason(SHORT_WORDS[b.role], *orders)
            yield Difference(at, "layout", *words, "lossless", reason)
            return
        marks = shared_marks(src, dst)
        if marks[0] != marks[1] or (a.bits == b.bits and _is_same_slice(src, dst)):
            yield Difference(at, "layout", *words, "lossless", _mark_reason(*words))
            return


def _order_reason(name: str, ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    what = "a transpose" if ours[-1] != theirs[-1] else "rows in another order"
    return (
        f"{name} is stored [{', '.join(ours)}] at the source and [{', '.join(theirs)}] "
        f"at the destination: {what}, no bit changes"
    )


def _mark_reason(ours: str, theirs: str) -> str:
    if ours == theirs:
        return f"stored {ours} on both sides, with other pads: no bit changes"
    return f"stored {ours} at the source and {theirs} at the destination: no bit changes"


def _stride_field(a: Role, b: Role) -> str:
    """The first field that places a canonical role's elements differently in the page."""
    fields = ("terms", "base_bits", "place")
    return next((name for name in fields if getattr(a, name) != getattr(b, name)), "")


def _is_same_slice(src: Group, dst: Group) -> bool:
    return (
        src.tokens_per_block == dst.tokens_per_block
        and src.owner.heads == dst.owner.heads
        and src.owner.tokens == dst.owner.tokens
    )
