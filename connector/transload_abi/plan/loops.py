"""Templates made fewer and runs made longer, without a change to what is copied."""

from collections.abc import Iterable

from transload_abi.plan.axes import Nest, compress
from transload_abi.plan.types import Loop, Template


def settle(run: int, loops: Iterable[Loop]) -> tuple[int, tuple[Loop, ...]]:
    """The longest run and the fewest loops that visit the same; by destination stride, descending.

    The loops may come in any order. Bits or bytes: one unit for all.
    """
    rising = sorted((loop for loop in loops if loop[0] > 1), key=lambda loop: (loop[2], loop[1]))
    kept: list[Loop] = []
    for count, src_step, dst_step in rising:
        if src_step == dst_step == run:
            run *= count
            continue
        for at, (inner, src_inner, dst_inner) in enumerate(kept):
            if src_step == inner * src_inner and dst_step == inner * dst_inner:
                kept[at] = (inner * count, src_inner, dst_inner)
                break
        else:
            kept.append((count, src_step, dst_step))
    return run, tuple(reversed(kept))


def merge(templates: Iterable[Template]) -> tuple[Template, ...]:
    """Fewer templates: neighbours become one run, equal ones at even distances a loop."""
    merged = sorted(templates, key=_order)
    while True:
        fewer = _fold(_join(merged))
        if len(fewer) == len(merged):
            return tuple(fewer)
        merged = fewer


def _order(template: Template) -> tuple[str, str, int, int]:
    return template.dst.pool, template.src.pool, template.dst.offset, template.src.offset


def _company(template: Template) -> tuple[object, ...]:
    """What templates must have in common to become one."""
    src, dst = template.src, template.dst
    strides = (src.block_stride, dst.block_stride, src.part_offsets, dst.part_offsets)
    return (src.pool, dst.pool, *strides, template.loops)


def _join(templates: list[Template]) -> list[Template]:
    last: dict[tuple[object, ...], int] = {}
    joined: list[Template] = []
    for template in templates:
        company = _company(template)
        at = last.get(company, -1)
        if at >= 0 and _follows(joined[at], template):
            joined[at] = joined[at]._replace(
                run_bytes=joined[at].run_bytes + template.run_bytes,
            )
        else:
            last[company] = len(joined)
            joined.append(template)
    return [_settled(template) for template in joined]


def _follows(first: Template, second: Template) -> bool:
    run = first.run_bytes
    return (
        second.src.offset == first.src.offset + run and second.dst.offset == first.dst.offset + run
    )


def _settled(template: Template) -> Template:
    run_bytes, loops = settle(template.run_bytes, template.loops)
    return template._replace(run_bytes=run_bytes, loops=loops)


def _fold(templates: list[Template]) -> list[Template]:
    folded: list[Template] = []
    alike: dict[object, list[Template]] = {}
    for template in templates:
        alike.setdefault((_company(template), template.run_bytes), []).append(template)
    for (first, *_), same in ((group, group) for group in alike.values()):
        nests = [Nest(one.src.offset, one.dst.offset, one.loops) for one in same]
        for src, dst, loops in compress(nests):
            run_bytes, settled = settle(first.run_bytes, loops)
            folded.append(
                first._replace(
                    src=first.src._replace(offset=src),
                    dst=first.dst._replace(offset=dst),
                    run_bytes=run_bytes,
                    loops=settled,
                )
            )
    return sorted(folded, key=_order)
