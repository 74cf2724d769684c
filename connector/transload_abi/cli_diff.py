"""What `transload abi diff` prints: two descriptors side by side, and the verdicts either way.

Lines have at most `WIDTH` characters. Groups of which the same is to be said are told together.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from transload_abi.compare import Comparison, Finding, Match, compare, match_groups
from transload_abi.compare_fields import (
    Difference,
    Verdict,
    group_differences,
    model_differences,
)
from transload_abi.compare_words import layers_words, layout_words, pool_words
from transload_abi.fingerprints import Fingerprints, of_groups
from transload_abi.picture import WIDTH
from transload_abi.types import Descriptor, Group, Pool

_MAX_NAME_CHARS: Final = 40
_FIELD_CHARS: Final = 14
_SIDE_CHARS: Final = 32
_VERDICT_CHARS: Final = 8

_ENDINGS: Final[dict[Verdict, str]] = {
    "identical": "pages are copied as they are",
    "lossless": "every value is kept",
    "lossy": "values are rounded; a plan needs --allow-lossy",
    "refused": "nothing can be moved",
}


class Row(NamedTuple):
    """One field with what either side says, and what follows in either direction."""

    field: str
    a: str
    b: str
    there: str = "-"
    back: str = "-"


def diff_text(names: tuple[str, str], a: Descriptor, b: Descriptor) -> tuple[str, Verdict]:
    """The whole text, and the verdict from A to B.

    Args:
        names: Of the files, A's and B's; long ones are cut so that they can be told apart.
        a: Checked.
        b: Checked.
    """
    there, back = compare(a, b), compare(b, a)
    lines = [
        f"{letter}  {_side_words(name, d)}"[:WIDTH]
        for letter, name, d in zip("AB", _cut_names(*names), (a, b), strict=True)
    ]
    model = [_row_of(each, each.verdict) for each in model_differences(a, b)]
    if model:
        lines += ["", "model", *_table(model)]
    matches = match_groups(a, b)
    lines += _sections(a, b, matches, there, back)
    if not matches:
        lines += ["", *_told("A -> B", there.findings), *_told("B -> A", back.findings)]
    absent = [*_absent("A", there), *_absent("B", back)]
    lines += ["", *absent] if absent else []
    lines += ["", *_ending(there.verdict, back.verdict)]
    return "\n".join(lines) + "\n", there.verdict


def _sections(
    a: Descriptor, b: Descriptor, matches: Iterable[Match], there: Comparison, back: Comparison
) -> Iterator[str]:
    titles: dict[tuple[str, ...], list[str]] = {}
    sides = _Side(a), _Side(b)
    found = _by_ids(there), _by_ids(back)
    for match in matches:
        told = (
            ("A -> B", found[0].get((match.src.id, match.dst.id), ())),
            ("B -> A", found[1].get((match.dst.id, match.src.id), ())),
        )
        body = tuple(_section(sides, match, told))
        ids = dict.fromkeys((match.src.id, match.dst.id))
        title = f"{' -> '.join(map(_short, ids))} ({layers_words(match.layers)})"
        titles.setdefault(body, []).append(title)
    for body, each in titles.items():
        yield ""
        yield from textwrap.wrap(", ".join(each), WIDTH, subsequent_indent="  ")
        yield from body


_Findings = tuple[tuple[str, Iterable[Finding]], ...]
"""Arrows, and the findings that way."""


def _by_ids(comparison: Comparison) -> dict[tuple[str, str], list[Finding]]:
    found: dict[tuple[str, str], list[Finding]] = {}
    for each in comparison.findings:
        found.setdefault((each.src, each.dst), []).append(each)
    return found


class _Side:
    """What is told of a descriptor's groups, worked out once for each of them."""

    def __init__(self, d: Descriptor) -> None:
        self._pools = {pool.id: pool for pool in d.pools}
        self._placements: dict[str, dict[str, str]] = {}
        ids = (group.id for group in d.groups)
        self.fingerprints = dict(zip(ids, of_groups(d), strict=True))

    def placement(self, group: Group) -> dict[str, str]:
        """Fields without any bearing on the verdict, and what they say."""
        if group.id not in self._placements:
            self._placements[group.id] = _placement(self._pools, group)
        return self._placements[group.id]


def _section(sides: tuple[_Side, _Side], match: Match, told: _Findings) -> Iterator[str]:
    a, b = sides
    src, dst, layers = match
    rows = [*_judged_rows(src, dst, layers)]
    shown = {row.field for row in rows}
    ours, theirs = a.placement(src), b.placement(dst)
    rows += [
        Row(field, words, theirs[field])
        for field, words in ours.items()
        if words != theirs[field] and field not in shown
    ]
    yield from _table(rows)
    for arrow, findings in told:
        yield from _told(arrow, findings)
    yield from _fingerprint_lines(a.fingerprints[src.id], b.fingerprints[dst.id])


