"""The truth about moving KV between engines: one NIC each, transfers one after the other."""


class Links:
    """Links of a fleet.

    A transfer starts when the sender's outgoing and the receiver's incoming side are both free, and
    takes a latency plus its bytes at the link's rate; so many decodes fetching from one prefill
    engine wait for each other. Engines of different zones are joined by a slower link.

    Args:
        num_zones: Engine i stands in zone i mod `num_zones`.
        far_factor: How much longer a byte takes between zones.
    """

    def __init__(
        self,
        latency_s: float,
        bytes_per_s: float,
        *,
        num_zones: int = 1,
        far_factor: float = 4.0,
    ) -> None:
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._num_zones = num_zones
        self._far_factor = far_factor
        self._sender_free_s: dict[int, float] = {}
        self._receiver_free_s: dict[int, float] = {}

    def wait_s(self, sender: int, receiver: int, now_s: float) -> float:
        """Until a transfer could start."""
        free_s = max(self._sender_free_s.get(sender, 0.0), self._receiver_free_s.get(receiver, 0.0))
        return max(0.0, free_s - now_s)

    def transfer_s(self, sender: int, receiver: int, num_bytes: float) -> float:
        """How long a transfer takes once it has started."""
        is_far = sender % self._num_zones != receiver % self._num_zones
        factor = self._far_factor if is_far else 1.0
        return self._latency_s + num_bytes / self._bytes_per_s * factor

    def send(self, sender: int, receiver: int, num_bytes: float, now_s: float) -> float:
        """Start a transfer or queue it; returns the moment it will be done."""
        start_s = now_s + self.wait_s(sender, receiver, now_s)
        end_s = start_s + self.transfer_s(sender, receiver, num_bytes)
        self._sender_free_s[sender] = self._receiver_free_s[receiver] = end_s
        return end_s
