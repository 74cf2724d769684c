"""`transload abi` as operators run it: the installed command, on files, with msgspec alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.abi_placements import vllm, vllm_cpu
from transload_abi.text import encode_json

INSTALLED = (str(Path(sys.executable).with_name("transload")), "abi")
MODULE = (sys.executable, "-m", "transload_abi")
ROUTER = (sys.executable, "-m", "transload_router", "abi")
ROUTER_CLI = (sys.executable, "-m", "transload_router.cli", "abi")

# Raises what an installation without the extras raises, and tells what has been imported.
BARE = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from transload_router.__main__ import run
sys.argv[0] = "transload"
status = run()
there = {name.partition(".")[0] for name, module in sys.modules.items() if module}
print(*sorted(there - set(sys.stdlib_module_names)), file=sys.stderr)
sys.exit(status)
"""
EXTRAS = (
    "fastapi,starlette,uvicorn,uvloop,httptools,httpx,pydantic,pydantic_settings,yaml,"
    "prometheus_client,zmq,xxhash,tokenizers,jinja2,torch,triton,numpy,typing_extensions"
)
TIMEOUT_S = 30


def run(*args: str, data: bytes = b"") -> tuple[int, str, str]:
    done = subprocess.run(args, input=data, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert b"Traceback" not in done.stderr
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def bare(*args: str) -> tuple[int, str, str]:
    return run(sys.executable, "-c", BARE, EXTRAS, "abi", *args)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    cpu, flash = tmp_path / "cpu.json", tmp_path / "flash.json"
    cpu.write_bytes(encode_json(vllm_cpu()))
    flash.write_bytes(encode_json(vllm("LBHNC")))
    return str(cpu), str(flash)


@pytest.mark.parametrize("command", [INSTALLED, MODULE, ROUTER, ROUTER_CLI], ids=" ".join)
def test_every_way_to_start_it(command: tuple[str, ...], files: tuple[str, str]) -> None:
    status, out, err = run(*command, "diff", *files)
    assert (status, err) == (0, "")
    assert "a transpose, no bit changes" in out
    assert out.endswith("both ways lossless: every value is kept\n")


@pytest.mark.parametrize(
    "args",
    [
        ("show", "{cpu}"),
        ("show", "{cpu}", "--json"),
        ("show", "{cpu}", "--fingerprints"),
        ("diff", "{cpu}", "{flash}"),
        ("plan", "{cpu}", "{flash}", "--tokens", "20"),
    ],
    ids=" ".join,
)
def test_msgspec_is_all_it_needs(args: tuple[str, ...], files: tuple[str, str]) -> None:
    cpu, flash = files
    status, out, err = bare(*(each.format(cpu=cpu, flash=flash) for each in args))
    assert status == 0
    assert out
    packages = {name for name in err.split() if not name.startswith("_")}
    assert packages <= {"msgspec", "transload_abi", "transload_router"}


def test_check_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    status, _, err = bare("check", str(tmp_path))
    assert status == 2
    assert err.splitlines()[0] == (
        "transload abi check: the package numpy is missing; "
        "it comes with pip install 'transload[abi]'"
    )


def test_without_its_packages_the_router_says_so() -> None:
    code = BARE.replace("status = run()", "sys.argv[1:] = ['serve']; status = run()")
    status, _, err = run(sys.executable, "-c", code, EXTRAS)
    assert status == 1
    assert "pip install 'transload[router]'" in err


def test_descriptors_from_a_pipe(files: tuple[str, str]) -> None:
    cpu, flash = files
    _, packed, _ = run(*MODULE, "show", cpu, "--json")
    status, out, _ = run(*MODULE, "diff", "-", flash, data=packed.encode())
    assert status == 0
    assert "both ways lossless" in out


def test_a_reader_that_goes_away(files: tuple[str, str]) -> None:
    """As with `transload abi plan ... --runs | head`."""
    with subprocess.Popen(
        [*MODULE, "plan", *files, "--tokens", "32", "--runs"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(TIMEOUT_S) == 1
    assert err == b""


def test_the_usage_of_transload_lists_it() -> None:
    status, out, _ = run(sys.executable, "-m", "transload_router", "help")
    assert status == 0
    assert "\n  abi " in out