def _judged_rows(src: Group, dst: Group, layers: tuple[int, ...]) -> Iterator[Row]:
    """A row for each difference; one for each direction where they say different things."""
    backward = {each.field: each for each in group_differences(dst, src, layers, "")}
    # Heads out of other totals are other heads: of them nothing can be said.
    unjudged = "heads" if src.owner.heads[2] != dst.owner.heads[2] else ""
    for each in group_differences(src, dst, layers, ""):
        back = backward.pop(each.field, None)
        if each.field == unjudged:
            yield Row(each.field, each.src, each.dst)
        elif back and (back.dst, back.src) == (each.src, each.dst):
            yield _row_of(each, back.verdict)
        else:
            yield _row_of(each, "-")
            if back:
                yield _row_back(back)
    yield from map(_row_back, backward.values())


def _row_back(difference: Difference) -> Row:
    return Row(difference.field, difference.dst, difference.src, "-", difference.verdict)


def _row_of(difference: Difference, back: str) -> Row:
    return Row(difference.field, difference.src, difference.dst, difference.verdict, back)


def _placement(pools_by_id: Mapping[str, Pool], group: Group) -> dict[str, str]:
    names = dict.fromkeys(pool for place in group.places for pool in place.pools)
    pools = [pools_by_id[name] for name in names]
    ordinal, count = group.owner.replica
    return {
        "kind": group.kind,
        "layout": layout_words(group),
        "memory": " and ".join(sorted({pool.memory for pool in pools})),
        "pools": pool_words(group),
        "blocks": str(min(pool.num_blocks for pool in pools)),
        "null block": "none" if group.null_block is None else str(group.null_block),
        "replica": "the only one" if count == 1 else f"{ordinal} of {count}",
    }


def _table(rows: list[Row]) -> Iterator[str]:
    if rows:
        yield from _row_lines(Row("", "A", "B", "A -> B", "B -> A"))
    for row in rows:
        yield from _row_lines(row)


def _row_lines(row: Row) -> Iterator[str]:
    widths = (_FIELD_CHARS, _SIDE_CHARS, _SIDE_CHARS, _VERDICT_CHARS, _VERDICT_CHARS)
    cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    for at in range(max(map(len, cells))):
        parts = (
            (cell[at] if at < len(cell) else "").ljust(width)
            for cell, width in zip(cells, widths, strict=True)
        )
        yield f"  {' '.join(parts)}".rstrip()


def _told(arrow: str, findings: Iterable[Finding]) -> Iterator[str]:
    sentences = (
        f"{arrow}  {finding.verdict}: {finding.reason or 'nothing in a page differs'}"
        for finding in findings
    )
    for words in dict.fromkeys(sentences):
        yield from textwrap.wrap(words, WIDTH, initial_indent="  ", subsequent_indent=" " * 10)


def _fingerprint_lines(a: Fingerprints, b: Fingerprints) -> Iterator[str]:
    same = [name for name in Fingerprints._fields if getattr(a, name) == getattr(b, name)]
    other = [name for name in Fingerprints._fields if name not in same]
    parts = [("the same", same), ("other", other)]
    told = "; ".join(f"{words}: {', '.join(names)}" for words, names in parts if names)
    yield f"  fingerprints  {told}"


def _absent(letter: str, comparison: Comparison) -> Iterator[str]:
    for sentence in comparison.absent:
        words = f"from {letter} to {sentence}"
        yield from textwrap.wrap(words, WIDTH, subsequent_indent="  ")


def _ending(there: Verdict, back: Verdict) -> Iterator[str]:
    if there == back:
        yield f"both ways {there}: {_ENDINGS[there]}"
        return
    for arrow, verdict in (("A -> B", there), ("B -> A", back)):
        yield f"{arrow} {verdict}: {_ENDINGS[verdict]}"


def _side_words(name: str, d: Descriptor) -> str:
    told = d.producer
    parts = (told.engine, told.version, told.backend, told.layout)
    made = " ".join(_short(part) for part in parts if part)
    return ", ".join(filter(None, (name, f"model {_short(d.model.name)}", made)))


def _cut_names(a: str, b: str) -> tuple[str, str]:
    """Names of files, long ones as their ends; where these are alike, as where they part."""
    ends = _end(a), _end(b)
    if ends[0] != ends[1] or a == b:
        return ends
    pairs = enumerate(zip(a, b, strict=False))
    num_common = next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))
    begin = max(0, num_common - _MAX_NAME_CHARS // 2)
    dots = "..." if begin else ""
    return _short(f"{dots}{a[begin:]}"), _short(f"{dots}{b[begin:]}")


def _end(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else f"...{name[3 - _MAX_NAME_CHARS :]}"


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 3]}..."
