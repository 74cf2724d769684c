"""Hypothesis strategies of valid descriptors, and of other spellings of the same one."""

from __future__ import annotations

from math import gcd

from hypothesis import strategies as st
from msgspec.structs import replace

from support.abi_placements import PLACEMENTS, Shape
from transload_abi.canonical import Term
from transload_abi.codecs import CODECS, CodecRule, rotation_param, scale_param
from transload_abi.dtypes import DTYPES
from transload_abi.floats import f32, f64
from transload_abi.limits import MAX_TERMS
from transload_abi.roles import ROLES
from transload_abi.types import (
    VERSION,
    Codec,
    Descriptor,
    Group,
    Kind,
    Model,
    Owner,
    Param,
    Place,
    Pool,
    Producer,
    Role,
    Rope,
    TokenSlice,
)

NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=6)
WORDS = NAMES.filter(lambda text: not text.startswith(("f32:", "f64:")))
"""Text that is no number."""

SCALES = st.floats(min_value=2.0**-100, max_value=2.0**100, width=32).map(f32)
_TABLES = st.sampled_from(["signs of the first kind", "sha256:" + "5a" * 32])
PARAMS: st.SearchStrategy[dict[str, Param]] = st.dictionaries(
    st.sampled_from(["rope_theta", "rope_type", "factor", "sections", "x_odd"]),
    st.one_of(
        st.integers(-(1 << 53) + 1, (1 << 53) - 1),
        WORDS,
        st.floats(allow_nan=False, allow_infinity=False).map(f64),
        st.lists(st.one_of(st.integers(0, 99), WORDS), max_size=3),
    ),
)


def models() -> st.SearchStrategy[Model]:
    ropes = st.one_of(
        st.just(Rope("none")),
        st.builds(Rope, st.sampled_from(["applied", "not_applied", "unknown"]), PARAMS),
    )
    return st.builds(
        Model,
        name=NAMES,
        num_layers=st.integers(20, 64),
        rope=ropes,
        revision=st.one_of(st.just(""), NAMES),
        weights=st.sampled_from(["", "sha256:" + "a1" * 32]),
        adapter=st.one_of(st.just(""), NAMES),
        kv_share=st.sampled_from([(), ((18, 0),), ((19, 1), (18, 0))]),
    )


@st.composite
def descriptors(draw: st.DrawFn) -> Descriptor:
    """Any valid descriptor: of one of the known placements, or of one to three made-up groups."""
    model, producer = draw(models()), draw(st.builds(Producer, engine=NAMES, version=NAMES))
    if draw(st.booleans()):
        shape = Shape(
            layers=draw(st.integers(1, 3)),
            blocks=draw(st.integers(1, 3)),
            heads=draw(st.integers(1, 4)),
            tokens=draw(st.sampled_from([1, 2, 4, 6])),
            size=draw(st.sampled_from([8, 16])),
        )
        known = PLACEMENTS[draw(st.sampled_from(sorted(PLACEMENTS)))](shape)
        return replace(known, model=model, producer=producer)
    layers = draw(st.permutations(range(6)))
    pools: list[Pool] = []
    groups: list[Group] = []
    for number in range(draw(st.integers(1, 3))):
        own = tuple(layers[2 * number : 2 * number + draw(st.integers(1, 2))])
        group, pool = draw(groups_of(own, f"{number}"))
        groups.append(group)
        pools.append(pool)
    return Descriptor(VERSION, model, tuple(pools), tuple(groups), producer)


