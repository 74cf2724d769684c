"""The commands `check` and `harness`, the same for descriptors and the wire."""

import argparse
import shlex
import sys
from collections.abc import Callable
from typing import Any, Final

from transload_abi.harness.process import ANSWER_S, HarnessProcess
from transload_abi.harness.protocol import HarnessFailed, Implementation
from transload_abi.harness.report import Tally, Vectors, run

_CHECK_NOTES: Final = """\
exit status:
  0  all vectors hold
  1  one does not, or the harness breaks the rules, or, unless --allow-unsupported is given, it
     does not offer an operation
  2  bad input
"""


def add_commands(
    commands: Any,
    check: Callable[[argparse.Namespace], int],
    harness: Callable[[argparse.Namespace], int],
) -> None:
    """Both commands, with what runs them.

    Args:
        commands: What `ArgumentParser.add_subparsers` returns.
        check: Runs `check`.
        harness: Runs `harness`.
    """
    parser = commands.add_parser(
        "check",
        help="put the conformance vectors in a folder to an implementation",
        epilog=_CHECK_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument(
        "--with",
        dest="harness",
        metavar="COMMAND",
        help="another one's harness, program and arguments in one text; connector/HARNESS.md says "
        "what it does [this implementation]",
    )
    parser.add_argument(
        "--answer-s",
        type=_seconds,
        default=ANSWER_S,
        metavar="SECONDS",
        help=f"how long the harness may take for an answer [{ANSWER_S:g}]",
    )
    parser.add_argument(
        "--allow-unsupported",
        action="store_true",
        help="a harness need not offer all operations",
    )
    parser.set_defaults(run=check)
    parser = commands.add_parser(
        "harness", help="offer this implementation on standard input and output"
    )
    parser.set_defaults(run=harness)


def run_check(
    options: argparse.Namespace,
    ours: Implementation,
    vectors_for: Callable[[Implementation], Vectors],
) -> int:
    """Put vectors to the implementation that was asked for, and print; the exit status.

    Raises:
        HarnessFailed: The harness cannot be started.
    """
    if options.harness is None:
        return _judge(vectors_for(ours), options)
    with HarnessProcess(_words(options.harness), options.answer_s) as harness:
        return _judge(vectors_for(harness), options)


def _judge(vectors: Vectors, options: argparse.Namespace) -> int:
    tally = Tally(len(vectors))
    for result in run(vectors):
        _print(tally.line(result))
    _print(tally.summary())
    return tally.status(allow_unsupported=options.allow_unsupported)


def _print(line: str) -> None:
    sys.stdout.write("".join(each if each.isprintable() else "?" for each in line) + "\n")


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise HarnessFailed(f"the harness cannot be started: {error}") from error
    if not words:
        raise HarnessFailed("the harness cannot be started: an empty command")
    return words


def _seconds(text: str) -> float:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 5 and int(text)):
        raise argparse.ArgumentTypeError(f"expected whole seconds, got {text[:40]!r}")
    return float(text)
