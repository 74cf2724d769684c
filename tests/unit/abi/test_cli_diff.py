"""What `transload abi diff` says of sentences, names and directions that are easily mistaken."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from support.abi_placements import vllm
from transload_abi.cli import main
from transload_abi.cli_diff import diff_text
from transload_abi.text import read
from transload_abi.types import Descriptor, Owner

DECODE = Path(__file__).parents[2] / "vectors/abi/decode"


def vector(name: str) -> Descriptor:
    return read((DECODE / name / "descriptor.json").read_bytes())


def with_owner(d: Descriptor, owner: Owner) -> Descriptor:
    (group,) = d.groups
    return replace(d, groups=(replace(group, owner=owner),))


def told(a: Descriptor, b: Descriptor, names: tuple[str, str] = ("a", "b")) -> list[str]:
    return diff_text(names, a, b)[0].splitlines()


def test_wrapped_sentences_keep_ends_that_are_alike() -> None:
    a = vector("slice-of-heads")
    b = with_owner(a, replace(a.groups[0].owner, heads=(0, 2, 8)))
    assert told(a, b)[2:-1] == [
        "",
        "  A -> B  refused: no head in common: the source holds heads 2-3 of 8, the destination "
        "heads 0-1 of",
        "          8",
        "  B -> A  refused: no head in common: the source holds heads 0-1 of 8, the destination "
        "heads 2-3 of",
        "          8",
        "",
    ]


def test_a_sentence_on_several_groups_is_told_once() -> None:
    d = vllm("LBHNC")
    (group,) = d.groups
    groups = tuple(replace(group, id=str(at), layers=(at,)) for at in range(3))
    a, b = replace(d, groups=groups), replace(d, model=replace(d.model, adapter="lora"))
    far = replace(b, groups=tuple(replace(each, layers=(9,)) for each in groups))
    assert sum("adapter: none at the source" in line for line in told(a, far)) == 1


def test_each_direction_has_its_own_words() -> None:
    lines = told(vector("vllm-lbhnc-bf16"), vector("vllm-lbhnc-e4m3-per-tensor"))
    rows = [line.split() for line in lines if line.startswith("  values of K")]
    assert [" ".join(row[3:]) for row in rows] == [
        "bf16 for layer 0 e4m3 with scale 0.5 for layer 0 lossy -",
        "bf16 for layer 1 e4m3 with scale 0.1 for layer 1 - lossy",
    ]
    assert sum(line.startswith("  values of V") for line in lines) == 1


def test_slices_of_other_totals_have_no_verdict() -> None:
    d = vllm("LBHNC")
    other = with_owner(d, replace(d.groups[0].owner, heads=(2, 4, 8)))
    (row,) = (line.split() for line in told(d, other) if line.startswith("  heads  "))
    assert row[-2:] == ["-", "-"]
    same = with_owner(other, replace(other.groups[0].owner, heads=(3, 5, 8)))
    (row,) = (line.split() for line in told(other, same) if line.startswith("  heads  "))
    assert row[-2:] == ["lossless", "lossless"]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("short.json", "other.json"), ("short.json", "other.json")),
        (
            ("x" * 50 + "/prefill.json", "x" * 50 + "/decode.json"),
            ("..." + "x" * 24 + "/prefill.json", "..." + "x" * 25 + "/decode.json"),
        ),
        (
            ("p" * 9 + "/" + "y" * 60, "d" * 9 + "/" + "y" * 60),
            ("p" * 9 + "/" + "y" * 27 + "...", "d" * 9 + "/" + "y" * 27 + "..."),
        ),
        (
            ("w" * 60 + "1" + "y" * 60, "w" * 60 + "2" + "y" * 60),
            ("..." + "w" * 20 + "1" + "y" * 13 + "...", "..." + "w" * 20 + "2" + "y" * 13 + "..."),
        ),
        (("z" * 50, "z" * 60), ("..." + "z" * 20, "..." + "z" * 30)),
        (("z" * 50, "z" * 50), ("..." + "z" * 37, "..." + "z" * 37)),
    ],
)
def test_names_stay_apart(names: tuple[str, str], shown: tuple[str, str]) -> None:
    d = vllm("LBHNC")
    assert [line.partition(",")[0][3:] for line in told(d, d, names)[:2]] == list(shown)


def test_help_names_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("diff", "--help")) == 0
    text = capsys.readouterr().out
    for line in ("0  identical or lossless", "1  lossy", "2  bad input", "3  refused"):
        assert f"\n  {line}\n" in text


def test_one_scale_reads_alike_in_both_commands(capsys: pytest.CaptureFixture[str]) -> None:
    name = "vllm-lbhnc-e4m3-per-tensor"
    assert main(("show", str(DECODE / name / "descriptor.json"))) == 0
    assert "scales.k 0.5 0.1 " in capsys.readouterr().out
    assert "with scale 0.1 for" in "\n".join(told(vector("vllm-lbhnc-bf16"), vector(name)))
