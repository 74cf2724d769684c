"""A holder's blocks at a reader, over real sockets: every form, many at once, and who is told."""

import pytest

from support.transport_world import GROUP, asked, open_, pair, payload, soon

BLOCKS = [5, 9, 10, 11, 3]


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        ("block", {}),
        ("page", {}),
        ("page", {"layers": (1, 1)}),
        ("elements", {}),
        ("elements", {"heads": (1, 1)}),
        ("elements", {"layers": (0, 1), "heads": (0, 1)}),
    ],
)
@pytest.mark.parametrize("checksums", [False, True])
def test_a_read_brings_the_bytes_that_it_names(
    form: str, fields: dict[str, tuple[int, int]], checksums: bool
) -> None:
    with pair() as (holder, reader):
        holder.grant("h", BLOCKS)
        handoff = open_(reader, holder, "h")
        message = asked([(0, 2), (3, 2)], form=form, **fields)
        expected = payload(holder.descriptor, holder.memory, message, [5, 9, 11, 3])
        sink = bytearray(len(expected))
        future = reader.read(
            handoff,
            GROUP,
            message.blocks,
            [memoryview(sink)[:100], memoryview(sink)[100:]],
            form=message.form,
            checksums=checksums,
            **fields,
        )
        assert soon(future) == len(expected)
        assert sink == expected
        assert soon(reader.done(handoff)) == 0
        (freed,) = holder.wait_freed()
        assert (freed.handoff, freed.end, freed.num_ended) == ("h", "ended", 1)
