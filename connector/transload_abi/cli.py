"""The command `transload abi`: what descriptors say, how two differ, and what would be moved.

Exit status: 0 well, 1 `diff` found a loss or `check` a failure, 2 bad input, 3 refused. Reads files
and standard input; needs msgspec alone, and numpy for `check` and `harness`.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from transload_abi.errors import AbiError, Refused
from transload_abi.harness.command import add_commands, run_check
from transload_abi.harness.serve import serve
from transload_abi.limits import MAX_DOCUMENT_BYTES
from transload_abi.types import Descriptor

BAD_INPUT: Final = 2
REFUSED: Final = 3

_DIFF_STATUS: Final = {"identical": 0, "lossless": 0, "lossy": 1, "refused": REFUSED}

_VECTOR_KINDS: Final = ("decode/", "convert/", "accepted/", "refused/")

_DIFF_NOTES: Final = """\
exit status, by the verdict from A to B:
  0  identical or lossless
  1  lossy
  2  bad input
  3  refused
"""

_PLAN_NOTES: Final = """\
"register" lists the regions of each pool that a transport has to make known to its network
before it may read or write there; they hold all blocks, not this request's alone.

--runs prints a line for each copy
  kv+8192 -> kv+4096: 512 x 2 (+4096, +1024)
from byte 8192 of the source's pool kv to byte 4096 of the destination's: 512 bytes, 2 times,
each 4096 bytes further at the source and 1024 at the destination. Several loops are nested,
the outermost first. Then, where values change, a line for each role of a layer
  convert k of layer 0: bf16 (none) -> e4m3 (fp8_per_tensor), 3 pieces

exit status:
  0  planned
  2  bad input
  3  refused; also lossy, unless --allow-lossy is given
"""


class _BadFile(Exception):
    """A file cannot be used; the text names it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit status."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        status = run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has gone; what is left must not be written at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Refused as error:
        return _fail(options.command, str(error), REFUSED)
    except (AbiError, _BadFile) as error:
        return _fail(options.command, str(error), BAD_INPUT)
    return status


def _fail(command: str, message: str, status: int) -> int:
    line = "".join(each if each.isprintable() else "?" for each in message)
    sys.stderr.write(f"transload abi {command}: {line}\n")
    return status


# --- commands


def _show(options: argparse.Namespace) -> int:
    descriptor = _read(options.file)
    if options.json:
        from transload_abi.text import encode_json

        sys.stdout.write(encode_json(descriptor).decode() + "\n")
    if options.fingerprints:
        sys.stdout.write(_fingerprint_text(descriptor))
    if not options.json and not options.fingerprints:
        from transload_abi.picture import describe

        sys.stdout.write(describe(descriptor))
    return 0


def _fingerprint_text(descriptor: Descriptor) -> str:
    from transload_abi.fingerprints import of_descriptor, of_groups

    lines = []
    named = [("whole", of_descriptor(descriptor))]
    named += [
        (f"group {group.id}", found)
        for group, found in zip(descriptor.groups, of_groups(descriptor), strict=True)
    ]
    for title, prints in named:
        lines.append(title)
        lines += [f"  {name:<10} {digest}" for name, digest in prints._asdict().items()]
    return "\n".join(lines) + "\n"


def _diff(options: argparse.Namespace) -> int:
    from transload_abi.cli_diff import diff_text

    a, b = _read_both(options)
    text, verdict = diff_text((options.a, options.b), a, b)
    sys.stdout.write(text)
    return _DIFF_STATUS[verdict]


def _plan(options: argparse.Namespace) -> int:
    from transload_abi.cli_plan import Request, plan_text, read_blocks

    src, dst = _read_both(options)
    request = Request(
        options.tokens,
        options.first_token,
        read_blocks(options.src_blocks, "--src-blocks"),
        read_blocks(options.dst_blocks, "--dst-blocks"),
    )
    sys.stdout.write(
        plan_text(src, dst, request, allow_lossy=options.allow_lossy, has_runs=options.runs)
    )
    return 0


def _check(options: argparse.Namespace) -> int:
    vectors = _import_vectors()
    folder = Path(options.folder)
    if not any((folder / kind).is_dir() for kind in _VECTOR_KINDS):
        kinds = f"{', '.join(_VECTOR_KINDS[:-1])} or {_VECTOR_KINDS[-1]}"
        raise _BadFile(f"expected {kinds} in {folder}")
    return run_check(options, vectors.OURS, lambda by: vectors.vectors_in(folder, by))


def _harness(options: argparse.Namespace) -> int:
    serve(_import_vectors().OURS)
    return 0


def _import_vectors() -> ModuleType:
    try:
        import transload_abi.vectors as vectors
    except ModuleNotFoundError as error:
        raise _BadFile(
            f"the package {error.name} is missing; it comes with pip install 'transload[abi]'"
        ) from error
    return vectors


# --- input


def _read_both(options: argparse.Namespace) -> tuple[Descriptor, Descriptor]:
    if options.a == options.b == "-":
        raise _BadFile("standard input can be only one of the two")
    return _read(options.a), _read(options.b)


def _read(name: str) -> Descriptor:
    """The descriptor in a file, or on standard input where the name is `-`."""
    from transload_abi.text import read

    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise _BadFile(f"cannot read {name}: {error.strerror}") from error
    try:
        return read(data)
    except AbiError as error:
        raise _BadFile(f"{'standard input' if name == '-' else name}: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="transload abi",
        description="What the bytes of KV caches mean. FILE is JSON or MessagePack; - is "
        "standard input.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    show = commands.add_parser("show", help="say in words what a descriptor says")
    show.add_argument("file", metavar="FILE")
    show.add_argument("--json", action="store_true", help="print the canonical JSON instead")
    show.add_argument("--fingerprints", action="store_true", help="print the fingerprints instead")
    show.set_defaults(run=_show)

    diff = commands.add_parser(
        "diff",
        help="what differs, and whether A's blocks become B's",
        epilog=_DIFF_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    diff.add_argument("a", metavar="A", help="a descriptor")
    diff.add_argument("b", metavar="B", help="the one to compare it with")
    diff.set_defaults(run=_diff)

    plan = commands.add_parser(
        "plan",
        help="what a transport would move from A to B",
        epilog=_PLAN_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_plan_options(plan)
    plan.set_defaults(run=_plan)

    add_commands(commands, _check, _harness)
    return parser


def _add_plan_options(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("a", metavar="A", help="the source")
    plan.add_argument("b", metavar="B", help="the destination")
    plan.add_argument("--tokens", type=_count, required=True, metavar="N", help="of the request")
    plan.add_argument(
        "--first-token",
        type=_count,
        default=0,
        metavar="N",
        help="the first that the destination wants [0]",
    )
    for side in ("src", "dst"):
        plan.add_argument(
            f"--{side}-blocks",
            action="append",
            default=[],
            metavar="IDS",
            help="block ids as 3,4,9-20 for table 0, or 1=3,4 for table 1; again for each table "
            "[scattered ones]",
        )
    plan.add_argument("--allow-lossy", action="store_true", help="values may be rounded")
    plan.add_argument("--runs", action="store_true", help="list all copies and conversions")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text[:40]!r}")
    return int(text)
