"""From what differs to one line for each vector, a summary and an exit status."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from transload_abi.errors import AbiError
from transload_abi.harness.protocol import HarnessFailed, NotOffered

Vectors = list[tuple[str, Iterator[str]]]
"""Of each vector its name and, when iterated, a sentence for each thing that differs."""


class Result(NamedTuple):
    """One vector.

    Attributes:
        name: The kind and the folder or file, as `decode/odd-bf16`.
        failures: Each difference in a sentence that names the file.
        skipped: What of it could not be asked; empty: all was.
    """

    name: str
    failures: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def is_passed(self) -> bool:
        """Whether all was asked and nothing differs."""
        return not self.failures and not self.skipped


def run(vectors: Vectors) -> Iterator[Result]:
    """The result of each vector; those behind one at which a harness fails are left out."""
    for name, differences in vectors:
        failures: list[str] = []
        skipped, is_over = "", False
        try:
            failures.extend(differences)
        except NotOffered as error:
            skipped = str(error)
        except HarnessFailed as error:
            failures.append(str(error))
            is_over = True
        except AbiError as error:
            failures.append(f"{type(error).__name__}: {error}")
        except (OSError, KeyError, json.JSONDecodeError) as error:
            failures.append(f"the vector itself cannot be read: {error!r}")
        yield Result(name, tuple(failures), skipped)
        if is_over:
            return


class Tally:
    """Counts results and puts them in words.

    Args:
        num_vectors: How many there are, run or not.
    """

    def __init__(self, num_vectors: int) -> None:
        self._num_vectors = num_vectors
        self._num_run = self._num_failed = self._num_skipped = 0

    def line(self, result: Result) -> str:
        """A vector's line."""
        self._num_run += 1
        if result.failures:
            self._num_failed += 1
            return f"{result.name}: {'; '.join(result.failures)}"
        if result.skipped:
            self._num_skipped += 1
            return f"{result.name}: skipped, not offered: {result.skipped}"
        return f"{result.name}: ok"

    def summary(self) -> str:
        """The last line."""
        counts = [f"{self._num_run} vectors", f"{self._num_failed} failed"]
        if self._num_skipped:
            counts.append(f"{self._num_skipped} skipped")
        if self._num_run < self._num_vectors:
            counts.append(f"{self._num_vectors - self._num_run} not run")
        return ", ".join(counts)

    def status(self, *, allow_unsupported: bool) -> int:
        """The exit status, 0 or 1."""
        return 1 if self._num_failed or (self._num_skipped and not allow_unsupported) else 0


def unequal(what: str, found: Any, due: Any) -> Iterator[str]:
    """A sentence where two JSON values differ; `true` and 1 do."""
    if json.dumps(found, sort_keys=True) != json.dumps(due, sort_keys=True):
        yield f"{what}: expected {due}, got {found}"
