"""What a body's `kv_transfer_params` ask of an engine with a model, or why that cannot be served.

Parameters of other connectors are none of this room's business: they come to nothing, or to a load
that fails by name.
"""

from typing import Any, Final

from transload_abi.wire.limits import MAX_NAME_CHARS, MAX_READERS
from transload_engine.core.handoff import NEEDED, OWN_KEY, WIRE
from transload_engine.server.listen import MAX_PORT
from transload_engine.server.wants import Refusal, Want

READERS_KEY: Final = "transload_readers"
"""With `do_remote_decode`: how many engines will read the blocks; one where it is absent."""


def check_params(want: Want) -> None:
    """Refuse what no handoff could come of.

    Raises:
        Refusal: As it says, naming the parameter.
    """
    params = want.handoff
    is_prefill, is_decode = bool(params.get("do_remote_decode")), _has_load(params)
    if is_prefill or is_decode:
        if len(want.prompts) > 1:
            raise _refusal("", "are of one prompt", f"{len(want.prompts)} prompts")
        if is_prefill and is_decode:
            raise _refusal("do_remote_decode", "cannot be asked for with a prompt that is loaded")
    if is_prefill:
        _check_prefill(params, want)
    if is_decode:
        _check_load(params)


def num_readers(params: dict[str, Any]) -> int:
    """Engines that are to read a prefill's blocks; the parameters are checked."""
    readers = params.get(READERS_KEY) if params.get("do_remote_decode") else None
    return 1 if readers is None else int(readers)


def is_load(params: dict[str, Any]) -> bool:
    """Whether there is a handoff that can be asked for, or given up."""
    try:
        _check_load(params)
    except Refusal:
        return False
    return True


def _has_load(params: dict[str, Any]) -> bool:
    return bool(params.get("do_remote_prefill")) and all(params.get(name) for name in NEEDED)


def _check_prefill(params: dict[str, Any], want: Want) -> None:
    if want.num_choices > 1:
        raise _refusal("do_remote_decode", "is for one answer", f"n={want.num_choices}")
    if want.streams:
        raise _refusal("do_remote_decode", "needs an answer that can carry it", "stream=true")
    if params.get(READERS_KEY) is not None:
        _check_readers(params[READERS_KEY], READERS_KEY)


def _check_load(params: dict[str, Any]) -> None:
    port, blocks = params.get("remote_port"), params.get("remote_block_ids")
    if type(port) is not int or not 1 <= port <= MAX_PORT:
        raise _refusal("remote_port", f"is a number of 1 to {MAX_PORT}", repr(port))
    if not isinstance(blocks, list):
        raise _refusal("remote_block_ids", "is a list", type(blocks).__name__)
    for name in ("remote_engine_id", "remote_request_id", "remote_host"):
        _check_name(params, name, name)
    host = params["remote_host"]
    if not _is_host(host):
        raise _refusal("remote_host", "is a host's name or number", repr(host))
    own = params.get(OWN_KEY)
    if own is None:
        return
    if not isinstance(own, dict):
        raise _refusal(OWN_KEY, "is an object", type(own).__name__)
    if own.get("wire") == WIRE:
        for name in ("lease", "generation", "prompt"):
            _check_name(own, name, f"{OWN_KEY}.{name}")
        _check_readers(own.get("readers", 1), f"{OWN_KEY}.readers")


def _check_readers(readers: object, path: str) -> None:
    if type(readers) is not int or not 1 <= readers <= MAX_READERS:
        raise _refusal(path, f"is a number of 1 to {MAX_READERS}", repr(readers))


def _check_name(holder: dict[str, Any], name: str, path: str) -> None:
    given = holder.get(name)
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_NAME_CHARS:
        told = f"{len(given)} characters" if isinstance(given, str) else type(given).__name__
        raise _refusal(path, f"is text of 1 to {MAX_NAME_CHARS} characters", told)


def _is_host(name: str) -> bool:
    """Whether it can be looked up at all: labels that are empty or too long cannot."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return "\0" not in name


def _refusal(name: str, expected: str, given: str = "") -> Refusal:
    param = f"kv_transfer_params.{name}" if name else "kv_transfer_params"
    text = f"`{param}` {expected}"
    return Refusal(f"{text}; got {given[:80]}" if given else text, param, is_unread=True)
