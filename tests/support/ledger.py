"""The book of handoffs: each one issued must come back, once, as a presentation or a release."""

import itertools
from collections import Counter
from dataclasses import dataclass, field

_numbers = itertools.count(1)
# Beyond a double's 53 bits, spelled in ways that a re-serialisation would not keep, and with an
# engine's own nesting: one list of block ids per cache group.
_TEMPLATE = (
    '{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[%d,17,18],[]],'
    '"remote_engine_id":"6f0d-%s", "remote_request_id":"cmpl-%d-0","remote_host":"127.0.0.1",'
    '"remote_port":5600,"tp_size":1%s,"opaque":9223372036854775807,"ratio":1.50e+2,'
    '"note":"\\u00fc\\/","nested":{"a":[1,[2,{"b":null}]]}}'
)


@dataclass(slots=True)
class Ledger:
    """What prefill engines issued and what came back.

    Attributes:
        issued: Handoffs in answers that left an engine whole, as raw JSON.
        presented: How often each came with a decode request.
        released: How often each came with a request shaped to free it.
        unknown: Transfer parameters that no engine issued.
    """

    issued: list[bytes] = field(default_factory=list)
    presented: Counter[bytes] = field(default_factory=Counter)
    released: Counter[bytes] = field(default_factory=Counter)
    unknown: list[bytes] = field(default_factory=list)

    def clear(self) -> None:
        """Forget everything."""
        self.issued.clear()
        self.presented.clear()
        self.released.clear()
        self.unknown.clear()

    def new(self, engine: str, cached_tokens: int | None = 0) -> bytes:
        """A handoff that was never seen before.

        Args:
            engine: Goes into `remote_engine_id`.
            cached_tokens: As 0.32 reports it; None for engines that do not.
        """
        number = next(_numbers)
        cached = "" if cached_tokens is None else f',"remote_prefill_cached_tokens":{cached_tokens}'
        return (_TEMPLATE % (number, engine, number, cached)).encode()

    def present(self, handoff: bytes) -> None:
        """A decode engine has read a request with it."""
        self._note(self.presented, handoff)

    def leave_alone(self, handoff: bytes) -> None:
        """A decode engine refused the request before it looked at the handoff."""
        self.presented[handoff] -= 1

    def release(self, handoff: bytes) -> None:
        """A decode engine has read a request shaped to free it."""
        self._note(self.released, handoff)

    def _note(self, counter: Counter[bytes], handoff: bytes) -> None:
        if handoff not in self.issued:
            self.unknown.append(handoff)
        counter[handoff] += 1

    @property
    def pinned(self) -> list[bytes]:
        """Handoffs whose blocks only a lease will free."""
        return [one for one in self.issued if not self.presented[one] + self.released[one]]

    def faults(self) -> list[str]:
        """What is wrong, pinned handoffs aside; empty where all is well."""
        return [
            *(f"never issued: {one!r}" for one in self.unknown),
            *(
                f"came back {count} times: {one!r}"
                for one in self.issued
                if (count := self.presented[one] + self.released[one]) > 1
            ),
        ]
