"""What moved between an engine and others, and why something did not: values and counts."""

import enum
from collections import Counter
from dataclasses import dataclass, field


class LoadProblem(enum.StrEnum):
    """Why blocks that were promised did not come.

    Attributes:
        FOREIGN: The handoff says nothing of `kvwire/1`: it was written for another connector.
        PROMPT: It is of a prompt of another length.
        CONFLICT: It is open here under another lease, or as many others are as may be.
        UNREACHABLE: Nobody is at its address, or whoever was there has gone.
        REFUSED: The other engine will not, or its blocks do not become blocks of this one.
        EXPIRED: They are not held any more.
        CORRUPT: What came is not what was sent, or breaks a rule of the protocol.
        TIMEOUT: It came too late.
        ABORTED: Nobody waits for the request any more.
    """

    FOREIGN = "foreign"
    PROMPT = "prompt"
    CONFLICT = "conflict"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    EXPIRED = "expired"
    CORRUPT = "corrupt"
    TIMEOUT = "timeout"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """A load that brought nothing.

    Attributes:
        path: The descriptor's field that two engines differ in, without the numbers of groups and
            the names of parameters; empty where that is not the reason.
        message: For an operator; names the other engine.
    """

    problem: LoadProblem
    message: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A load that brought all.

    Attributes:
        num_bytes: That came.
        seconds: From its begin to the last byte in its place.
        is_shared: Whether they were read where the other engine has them.
    """

    num_bytes: int
    seconds: float
    is_shared: bool = False


@dataclass
class Transfers:
    """Counts of one engine since its start.

    Attributes:
        num_shared_loads: Of all loads those by shared memory.
        failures: By problem and path.
        num_granted: Handoffs.
        ends: Handoffs that have ended: their readers were done, or nobody came in time, or somebody
            said that nobody would.
    """

    num_loads: int = 0
    num_shared_loads: int = 0
    num_loaded_tokens: int = 0
    num_loaded_bytes: int = 0
    load_seconds: float = 0.0
    failures: Counter[tuple[LoadProblem, str]] = field(default_factory=Counter)
    num_granted: int = 0
    ends: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("ended", "expired", "forgone"), 0)
    )

    def count(self, outcome: Loaded | FailedLoad, num_tokens: int) -> None:
        """A load of so many tokens has ended; who is aborted has neither loaded nor failed."""
        if isinstance(outcome, Loaded):
            self.num_loads += 1
            self.num_shared_loads += outcome.is_shared
            self.num_loaded_tokens += num_tokens
            self.num_loaded_bytes += outcome.num_bytes
            self.load_seconds += outcome.seconds
        elif outcome.problem is not LoadProblem.ABORTED:
            self.failures[outcome.problem, outcome.path] += 1
