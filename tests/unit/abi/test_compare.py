"""Which groups meet, what an operator is told, and what holds for every pair."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.abi_placements import PLACEMENTS, SHAPE, Shape, vllm, vllm_cpu
from transload_abi.compare import Comparison, Finding, compare, match_groups
from transload_abi.compare_fields import group_differences, model_differences
from transload_abi.compare_words import layout_words
from transload_abi.floats import f32, f64
from transload_abi.harness.protocol import Done
from transload_abi.text import encode_json
from transload_abi.types import Codec, Descriptor, Group, Kind, Param, Role, Rope, TokenSlice
from transload_abi.vectors.ours import OURS


def with_groups(*groups: Group, like: Descriptor | None = None) -> Descriptor:
    return replace(like or vllm("LBHNC"), groups=groups)


def group(**fields: Any) -> Group:
    return replace(vllm("LBHNC").groups[0], **fields)


def heads(first: int, end: int, total: int = 4) -> Group:
    d = vllm("LBHNC", Shape(heads=end - first))
    return replace(d.groups[0], owner=replace(d.groups[0].owner, heads=(first, end, total)))


def model(**fields: Any) -> Descriptor:
    d = vllm("LBHNC")
    return replace(d, model=replace(d.model, **fields))


def only(comparison: Comparison) -> Finding:
    (finding,) = comparison.findings
    return finding


def reason(src: Descriptor, dst: Descriptor) -> tuple[str, str]:
    finding = only(compare(src, dst))
    return finding.verdict, finding.reason


# --- what operators read


REASONS = [
    (
        vllm_cpu(),
        vllm("LBHNC"),
        "K is stored [head, element, token] at the source and [head, token, element] at the "
        "destination: a transpose, no bit changes",
    ),
    (
        vllm("LBHNC"),
        vllm("LBNHC"),
        "K is stored [head, token, element] at the source and [token, head, element] at the "
        "destination: rows in another order, no bit changes",
    ),
    (
        vllm("BHLNC"),
        vllm("LBHNC"),
        "K is stored [block, head, layer, token, element] at the source and "
        "[layer, block, head, token, element] at the destination: rows in another order, "
        "no bit changes",
    ),
    (
        PLACEMENTS["rocm"](SHAPE),
        vllm("LBHNC"),
        "K is stored [head, element/8, token, element%8] at the source and "
        "[head, token, element] at the destination: a transpose, no bit changes",
    ),
    (
        PLACEMENTS["trtllm"](SHAPE),
        vllm("BLHNC"),
        "stored [block, layer, K|V, head, token, element] at the source and "
        "[block, layer, head, token, K|V, element] at the destination: no bit changes",
    ),
    (
        PLACEMENTS["sglang"](SHAPE),
        vllm("LBNHC"),
        "stored K and V apart [layer, block, token, head, element] at the source and "
        "[layer, block, token, head, K|V, element] at the destination: no bit changes",
    ),
    (
        vllm("LBHNC"),
        vllm("LBHNC", Shape(tokens=16)),
        "tokens of a block: 8 at the source, 16 at the destination: blocks are cut or joined",
    ),
    (
        with_groups(heads(0, 1)),
        with_groups(heads(0, 4)),
        "heads: heads 0 of 4 at the source, heads 0-3 of 4 at the destination: "
        "what both hold moves",
    ),
    (
        with_groups(group(owner=replace(group().owner, tokens=TokenSlice(1, 4, 16)))),
        vllm("LBHNC"),
        "tokens: run 1 of every 4 runs of 16 tokens at the source, all at the destination: "
        "what both hold moves",
    ),
]


@pytest.mark.parametrize(("src", "dst", "words"), REASONS)
def test_what_only_moves(src: Descriptor, dst: Descriptor, words: str) -> None:
    assert reason(src, dst) == ("lossless", words)


@pytest.mark.parametrize(
    ("other", "fields"),
    [
        (with_groups(heads(0, 1)), ["heads"]),
        (with_groups(heads(1, 3)), ["heads"]),
        (vllm("LBHNC", Shape(tokens=16)), ["tokens of a block"]),
        (vllm("LBHNC", Shape(tokens=1)), ["tokens of a block"]),
        (vllm("BLHNC", Shape(tokens=4)), ["tokens of a block"]),
        (vllm("LBNHC", Shape(tokens=4)), ["tokens of a block", "layout"]),
        (vllm("LBHNC", Shape(dtype="f32")), ["values of K", "values of V"]),
        (vllm("BLHNC", Shape(layers=1)), []),
    ],
)
def test_strides_that_follow_from_something_else_are_not_told(
    other: Descriptor, fields: list[str]
) -> None:
    for src, dst in ((vllm("LBHNC"), other), (other, vllm("LBHNC"))):
        (match,) = match_groups(src, dst)
        assert not list(model_differences(src, dst))
        assert [each.field for each in group_differences(*match, "groups[0]")] == fields


def test_layouts_in_words() -> None:
    one = Shape(layers=1)
    assert {name: layout_words(make(SHAPE).groups[0]) for name, make in PLACEMENTS.items()} == {
        "LBHNC": "[layer, block, head, token, K|V, element]",
        "LBNHC": "[layer, block, token, head, K|V, element]",
        "LHBNC": "[layer, head, block, token, K|V, element]",
        "BLHNC": "[block, layer, head, token, K|V, element]",
        "BLNHC": "[block, layer, token, head, K|V, element]",
        "BHLNC": "[block, head, layer, token, K|V, element]",
        "vllm_cpu": "K [layer, block, head, element, token]; "
        "V [layer, block, head, token, element]",
        "rocm": "K [layer, block, head, element/8, token, element%8]; "
        "V [layer, block, head, element, token]",
        "sglang": "K and V apart [layer, block, token, head, element]",
        "trtllm": "[block, layer, K|V, head, token, element]",
        "odd": "[block, layer, token/2, token%2, head, element, V|K]",
    }
    assert layout_words(vllm("BHLNC", one).groups[0]) == "[block, head, token, K|V, element]"


def test_scales_are_told_with_the_first_layer_that_differs() -> None:
    def fp8(*scales: float) -> Descriptor:
        d = vllm("LBHNC", Shape(layers=4, dtype="e4m3"))
        params: dict[str, Param] = {
            "scales.k": [f32(scale) for scale in scales],
            "scales.v": [f32(1.0)] * 4,
        }
        return with_groups(replace(d.groups[0], codec=Codec("fp8_per_tensor", params)), like=d)

    assert reason(fp8(1, 1, 1, 0.5), fp8(1, 1, 1, 0.25)) == (
        "lossy",
        "K: the source holds e4m3 with scale 0.5 for layer 3 and the destination e4m3 with "
        "scale 0.25: values are rounded",
    )
    bf16 = vllm("LBHNC", Shape(layers=4))
    found = only(compare(fp8(2, 1, 0.75, 1), bf16))
    assert (found.verdict, found.path) == ("lossy", "groups[0].codec.id")
    assert found.reason == (
        "K: the source holds e4m3 with scale 0.75 for layer 2 and the destination bf16: "
        "values are rounded"
    )
    assert only(compare(fp8(2, 1, 0.5, 1), bf16)).verdict == "lossless"
    assert "for layer 1 and" in reason(fp8(1, 2, 1, 2), fp8(1, 1, 1, 1))[1]


def test_scales_follow_the_layer_and_not_its_position() -> None:
    d = vllm("LBHNC", Shape(dtype="e4m3"))

    def fp8(layers: tuple[int, ...], *scales: float) -> Descriptor:
        texts: list[int | str] = [f32(scale) for scale in scales]
        codec = Codec("fp8_per_tensor", {"scales.k": texts, "scales.v": texts})
        return with_groups(replace(d.groups[0], layers=layers, codec=codec), like=d)

    assert compare(fp8((0, 1), 1, 2), fp8((1, 0), 2, 1)).verdict == "identical"
    assert compare(fp8((0, 1), 1, 2), fp8((1, 0), 1, 2)).verdict == "lossy"
    assert compare(fp8((0, 1), 1, 2), fp8((1,), 2)).verdict == "identical"
    found = only(compare(fp8((5, 4), 1, 2), fp8((9, 4, 5), 1, 3, 1)))
    assert (found.path, "for layer 4 and" in found.reason) == (
        "groups[0].codec.params.scales.k[1]",
        True,
    )


REFUSALS = [
    (
        model(rope=Rope("applied", {"factor": f64(8.0)})),
        model(rope=Rope("applied", {"factor": 32})),
        "model.rope.params.factor",
        "rotary embedding: the source's factor is 8, the destination's 32",
    ),
    (
        model(rope=Rope("applied", {"short_factor": [1, f64(1.5)]})),
        model(rope=Rope("applied")),
        "model.rope.params.short_factor",
        "rotary embedding: the source's short_factor is [1, 1.5], the destination's not given",
    ),
    (
        model(rope=Rope("unknown")),
        model(rope=Rope("unknown")),
        "model.rope.state",
        "rotary embedding: unknown at the source, unknown at the destination: "
        "who does not know cannot convert",
    ),
    (
        model(weights=""),
        model(weights="", name="huge"),
        "model.name",
        "model: tiny at the source, huge at the destination",
    ),
    (
        model(weights="", revision="a1"),
        model(revision=""),
        "model.revision",
        "revision of tiny: a1 at the source, unknown at the destination",
    ),
    (
        model(),
        model(weights=""),
        "model.weights",
        "weights: tiny sha256:00000000... at the source, unknown at the destination: "
        "no revision either, so nobody can tell whether it is the same model",
    ),
    (
        model(weights=""),
        model(weights=""),
        "model.weights",
        "weights: unknown at the source, unknown at the destination: "
        "no revision either, so nobody can tell whether it is the same model",
    ),
    (
        model(name="a", weights="sha256:" + "1" * 64),
        model(name="b", weights="sha256:" + "2" * 64),
        "model.weights",
        "weights: a sha256:11111111... at the source, b sha256:22222222... at the destination",
    ),
    (
        model(kv_share=((9, 7), (8, 7))),
        model(),
        "model.kv_share",
        "layers that read another's KV: 8 of 7, 9 of 7 at the source, none at the destination",
    ),
    (
        with_groups(group(kind="sliding_window", window=128)),
        with_groups(group(kind="full", window=128)),
        "groups[0].kind",
        "kind: sliding_window at the source, full at the destination: "
        "the source has dropped the tokens before its window",
    ),
    (
        with_groups(group(kind="recurrent", tokens_per_state=(16, 1))),
        with_groups(group(kind="recurrent", tokens_per_state=(32, 1))),
        "groups[0].tokens_per_state",
        "tokens of a state: 16 at the source, 32 at the destination: "
        "a state cannot be had at another position",
    ),
    (
        with_groups(heads(0, 2, 4)),
        with_groups(heads(2, 4, 4)),
        "groups[0].owner.heads",
        "no head in common: the source holds heads 0-1 of 4, the destination heads 2-3 of 4",
    ),
    (
        with_groups(heads(0, 2, 4)),
        with_groups(heads(0, 2, 8)),
        "groups[0].owner.heads",
        "heads of the model: 4 at the source, 8 at the destination",
    ),
    (
        with_groups(heads(0, 2, 4)),
        with_groups(heads(4, 6, 8)),
        "groups[0].owner.heads",
        "heads of the model: 4 at the source, 8 at the destination",
    ),
    (
        with_groups(group(layers=(0, 1))),
        with_groups(group(layers=(2, 3))),
        "groups[0].layers",
        "no layer in common: the source holds layers 0-1, the destination 2-3",
    ),
    (
        with_groups(group(transferable=False)),
        vllm("LBHNC"),
        "groups[0].layers",
        "the source does not transfer any of these layers",
    ),
    (
        with_groups(group(kind="ring", window=8)),
        with_groups(replace(vllm("LBHNC", Shape(tokens=16)).groups[0], kind="ring", window=8)),
        "groups[0].tokens_per_block",
        "tokens of a block: 8 at the source, 16 at the destination: a ring is one block",
    ),
]


@pytest.mark.parametrize(("src", "dst", "path", "words"), REFUSALS, ids=[r[2] for r in REFUSALS])
def test_what_is_refused(src: Descriptor, dst: Descriptor, path: str, words: str) -> None:
    finding = only(compare(src, dst))
    assert (finding.verdict, finding.path, finding.reason) == ("refused", path, words)


def test_a_revision_tells_the_model_where_a_digest_is_lacking() -> None:
    for digest in ("", "sha256:" + "0" * 64):
        src = model(weights=digest, revision="a1")
        assert only(compare(src, model(weights="", revision="a1"))).verdict == "identical"


def test_latents_and_heads_never_become_each_other() -> None:
    latent = Role("latent", "bf16", 16, {"N": 8, "D": 16}, (("N", 1, 8, 256), ("D", 1, 16, 16)))
    rope = replace(latent, role="rope", base_bits=4096)
    mla = with_groups(group(kind="mla", roles=(latent, rope)))
    mha = vllm("LBHNC")
    assert reason(mla, mha) == (
        "refused",
        "kind: mla at the source, full at the destination: "
        "K and V of heads come from latents by the model's weights alone",
    )
    assert reason(mha, mla) == (
        "refused",
        "kind: full at the source, mla at the destination: no latent can be had from K and V",
    )


def test_a_window_is_taken_from_all_tokens() -> None:
    full = with_groups(group(kind="full", window=128))
    window = with_groups(group(kind="sliding_window", window=128))
    assert only(compare(full, window)).verdict == "identical"
    assert compare(full, with_groups(group(kind="sliding_window", window=64))).verdict == "refused"
    assert compare(vllm("LBHNC"), window).verdict == "refused"
    other = vllm("LBNHC").groups[0]
    moved = with_groups(replace(other, kind="sliding_window", window=128))
    assert only(compare(full, moved)).path == "groups[0].kind"
    latents = [with_groups(group(kind=kind, window=9)) for kind in ("mla", "sliding_window_mla")]
    assert compare(*latents).verdict == "refused"


def test_what_says_the_same_in_another_spelling() -> None:
    spelled = [model(rope=Rope("applied", {"factor": value})) for value in (8, f32(8.0), f64(8.0))]
    shares = [model(kv_share=pairs) for pairs in (((9, 7), (8, 7)), ((8, 7), (9, 7)))]
    assert compare(*shares).verdict == "identical"
    for a, b in itertools.permutations(spelled, 2):
        assert compare(a, b).verdict == "identical"
    assert compare(spelled[0], model(rope=Rope("applied", {"factor": "8"}))).verdict == "refused"


# --- which groups meet


def test_groups_meet_by_layers() -> None:
    src = with_groups(group(id="a", layers=(0, 2)), group(id="b", layers=(1, 3, 4)))
    dst = with_groups(group(id="x", layers=(4, 0, 9)), group(id="y", layers=(3,)))
    assert [(s.id, d.id, layers) for s, d, layers in match_groups(src, dst)] == [
        ("a", "x", (0,)),
        ("b", "x", (4,)),
        ("b", "y", (3,)),
    ]
    comparison = compare(src, dst)
    assert comparison.verdict == "identical"
    assert [(f.src, f.dst, f.layers) for f in comparison.findings] == [
        ("a", "x", (0,)),
        ("b", "x", (4,)),
        ("b", "y", (3,)),
    ]
    assert comparison.absent == ("x: the source has nothing of layer 9",)


def test_a_rank_without_the_heads_leaves_them_to_others() -> None:
    latent = Role("latent", "bf16", 16, {"N": 8, "D": 16})
    shared = group(id="z", kind="mla", layers=(5,), roles=(latent, replace(latent, role="rope")))
    src = with_groups(heads(0, 2), shared)
    dst = with_groups(heads(2, 4), shared)
    comparison = compare(src, dst)
    assert [(f.dst, f.verdict) for f in comparison.findings] == [("z", "identical")]
    assert [(m.src.id, m.dst.id) for m in match_groups(src, dst)] == [("z", "z")]
    assert comparison.absent == ("attention: the source has nothing of layers 0-1",)
    part = compare(with_groups(heads(0, 3)), with_groups(heads(2, 4)))
    assert part.verdict == "lossless"
    assert part.absent == ("attention: of heads 2-3 of 4 the source has heads 0-2 of 4",)


def test_a_rank_without_all_tokens_leaves_them_to_others() -> None:
    whole = with_groups(group())
    half = replace(group().owner, tokens=TokenSlice(0, 2, 8))
    first = with_groups(group(owner=half))
    assert compare(whole, first).absent == compare(first, first).absent == ()
    assert compare(first, whole).absent == (
        "attention: of the tokens (all) the source has run 0 of every 2 runs of 8 tokens",
    )


def test_layers_with_two_kinds_of_state_meet_by_what_they_hold() -> None:
    conv = Role("conv", "f32", 32, {"N": 1, "D": 16})
    state = group(
        id="state",
        kind="recurrent",
        tokens_per_state=(8, 1),
        roles=(conv, replace(conv, role="ssm")),
    )
    d = with_groups(group(), state)
    assert [(s.id, t.id) for s, t, _ in match_groups(d, d)] == [
        ("attention", "attention"),
        ("state", "state"),
    ]
    part = with_groups(group(layers=(0,)), state)
    comparison = compare(part, d)
    assert comparison.verdict == "identical"
    assert comparison.absent == ("attention: the source has nothing of layer 1",)


def test_what_the_destination_does_not_want_is_no_obstacle() -> None:
    latent = Role("latent", "bf16", 16, {"N": 8, "D": 16})
    more = group(id="more", kind="mla", roles=(latent, replace(latent, role="rope")))
    src = with_groups(group(), more)
    assert [m.src.id for m in match_groups(src, vllm("LBHNC"))] == ["attention"]
    assert compare(src, vllm("LBHNC")).verdict == "identical"
    assert compare(with_groups(more), vllm("LBHNC")).verdict == "refused"


def test_one_group_that_cannot_refuses_the_whole() -> None:
    window = group(id="w", kind="sliding_window", window=8, layers=(2,))
    src = with_groups(group(), window)
    dst = with_groups(group(), replace(window, kind="full"))
    found = compare(src, dst)
    assert [finding.verdict for finding in found.findings] == ["identical", "refused"]
    assert found.verdict == "refused"
    assert found.refusal is found.findings[1]


def test_the_harness_tells_the_group_that_cannot_and_not_the_first(tmp_path: Path) -> None:
    def two(kind: Kind, window: int) -> Descriptor:
        d = vllm("LBHNC")
        beside = replace(
            group(id="w", kind=kind, window=window, layers=(1,)),
            places=(replace(d.groups[0].places[0], pools=("w",)),),
        )
        pools = (d.pools[0], replace(d.pools[0], id="w"))
        return replace(d, pools=pools, groups=(group(layers=(0,)), beside))

    src, dst = tmp_path / "src.json", tmp_path / "dst.json"
    src.write_bytes(encode_json(two("sliding_window", 8)))
    dst.write_bytes(encode_json(two("full", 0)))
    answer = OURS.ask("compare", {"src": str(src), "dst": str(dst)})
    assert answer == Done({"verdict": "refused", "path": "groups[1].kind"})


def test_nothing_to_bring_is_no_obstacle() -> None:
    assert compare(vllm("LBHNC"), with_groups(group(transferable=False))) == Comparison(())
    assert Comparison(()).verdict == "identical"


def test_the_model_comes_before_everything() -> None:
    src = model(adapter="one")
    for dst in (vllm_cpu(), with_groups(group(layers=(7,))), with_groups(heads(0, 2, 8))):
        assert only(compare(src, dst)).path == "model.adapter"
