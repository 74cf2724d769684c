"""How both sides of one engine's transfer end; what they do is shown by engines that talk."""

import pytest
import torch

from support.transport_world import descriptor, num_descriptors
from transload_abi.wire.ledger import Freed
from transload_connector.transports.reader_client import ReaderClient
from transload_engine.core.handoff import Grant
from transload_engine.server.kv_fetch import KvMemory
from transload_engine.server.kv_sockets import SocketTransfer
from transload_engine.server.kv_transfer import TransferSettings


def test_a_reader_that_does_not_end_keeps_no_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = num_descriptors()
    described = descriptor()
    pools = {"kv": torch.zeros(described.pools[0].num_bytes, dtype=torch.uint8)}
    freed: list[Freed] = []
    memory = KvMemory(described, pools)
    transfer = SocketTransfer(memory, TransferSettings(), "P", "g1", freed.append)
    transfer.grant(Grant("h", "l", [1], 4, 1, ""))
    close = ReaderClient.close

    def fail(client: ReaderClient) -> None:
        close(client)
        raise RuntimeError("it has not ended")

    monkeypatch.setattr(ReaderClient, "close", fail)
    with pytest.raises(RuntimeError, match="it has not ended"):
        transfer.close()
    assert [each.handoff for each in freed] == ["h"]
    assert num_descriptors() == before
