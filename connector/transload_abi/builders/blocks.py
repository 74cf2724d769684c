"""What builders of caches in blocks have in common: blocks, heads, and a checked descriptor.

Knows no engine.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from transload_abi.builders import by_hand
from transload_abi.canonical import canonical
from transload_abi.check import check
from transload_abi.codecs import scale_param
from transload_abi.dtypes import DTYPES
from transload_abi.errors import Contradiction, MalformedDescriptor, UnknownPart
from transload_abi.floats import f32
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.types import (
    VERSION,
    Codec,
    Descriptor,
    Group,
    Kind,
    Memory,
    Model,
    Owner,
    Param,
    Place,
    Pool,
    Producer,
    Role,
)

Order = Literal["HND", "NHD"]
"""Of heads, tokens and elements in one side of a page, outermost first."""

Scales = Sequence[tuple[float, float]]
"""Of K and V, for each layer in order; binary32 values."""

PLAIN: Final = Codec()


class Blocks(NamedTuple):
    """Blocks of some layers.

    Attributes:
        layers: The model's layer numbers, in order.
        num_blocks: Blocks.
        tokens_per_block: Tokens of a block.
        memory: Where they are.
        align: Bytes that each pool's start is aligned to.
        null_block: The block that stands for "not held"; None: there is none.
    """

    layers: tuple[int, ...]
    num_blocks: int
    tokens_per_block: int
    memory: Memory = "device"
    align: int = 256
    null_block: int | None = None


class Heads(NamedTuple):
    """Keys and values of a page.

    Attributes:
        held: First head, end, and heads of the whole model.
        size: Elements of a head of K, and of V.
        dtype: `f32`, `f16`, `bf16`, or an 8-bit float, which needs scales.
        replica: Ordinal and number of ranks with the same heads.
    """

    held: tuple[int, int, int]
    size: int
    dtype: str = "bf16"
    replica: tuple[int, int] = (0, 1)

    @property
    def num_held(self) -> int:
        """Heads that are held."""
        return self.held[1] - self.held[0]

    @property
    def owner(self) -> Owner:
        """The slice."""
        return Owner(heads=self.held, replica=self.replica)


def side(
    name: str, heads: Heads, tokens: int, order: Order, *, first: int = 0, place: int = 0
) -> Role:
    """K or V without gaps in one of the two orders; `first` counts elements."""
    by_head = order == "HND"
    return by_hand.role(
        name,
        heads.dtype,
        first=first,
        place=place,
        H=(heads.num_held, heads.size * (tokens if by_head else 1)),
        N=(tokens, heads.size * (1 if by_head else heads.num_held)),
        D=(heads.size, 1),
    )


def side_bytes(heads: Heads, tokens: int) -> int:
    """Of K or of V in a page.

    Raises:
        UnknownPart: There is no such dtype.
    """
    if heads.dtype not in DTYPES:
        raise UnknownPart(f"no dtype {heads.dtype[:MAX_QUOTED_CHARS]!r}", "dtype")
    return heads.num_held * tokens * heads.size * DTYPES[heads.dtype].bits // 8


def codec_of(scales: Scales) -> Codec:
    """`fp8_per_tensor` where there are scales."""
    return Codec("fp8_per_tensor", scale_params(scales)) if scales else PLAIN


def scale_params(scales: Scales) -> dict[str, Param]:
    """Parameters `scales.k` and `scales.v`; none where there are no scales.

    Raises:
        MalformedDescriptor: A scale is no finite binary32.
    """
    found: dict[str, Param] = {}
    for number, name in enumerate("kv" if scales else ""):
        try:
            found[scale_param(name)] = [f32(pair[number]) for pair in scales]
        except ValueError as error:
            raise MalformedDescriptor(str(error), "scales") from error
    return found


def described(
    engine: str,
    model: Model,
    blocks: Blocks,
    pools: Sequence[Pool],
    places: Sequence[Place],
    roles: Sequence[Role],
    *,
    owner: Owner,
    kind: Kind = "full",
    codec: Codec = PLAIN,
    layout: str = "",
) -> Descriptor:
    """The checked, canonical descriptor of one group.

    Raises:
        DescriptorError: Something contradicts itself.
    """
    if not blocks.layers:
        raise Contradiction("no layers", "layers")
    group = Group(
        id="attention",
        kind=kind,
        layers=blocks.layers,
        tokens_per_block=blocks.tokens_per_block,
        places=tuple(places),
        roles=tuple(roles),
        codec=codec,
        null_block=blocks.null_block,
        owner=owner,
    )
    found = Descriptor(
        abi=VERSION,
        model=model,
        pools=tuple(pools),
        groups=(group,),
        producer=Producer(engine=engine, layout=layout),
    )
    check(found)
    return canonical(found)
