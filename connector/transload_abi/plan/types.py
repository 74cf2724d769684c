"""What a plan is made of: templates that hold for any block, and the blocks to apply them to.

**Theory.** A pair of descriptors is compiled once into *templates*: where the bytes of one *piece*
lie on either side. A piece is the largest count of states that both sides' blocks divide into (the
whole block where block sizes agree), so a block is one or more *parts* and a piece is part `p` of
block `b`. A request then only names pieces: *sequences* of consecutive ones. Both stay apart until
somebody asks for addresses, so the work of planning grows with the blocks asked for, and neither
with layers nor with the size of a pool.
"""

from typing import NamedTuple

Loop = tuple[int, int, int]
"""Count, source stride and destination stride; bytes, except in a `Conversion`."""


class Side(NamedTuple):
    """Where a template's first byte is for piece (block, part) on one side.

    The byte is `offset + block * block_stride + part_offsets[part]` of the pool.

    Attributes:
        pool: Id of the pool.
        offset: Bytes, of block 0 and part 0.
        block_stride: Bytes.
        part_offsets: Bytes, one per part of a block; `(0,)` where a piece is a block.
    """

    pool: str
    offset: int
    block_stride: int
    part_offsets: tuple[int, ...] = (0,)


class Template(NamedTuple):
    """A strided copy that is made once for each piece.

    Attributes:
        src: Where the first run is read.
        dst: Where the first run is written.
        run_bytes: Bytes that lie together on both sides.
        loops: Further runs: outermost first.
    """

    src: Side
    dst: Side
    run_bytes: int
    loops: tuple[Loop, ...] = ()


class Operand(NamedTuple):
    """The elements of one role on one side of a conversion, for one piece of one layer.

    Attributes:
        role: Its name.
        dtype: Of its elements.
        side: Where index 0 of the converted range is; `bit` is to be added.
        bit: 0 to 7 within that byte.
        shape: Extents of the converted range by axis.
        terms: As in a descriptor, with index 0 at the range's start.
        values: The scale of the role and layer among the codec's parameters; None: there is none.
    """

    role: str
    dtype: str
    side: Side
    bit: int
    shape: dict[str, int]
    terms: tuple[tuple[str, int, int, int], ...]
    values: str | None = None


class Conversion(NamedTuple):
    """Elements whose bits change: once for each piece and layer.

    Attributes:
        role: The value role that is converted.
        layer: The model's layer.
        src_codec, dst_codec: Ids of the codecs.
        src, dst: The role's own operand first, then its scales in the page if it has them. The
            extents of `D` and `G` say how many elements share one.
    """

    role: str
    layer: int
    src_codec: str
    dst_codec: str
    src: tuple[Operand, ...]
    dst: tuple[Operand, ...]


class Sequence(NamedTuple):
    """Consecutive pieces: piece `i` is the `i`-th after the first on both sides.

    Pieces are counted in parts: piece number `q` of a side is part `q % parts` of block
    `q // parts`.

    Attributes:
        src: Piece number of the first on the source.
        dst: Piece number of the first on the destination.
        num_pieces: How many.
    """

    src: int
    dst: int
    num_pieces: int


class Copy(NamedTuple):
    """A strided copy with addresses: what templates and sequences come to.

    Attributes:
        src_pool, dst_pool: Ids of the pools.
        src, dst: Byte offset of the first run in its pool.
        run_bytes: Bytes of each run.
        loops: Further runs, outermost first.
    """

    src_pool: str
    dst_pool: str
    src: int
    dst: int
    run_bytes: int
    loops: tuple[Loop, ...] = ()


class Batch(NamedTuple):
    """One table's share of a plan.

    Attributes:
        table: Of the destination's groups.
        templates: Copies to make for each piece.
        conversions: Conversions to make for each piece.
        src_parts, dst_parts: Pieces in a block of either side.
        sequences: The pieces; every piece of every template is moved once.
    """

    table: int
    templates: tuple[Template, ...]
    conversions: tuple[Conversion, ...]
    src_parts: int
    dst_parts: int
    sequences: tuple[Sequence, ...]


class Plan(NamedTuple):
    """Everything that one transfer from one source moves.

    Valid as long as neither side's descriptor changes. Holds no addresses of memory: pools are
    named, and whoever has their bases adds them.
    """

    batches: tuple[Batch, ...]