@st.composite
def groups_of(draw: st.DrawFn, layers: tuple[int, ...], name: str) -> tuple[Group, Pool]:
    """A group of those layers, and the pool it alone is in."""
    codec_id = draw(st.sampled_from(sorted(CODECS)))
    role_set = draw(_role_sets(CODECS[codec_id]))
    kind, tokens, states, window = draw(_kinds(role_set))
    has_heads = any("H" in ROLES[role].axes for role in role_set)
    heads = draw(st.integers(1, 3)) if has_heads else 1
    first = draw(st.integers(0, 2)) if has_heads else 0
    extents = {"H": heads, "N": tokens * states[1] // states[0], **draw(_sizes(codec_id))}
    roles, page_bytes = draw(_page(role_set, extents))
    num_blocks = draw(st.integers(1, 3))
    place, num_bytes = draw(_places(f"pool {name}", len(layers), num_blocks, page_bytes))
    group = Group(
        id=f"group {name}",
        kind=kind,
        layers=layers,
        tokens_per_block=tokens,
        places=(place,),
        roles=roles,
        codec=draw(_codecs(codec_id, role_set, len(layers))),
        tokens_per_state=states,
        window=window,
        table=int(name),
        null_block=draw(st.sampled_from([None, 0, num_blocks - 1])),
        transferable=draw(st.booleans()),
        owner=Owner(
            heads=(first, first + heads, first + heads + draw(st.integers(0, 1)))
            if has_heads
            else (0, 1, 1),
            tokens=draw(st.sampled_from([TokenSlice(), TokenSlice(1, 2, tokens)]))
            if states == (1, 1) and kind not in ("recurrent", "ring")
            else TokenSlice(),
            replica=draw(st.sampled_from([(0, 1), (1, 2)])),
        ),
        opaque=draw(NAMES) if codec_id == "opaque" or draw(st.integers(0, 9)) == 0 else "",
    )
    return group, Pool(f"pool {name}", "device", num_bytes, num_blocks, align=8)


def evened(group: Group) -> Group:
    """With layers' scales that are powers of two."""
    params: dict[str, Param] = {
        name: [f32(2.0 ** (at % 5 - 2)) for at in range(len(value))]
        if isinstance(value, list)
        else value
        for name, value in group.codec.params.items()
    }
    return replace(group, codec=replace(group.codec, params=params))


@st.composite
def _role_sets(draw: st.DrawFn, rule: CodecRule) -> dict[str, frozenset[str]]:
    """A codec's set of roles; all choices of a recurrent layer's parts count as one."""
    parts = [each for each in rule.role_sets if _is_by_head(each)]
    others = [each for each in rule.role_sets if not _is_by_head(each)]
    if parts:
        others.append(draw(st.sampled_from(parts)))
    return draw(st.sampled_from(others))


def _is_by_head(role_set: dict[str, frozenset[str]]) -> bool:
    return all(role.startswith(("conv_", "ssm_h")) for role in role_set)


@st.composite
def _sizes(draw: st.DrawFn, codec_id: str) -> dict[str, int]:
    """Extents of `D` and `G`."""
    shares = set(CODECS[codec_id].group_elements.values())
    if not shares:
        return {"D": draw(st.sampled_from([1, 2, 6, 8])), "G": 1}
    share = max(shares) or draw(st.sampled_from([2, 4]))
    num_groups = draw(st.sampled_from([1, 2] if share > 4 else [1, 2, 4]))
    return {"D": share * num_groups, "G": num_groups}


@st.composite
def _codecs(
    draw: st.DrawFn, codec_id: str, role_set: dict[str, frozenset[str]], num_layers: int
) -> Codec:
    """A codec with what its roles need, and perhaps with what they may have."""
    rule = CODECS[codec_id]
    inline = sorted(role_set.keys() & rule.scale_role.keys())
    params: dict[str, Param] = {name: draw(_TABLES) for name in rule.text_params}
    params |= {name: draw(st.integers(1, 8)) for name in rule.integer_params}
    if rule.may_be_rotated:
        params |= {rotation_param(role): draw(_TABLES) for role in inline if draw(st.booleans())}
    scaled = sorted(role_set) if rule.has_scales_param else []
    if rule.may_have_scales_param and draw(st.booleans()):
        scaled = inline
    for role in scaled:
        params[scale_param(role)] = [draw(SCALES) for _ in range(num_layers)]
    return Codec(codec_id, params)


@st.composite
def _kinds(
    draw: st.DrawFn, role_set: dict[str, frozenset[str]]
) -> tuple[Kind, int, tuple[int, int], int]:
    """Kind, tokens in a block, tokens per state and window."""
    tokens = draw(st.sampled_from([1, 2, 4, 12]))
    if role_set.keys() & {"conv", "ssm"} or _is_by_head(role_set):
        return "recurrent", tokens, (tokens, 1), 0
    kinds: list[tuple[Kind, int]] = [("ring", tokens)]
    if role_set.keys() & {"latent", "page"}:
        kinds += [("mla", 0), ("sliding_window_mla", 9)]
    elif role_set.keys() & {"state_kv", "index_state_kv"}:
        kinds += [("sliding_window", 5)]
    else:
        kinds += [("full", 0), ("full", 8), ("sliding_window", 5), ("chunked_local", 8)]
        kinds += [("cross", 0)]
    kind, window = draw(st.sampled_from(kinds))
    numerator, denominator = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 3)]))
    if tokens % numerator or gcd(numerator, denominator) > 1:
        numerator, denominator = 1, 1
    return kind, tokens, (numerator, denominator), window


