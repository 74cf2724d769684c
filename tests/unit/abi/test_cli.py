"""The command `transload abi` in this process: what it prints, and its exit status."""

import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from support.abi_placements import Shape, sglang, vllm, vllm_cpu
from transload_abi.cli import main
from transload_abi.cli_diff import diff_text
from transload_abi.cli_plan import read_blocks
from transload_abi.compare_fields import Difference, model_differences
from transload_abi.errors import PlanError
from transload_abi.fingerprints import of_descriptor, of_group
from transload_abi.picture import describe
from transload_abi.text import encode_json, encode_msgpack
from transload_abi.types import Descriptor, Group, Producer

CPU = replace(vllm_cpu(), producer=Producer("vllm", "0.32.0", "CPU_ATTN", "LBHNC"))
FLASH = replace(vllm("LBHNC"), producer=Producer("vllm", "0.32.0", "FLASH_ATTN", "LBHNC"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, d: Descriptor) -> str:
    Path(name).write_bytes(encode_json(d))
    return name


def with_groups(d: Descriptor, *groups: Group) -> Descriptor:
    return replace(d, groups=groups)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    status = main(args)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, out, err


# --- diff

CPU_TO_FLASH = """\
A  cpu.json, model tiny, vllm 0.32.0 CPU_ATTN LBHNC
B  flash.json, model tiny, vllm 0.32.0 FLASH_ATTN LBHNC

attention (layers 0-1)
                 A                                B                                A -> B   B -> A
  layout         K [layer, block, head, element,  [layer, block, head, token, K|V, lossless lossless
                 token]; V [layer, block, head,   element]
                 token, element]
  memory         host                             device                           -        -
  A -> B  lossless: K is stored [head, element, token] at the source and [head, token, element] at
          the destination: a transpose, no bit changes
  B -> A  lossless: K is stored [head, token, element] at the source and [head, element, token] at
          the destination: a transpose, no bit changes
  fingerprints  the same: meaning; other: page, placement

both ways lossless: every value is kept
"""


def test_two_backends_of_one_layout_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write("cpu.json", CPU), write("flash.json", FLASH)
    assert run(capsys, "diff", *files) == (0, CPU_TO_FLASH, "")


WINDOW_AND_SLICE = """\
A  a, model tiny
B  b, model tiny

attention (layers 0-1), more (layers 2-3)
                 A                                B                                A -> B   B -> A
  values of K    bf16                             f32                              lossless lossy
  values of V    bf16                             f32                              lossless lossy
  A -> B  lossless: K: the source holds bf16 and the destination f32: every value is kept
  B -> A  lossy: K: the source holds f32 and the destination bf16: values are rounded
  fingerprints  other: page, meaning, placement

w -> v (layer 4)
                 A                                B                                A -> B   B -> A
  kind           full                             sliding_window                   lossless refused
  null block     0                                none                             -        -
  A -> B  identical: nothing in a page differs
  B -> A  refused: kind: sliding_window at the source, full at the destination: the source has
          dropped the tokens before its window
  fingerprints  the same: page; other: meaning, placement

from A to v: the source has nothing of layer 5
from B to w: the source has nothing of layer 6

A -> B lossless: every value is kept
B -> A refused: nothing can be moved
"""


def test_groups_alike_are_told_together() -> None:
    narrow, wide = vllm("LBHNC"), vllm("LBHNC", Shape(dtype="f32"))
    window = replace(narrow.groups[0], id="w", layers=(4, 6), window=9, table=1)
    a = with_groups(
        narrow, narrow.groups[0], replace(narrow.groups[0], id="more", layers=(2, 3)), window
    )
    b = with_groups(
        wide,
        wide.groups[0],
        replace(wide.groups[0], id="more", layers=(2, 3)),
        replace(window, id="v", kind="sliding_window", layers=(4, 5), null_block=None),
    )
    # As values: groups that lie in the same bytes would not be read from a file.
    text, verdict = diff_text(("a", "b"), a, b)
    assert text == WINDOW_AND_SLICE
    assert verdict == "lossless"


def test_models_are_compared_a_few_times_and_not_for_each_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def counted(a: Descriptor, b: Descriptor) -> Iterator[Difference]:
        calls.append((a, b))
        return model_differences(a, b)

    for module in ("compare", "cli_diff"):
        monkeypatch.setattr(sys.modules[f"transload_abi.{module}"], "model_differences", counted)
    d = vllm("LBHNC")
    (group,) = d.groups
    groups = [replace(group, id=str(at), layers=(at,)) for at in range(9)]
    text, _ = diff_text(("a", "b"), with_groups(d, *groups), with_groups(d, *groups))
    assert "0 (layer 0), 1 (layer 1)" in text
    assert len(calls) == 3


def test_other_models(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(FLASH, model=replace(FLASH.model, adapter="lora-7"))
    status, out, _ = run(capsys, "diff", write("a", FLASH), write("b", other))
    assert status == 3
    assert out.splitlines()[3:6] == [
        "model",
        "                 A                                B                                "
        "A -> B   B -> A",
        "  adapter        none                             lora-7                           "
        "refused  refused",
    ]
    assert "  A -> B  refused: adapter: none at the source, lora-7 at the destination" in out
    assert out.endswith("both ways refused: nothing can be moved\n")


def test_nothing_in_common(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = with_groups(FLASH, replace(FLASH.groups[0], layers=(4, 5)))
    status, out, _ = run(capsys, "diff", write("a", FLASH), write("b", other))
    assert status == 3
    assert out.splitlines()[3:5] == [
        "  A -> B  refused: no layer in common: the source holds layers 0-1, the destination 4-5",
        "  B -> A  refused: no layer in common: the source holds layers 4-5, the destination 0-1",
    ]


def test_the_exit_status_is_that_of_the_first_direction(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write("a", vllm("LBHNC")), write("b", vllm("LBHNC", Shape(dtype="f32")))
    assert run(capsys, "diff", *files)[0] == 0
    assert run(capsys, "diff", *reversed(files))[0] == 1
    assert run(capsys, "diff", files[0], files[0])[0] == 0


def test_it_fits_on_a_screen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 512
    a = replace(sglang(), model=replace(sglang().model, name=long, weights="", revision=long))
    b = replace(a, model=replace(a.model, revision="y" * 512), producer=Producer(long, long, long))
    small = replace(vllm_cpu(Shape(tokens=4, dtype="f32")), model=b.model)
    small = with_groups(small, replace(small.groups[0], id=long))
    for one, other in ((CPU, FLASH), (CPU, sglang(Shape(tokens=4, dtype="f16")))):
        _, out, _ = run(capsys, "diff", write("a", one), write("b", other))
        assert len(out.splitlines()) <= 40
        assert max(map(len, out.splitlines())) <= 100
    for other in (small, b):
        _, out, _ = run(capsys, "diff", write("a", a), write("b", other))
        assert max(map(len, out.splitlines())) <= 100


# --- show


def test_a_picture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "show", write("a", CPU)) == (0, describe(CPU), "")


def test_canonical_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("packed").write_bytes(encode_msgpack(CPU))
    status, out, _ = run(capsys, "show", "packed", "--json")
    assert (status, out) == (0, encode_json(CPU).decode() + "\n")


def test_fingerprints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "show", write("a", FLASH), "--fingerprints")
    assert status == 0
    whole, group = of_descriptor(FLASH), of_group(FLASH, FLASH.groups[0])
    assert out == (
        f"whole\n  page       {whole.page}\n  meaning    {whole.meaning}\n"
        f"  placement  {whole.placement}\ngroup attention\n  page       {group.page}\n"
        f"  meaning    {group.meaning}\n  placement  {group.placement}\n"
    )


def test_standard_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for data in (encode_json(CPU), encode_msgpack(CPU)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        status, out, _ = run(capsys, "diff", "-", write("b", FLASH))
        assert status == 0
        assert out.startswith("A  -, model tiny")


# --- plan

PLAN = """\
tokens       0 to 20
table 0      3 pieces (a block) in 3 sequences, 1 copy of each
copies       12,288 bytes in 6 runs
             6 x 2,048 bytes

register at the source: 1 region
             kv: bytes 0 to 20,480
register at the destination: 1 region
             kv: bytes 0 to 20,480
"""


def test_a_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write("a", vllm("LBHNC")), write("b", vllm("BLHNC"))
    assert run(capsys, "plan", *files, "--tokens", "20") == (0, PLAN, "")


def test_what_other_sources_have_to_bring(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    d = vllm("LBHNC")
    later = with_groups(d, replace(d.groups[0], layers=(1, 2)))
    status, out, _ = run(capsys, "plan", write("a", d), write("b", later), "--tokens", "20")
    assert status == 0
    assert (
        "\n\nother sources have to bring what this one lacks\n"
        "             attention: the source has nothing of layer 2\n\nregister"
    ) in out


def test_blocks_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write("a", vllm("BLHNC")), write("b", vllm("BLHNC"))
    args = ("--tokens", "24", "--src-blocks", "2-4", "--dst-blocks", "0=1,2,3", "--runs")
    status, out, _ = run(capsys, "plan", *files, *args)
    assert status == 0
    assert "3 pieces (a block) in 1 sequence," in out
    assert out.endswith("\n\nkv+8192 -> kv+4096: 12288\n")


def test_other_block_sizes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write("a", vllm("LBHNC")), write("b", vllm("LBHNC", Shape(tokens=16)))
    _, out, _ = run(capsys, "plan", *files, "--tokens", "32", "--first-token", "16")
    assert out.startswith(
        "tokens       16 to 32\n"
        "table 0      2 pieces (a block at the source, 1/2 of a block at the destination) in "
    )


def test_scattered_blocks_are_no_neighbours(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    d = vllm("BLHNC", Shape(blocks=65))
    status, out, _ = run(capsys, "plan", write("a", d), write("b", d), "--tokens", "512")
    assert status == 0
    assert "64 pieces (a block) in 64 sequences" in out
    assert "64 x 4,096 bytes" in out
    status, _, err = run(capsys, "plan", "a", "b", "--tokens", "513")
    assert status == 2
    assert err == ("transload abi plan: blocks.src[0]: 65 blocks are needed, the pool has 64\n")


def test_tables_get_blocks_of_their_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both tables are in one pool of nine blocks; a ring has one block, the others have three."""
    d = vllm("BLHNC", Shape(blocks=9))
    first = replace(d.groups[0], window=8)
    window = replace(first, id="w", kind="sliding_window", layers=(2, 3), table=1)
    ring = replace(first, id="r", kind="ring", layers=(4, 5), table=2)
    files = write("a", with_groups(d, first, window, ring)), "a"
    status, out, _ = run(capsys, "plan", *files, "--tokens", "24")
    assert status == 0
    told = [line.split(" (")[0] for line in out.splitlines() if line.startswith("table")]
    assert told == ["table 0      3 pieces", "table 1      3 pieces", "table 2      1 piece"]
    assert run(capsys, "plan", *files, "--tokens", "32")[0] == 2


def test_groups_of_one_table_share_its_blocks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    d = vllm("BLHNC", Shape(layers=4))
    place = d.groups[0].places[0]
    later = replace(place, offset=2 * place.layer_stride)
    full = replace(d.groups[0], layers=(0, 1), window=8)
    window = replace(full, id="w", kind="sliding_window", layers=(2, 3), places=(later,))
    files = write("a", with_groups(d, full, window)), "a"
    status, out, _ = run(capsys, "plan", *files, "--tokens", "24")
    assert status == 0
    assert out.count("\ntable 0      3 pieces") == 2


def test_losses_are_allowed_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write("a", vllm("LBHNC")), write("b", vllm("LBHNC", Shape(dtype="f16")))
    status, out, err = run(capsys, "plan", *files, "--tokens", "8")
    assert (status, out) == (3, "")
    assert "losses are not allowed here" in err
    assert err.count("\n") == 1
    status, out, _ = run(capsys, "plan", *files, "--tokens", "8", "--allow-lossy")
    assert status == 0
    assert "conversions  4, each a role of a layer of a piece" in out


@pytest.mark.parametrize(
    ("texts", "lists"),
    [
        ([], None),
        (["3,4,9-11"], {0: [3, 4, 9, 10, 11]}),
        (["1=7", "0-1"], {1: [7], 0: [0, 1]}),
    ],
)
def test_block_lists(texts: list[str], lists: dict[int, list[int]] | None) -> None:
    assert read_blocks(texts, "--src-blocks") == lists


@pytest.mark.parametrize(
    "text",
    ["", "1,", "a", "-1", "3-1", "1-2-3", "0-99999999999", "x=1", "1=2=3", "1 2", "²", "9" * 20],
)
def test_texts_that_are_no_block_lists(text: str) -> None:
    with pytest.raises(PlanError, match=r"^--src-blocks: "):
        read_blocks([text], "--src-blocks")
    with pytest.raises(PlanError, match="twice"):
        read_blocks(["1", "0=2"], "--src-blocks")


# --- check


VECTORS = Path(__file__).parents[2] / "vectors" / "abi"


def test_each_vector_has_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("bare", "mla-656"):
        shutil.copytree(VECTORS / "decode" / name, tmp_path / "decode" / name)
    args = ("check", str(tmp_path))
    told = "decode/bare: ok\ndecode/mla-656: ok\n2 vectors, 0 failed\n"
    assert run(capsys, *args) == (0, told, "")
    pool = tmp_path / "decode" / "bare" / "pools" / "kv.bin"
    pool.write_bytes(b"\0" + pool.read_bytes()[1:])
    told = (
        "decode/bare: pools/kv.bin: at [0] expected 0x0, got 0xa5; 1 of 1024 differ\n"
        "decode/mla-656: ok\n2 vectors, 1 failed\n"
    )
    assert run(capsys, *args) == (1, told, "")


def test_a_harness_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for command, why in (
        ("", "an empty command"),
        ("'", "No closing quotation"),
        ("./nowhere", "[Errno 2] No such file or directory: './nowhere'"),
    ):
        told = run(capsys, "check", str(VECTORS), "--with", command)
        message = f"transload abi check: the harness cannot be started: {why}\n"
        assert told == (2, "", message)


def test_a_deadline_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("0", "-1", "1e3", "x"):
        assert run(capsys, "check", str(VECTORS), "--answer-s", text)[0] == 2


def test_a_folder_without_vectors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = run(capsys, "check", str(tmp_path))
    assert (status, out) == (2, "")
    assert err.startswith("transload abi check: ")


# --- bad input


BAD = [
    (("show", "nowhere"), "transload abi show: cannot read nowhere: No such file or directory\n"),
    (("show", "."), "transload abi show: cannot read .: Is a directory\n"),
    (
        ("show", "no\nwhere\u202e"),
        "transload abi show: cannot read no?where?: No such file or directory\n",
    ),
    (("diff", "-", "-"), "transload abi diff: standard input can be only one of the two\n"),
]


@pytest.mark.parametrize(("args", "message"), BAD)
def test_files_that_cannot_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    assert run(capsys, *args) == (2, "", message)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"abi":"kvabi/9"}', "kvabi/9"),
        (b'{"abi":"kvabi/1"}', ""),
        (b"\x81", ""),
        (b" " * (1 << 20) + b"{}", "1048576"),
        (encode_json(FLASH).replace(b'"kv"', b'"\xe2\x80\xae\xc2\x85"', 1), ""),
    ],
)
def test_files_that_are_no_descriptors(
    folder: Path, capsys: pytest.CaptureFixture[str], data: bytes, word: str
) -> None:
    Path("bad").write_bytes(data)
    good = write("good", FLASH)
    for args in (("show", "bad"), ("diff", good, "bad"), ("plan", "bad", good, "--tokens", "8")):
        status, out, err = run(capsys, *args)
        assert (status, out) == (2, "")
        assert err.startswith(f"transload abi {args[0]}: bad: ")
        assert word in err
        assert err[:-1].isprintable()
        assert err.endswith("\n")


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("draw",),
        ("show",),
        ("diff", "one"),
        ("plan", "a", "b"),
        ("plan", "a", "b", "--tokens", "-1"),
        ("plan", "a", "b", "--tokens", "1e3"),
        ("plan", "a", "b", "--tokens", "9" * 13),
    ],
)
def test_arguments_that_are_wrong(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    status, out, err = run(capsys, *args)
    assert (status, out) == (2, "")
    assert err.startswith("usage: transload abi")


@pytest.mark.parametrize("args", [("--help",), ("plan", "--help")])
def test_help(capsys: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    status, out, _ = run(capsys, *args)
    assert status == 0
    assert out.startswith("usage: transload abi")
