"""An implementation as a harness: requests on standard input, answers on standard output."""

import sys
from typing import BinaryIO

from transload_abi.harness.protocol import Implementation, answer_line, read_request


def serve(by: Implementation, source: BinaryIO | None = None, sink: BinaryIO | None = None) -> None:
    """Answers until the input ends.

    Args:
        by: Is asked.
        source: By default standard input.
        sink: By default standard output.

    Raises:
        HarnessFailed: A line is no request.
    """
    sink = sink or sys.stdout.buffer
    for line in source or sys.stdin.buffer:
        number, operation, fields = read_request(line)
        sink.write(answer_line(number, by.ask(operation, fields)))
        sink.flush()