@st.composite
def _page(
    draw: st.DrawFn, role_set: dict[str, frozenset[str]], extents: dict[str, int]
) -> tuple[tuple[Role, ...], int]:
    """Roles one after the other, each with its digits in any order and pads; bytes of the page."""
    roles: list[Role] = []
    end = 0
    for name in draw(st.permutations(sorted(role_set))):
        dtype = draw(st.sampled_from(sorted(role_set[name])))
        bits = DTYPES[dtype].bits
        shape = {axis: extents[axis] for axis in ROLES[name].axes}
        digits = [digit for axis, extent in shape.items() for digit in draw(_digits(axis, extent))]
        stride, terms = bits, []
        for axis, div, extent in draw(st.permutations(digits)):
            terms.append((axis, div, extent, stride))
            stride = stride * extent + 8 * draw(st.integers(0, 1))
        base = -(-end // 8) * 8 + 8 * draw(st.integers(0, 2))
        roles.append(Role(name, dtype, bits, shape, tuple(terms), base))
        end = base + stride
    return tuple(roles), -(-end // 8) + draw(st.integers(0, 3))


@st.composite
def _digits(draw: st.DrawFn, axis: str, extent: int) -> list[tuple[str, int, int]]:
    digits, div = [], 1
    while div < extent:
        rest = extent // div
        step = draw(st.sampled_from([each for each in range(2, rest + 1) if rest % each == 0]))
        digits.append((axis, div, step))
        div *= step
    return digits


@st.composite
def _places(
    draw: st.DrawFn, pool: str, num_layers: int, num_blocks: int, page_bytes: int
) -> tuple[Place, int]:
    """A place with layers or blocks outermost and pads, and the bytes of its pool."""
    inner, outer = num_layers, num_blocks
    is_layer_outermost = draw(st.booleans())
    if is_layer_outermost:
        inner, outer = outer, inner
    inner_stride = page_bytes + draw(st.integers(0, 2))
    outer_stride = inner * inner_stride + draw(st.integers(0, 2))
    strides = (inner_stride, outer_stride) if is_layer_outermost else (outer_stride, inner_stride)
    block_stride, layer_stride = strides
    offset = draw(st.integers(0, 2))
    place = Place(
        pools=(pool,),
        block_stride=block_stride,
        layer_stride=layer_stride,
        offset=offset,
        page_bytes=draw(st.sampled_from([0, page_bytes])),
    )
    return place, offset + outer * outer_stride


@st.composite
def respelled(draw: st.DrawFn, descriptor: Descriptor) -> Descriptor:
    """The same in other words: orders changed, digits split, places numbered anew."""
    groups = [draw(_respelled_group(group)) for group in descriptor.groups]
    shared = draw(st.permutations(descriptor.model.kv_share))
    return replace(
        descriptor,
        model=replace(descriptor.model, kv_share=tuple(shared)),
        pools=tuple(draw(st.permutations(descriptor.pools))),
        groups=tuple(draw(st.permutations(groups))),
    )


@st.composite
def _respelled_group(draw: st.DrawFn, group: Group) -> Group:
    unused = replace(group.places[0], offset=group.places[0].offset + 1)
    spare = draw(st.sampled_from([(), (group.places[0],), (unused,)]))
    order = draw(st.permutations(range(len(group.places) + len(spare))))
    places = (*group.places, *spare)
    roles = [
        replace(role, terms=draw(_respelled_terms(role)), place=order.index(role.place))
        for role in group.roles
    ]
    return replace(
        group,
        places=tuple(places[number] for number in order),
        roles=tuple(draw(st.permutations(roles))),
    )


@st.composite
def _respelled_terms(draw: st.DrawFn, role: Role) -> tuple[Term, ...]:
    terms: list[Term] = []
    left = MAX_TERMS - len(role.terms)
    for axis, div, extent, stride in role.terms:
        if not left:
            terms.append((axis, div, extent, stride))
            continue
        left -= 1
        low = draw(st.sampled_from([each for each in range(1, extent + 1) if extent % each == 0]))
        terms.append((axis, div, low, stride))
        terms.append((axis, div * low, extent // low, stride * low))
    return tuple(draw(st.permutations(terms)))
