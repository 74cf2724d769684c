"""Subscriptions to engines' KV events over ZMQ: `EventSubscriber` and where publishers are."""

from transload_router.io.events.feed import Limits, Sink
from transload_router.io.events.sources import BadSources, Source, named_source, read_sources
from transload_router.io.events.subscriber import EventSubscriber

__all__ = [
    "BadSources",
    "EventSubscriber",
    "Limits",
    "Sink",
    "Source",
    "named_source",
    "read_sources",
]
