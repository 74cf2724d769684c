"""The data path's HTTP/1.1 client: pooled connections that relay bytes."""

from transload_router.io.upstream.client import Sending, Timeouts, Upstream
from transload_router.io.upstream.exchange import Exchange

__all__ = ["Exchange", "Sending", "Timeouts", "Upstream"]
