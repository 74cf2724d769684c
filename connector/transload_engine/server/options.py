"""Options that both kinds of engine have, called as in vLLM where it has them."""

import argparse
from pathlib import Path

from transload_engine.core.events import EventForm
from transload_engine.core.hashes import HashAlgorithm
from transload_engine.core.settings import CoreSettings
from transload_engine.server.engine import LOOPBACK, EventPorts


def add_options(made: argparse.ArgumentParser, hash_algorithm: HashAlgorithm) -> None:
    """Add them to a parser.

    Args:
        made: To add them to.
        hash_algorithm: The default of `--prefix-caching-hash-algo`.
    """
    add, flag, core = made.add_argument, argparse.BooleanOptionalAction, CoreSettings()
    add("--host", default=LOOPBACK)
    add("--tokenizer", type=Path, help="a model's folder; default: the model's, or bytes")
    add("--block-size", type=int, default=core.block_size)
    add("--max-num-seqs", type=int, default=core.max_requests)
    add("--enable-prefix-caching", action=flag, default=True)
    algorithms = [str(each) for each in HashAlgorithm]
    add("--prefix-caching-hash-algo", choices=algorithms, default=str(hash_algorithm))
    add("--enable-prompt-tokens-details", action=flag, default=True)
    add("--events-port", type=int, default=0, help="0: any; ranks and engines follow")
    add("--replay-port", type=int, default=0, help="0: any; ranks and engines follow")
    add("--events-topic", default="")
    add("--event-form", choices=[str(form) for form in EventForm], default=str(EventForm.MAP))
    add("--event-hashes", choices=("int", "bytes"), default="int")
    add("--events", action=flag, default=True, help="whether cache events are published")


def event_ports(given: argparse.Namespace) -> EventPorts | None:
    """Where events go; None for none.

    Raises:
        ValueError: A port is none.
    """
    ports = EventPorts(
        events=given.events_port,
        replay=given.replay_port,
        topic=given.events_topic,
        form=EventForm(given.event_form),
    )
    return ports if given.events else None
