"""What `transload abi plan` lists, and how its words and `check`'s hints read."""

from pathlib import Path

import pytest

from support.abi_placements import Shape, vllm
from transload_abi.cli import main
from transload_abi.cli_plan import Request, plan_text
from transload_abi.types import Descriptor


def lines(src: Descriptor, dst: Descriptor, num_tokens: int) -> list[str]:
    request = Request(num_tokens)
    return plan_text(src, dst, request, allow_lossy=True, has_runs=True).splitlines()


def test_conversions_are_listed_with_the_runs() -> None:
    found = lines(vllm("LBHNC"), vllm("LBHNC", Shape(dtype="f16")), 20)
    assert found[-5:] == [
        "",
        "convert k of layer 0: bf16 (none) -> f16 (none), 3 pieces",
        "convert k of layer 1: bf16 (none) -> f16 (none), 3 pieces",
        "convert v of layer 0: bf16 (none) -> f16 (none), 3 pieces",
        "convert v of layer 1: bf16 (none) -> f16 (none), 3 pieces",
    ]


def test_nothing_to_list_is_no_empty_line() -> None:
    d = vllm("LBHNC")
    found = plan_text(d, d, Request(0), allow_lossy=False, has_runs=True)
    assert not found.endswith("\n\n")


def test_one_of_a_thing_is_told_as_one() -> None:
    found = lines(vllm("BLHNC"), vllm("BLHNC"), 8)
    assert found[1] == "table 0      1 piece (a block) in 1 sequence, 1 copy of each"
    assert found[2].endswith(" in 1 run")


def test_help_explains_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("plan", "--help")) == 0
    text = capsys.readouterr().out
    assert '"register" lists' in text
    assert "kv+8192 -> kv+4096: 512 x 2 (+4096, +1024)" in text
    for line in ("0  planned", "2  bad input", "3  refused; also lossy, unless --allow-lossy"):
        assert f"\n  {line}" in text


@pytest.mark.parametrize("folder", ["decode", "accepted"])
def test_check_says_what_a_folder_of_vectors_holds(
    folder: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("numpy")
    assert main(("check", str(tmp_path))) == 2
    assert capsys.readouterr().err == (
        f"transload abi check: expected decode/, convert/, accepted/ or refused/ in {tmp_path}\n"
    )
    # One that has them is told what is wrong in them.
    (tmp_path / folder).mkdir()
    assert main(("check", str(tmp_path))) == 2
    assert "expected decode/," not in capsys.readouterr().err
