"""The command `transload wire`: conformance of an implementation of the wire protocol.

Exit status: 0 well, 1 a vector does not hold, 2 bad input. Needs msgspec alone.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from transload_abi.compare import compare
from transload_abi.errors import AbiError, VectorFailed
from transload_abi.harness.command import add_commands, run_check
from transload_abi.harness.serve import serve
from transload_abi.types import Descriptor
from transload_abi.wire.conformance.checks import KINDS, vectors_in
from transload_abi.wire.conformance.ours import ours
from transload_abi.wire.holder_state import Compatible, Incompatible

BAD_INPUT = 2


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
    except AbiError as error:
        line = "".join(each if each.isprintable() else "?" for each in str(error))
        sys.stderr.write(f"transload wire {options.command}: {line}\n")
        return BAD_INPUT
    return status


def _check(options: argparse.Namespace) -> int:
    folder = Path(options.folder)
    if not any((folder / kind).exists() for kind in KINDS):
        raise VectorFailed(f"expected {', '.join(KINDS[:-1])} or {KINDS[-1]} in {folder}")
    return run_check(options, ours(_compare), lambda by: vectors_in(folder, by))


def _harness(_options: argparse.Namespace) -> int:
    serve(ours(_compare))
    return 0


def _compare(holder: Descriptor, reader: Descriptor) -> Compatible | Incompatible:
    found = compare(holder, reader)
    if found.verdict == "refused":
        return Incompatible(found.refusal.path, found.refusal.reason)
    return Compatible(found.verdict)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="transload wire", description="How blocks of a KV cache are read over a network."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_commands(commands, _check, _harness)
    return parser
