"""Messages as bytes and back: one spelling, and every field within its limits.

The spelling is that of a descriptor's MessagePack twin. A writer leaves out what equals its
default; a reader takes it either way, ignores fields whose name begins with `x_`, and refuses all
others that it does not know. What fields must hold among each other across messages (ids that
ascend, a stream that was offered) is the machines' to see.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from transload_abi.errors import DescriptorError
from transload_abi.packed import pack, unpack
from transload_abi.tree import EXTENSION_PREFIX, Tree, inspect, join, nested, quote, tree_of
from transload_abi.wire.errors import BadMessage, Unsendable
from transload_abi.wire.field_rules import FieldError, check_fields
from transload_abi.wire.frames import message_frame
from transload_abi.wire.limits import MAX_MESSAGE_BYTES, MAX_UNPROVEN_BYTES
from transload_abi.wire.messages import (
    Attach,
    Attached,
    Hello,
    HolderMessage,
    Message,
    Prove,
    ReaderMessage,
    Welcome,
)

Sender = Literal["reader", "holder"]

TYPE: Final = "type"

_UNIONS: Final[Mapping[Sender, Any]] = {"reader": ReaderMessage, "holder": HolderMessage}
_STRUCTS: Final = {
    sender: {struct.__struct_config__.tag: struct for struct in union.__args__}
    for sender, union in _UNIONS.items()
}
"""By sender and type."""

_UNPROVEN: Final = (Hello, Welcome, Prove, Attach, Attached)
"""Said before a proof was taken, or on a data stream: never longer than `MAX_UNPROVEN_BYTES`."""

_LACKING: Final = re.compile(r"Object missing required field `(.*)`")
_AT: Final = re.compile(r" - at `(?:key in )?\$\.?(.*)`$", re.DOTALL)


def encode(message: Message) -> bytes:
    """The frame of a message; with the errors of `encode_body`."""
    return message_frame(encode_body(message))


def encode_body(message: Message) -> bytes:
    """The MessagePack map of a message, in the one form without fields that equal their default.

    Raises:
        Unsendable: A field is beyond its limits, or the whole is.
    """
    name = type_of(message)
    tree = {TYPE: name, **tree_of(message)}
    try:
        inspect(tree, name)
        check_fields(message)
    except DescriptorError as error:
        raise Unsendable(str(error)) from None
    except FieldError as error:
        raise Unsendable(error.problem, f"{name}.{error.field}") from None
    body = pack(tree)
    most = _max_bytes(type(message))
    if len(body) > most:
        raise Unsendable(f"{len(body)} bytes, more than {most}", name)
    return body


def decode(body: bytes, sender: Sender) -> Message:
    """The message that a frame's body is.

    Args:
        body: As `frames.MessageFrame` has it.
        sender: Whose messages may come; those of the other side alone are refused.

    Raises:
        BadMessage: Not the strict form, an unknown type or field, a field out of range.
    """
    tree = read_tree(body)
    name = tree.get(TYPE)
    struct = _STRUCTS[sender].get(name) if isinstance(name, str) else None
    if struct is None:
        got = quote(name) if TYPE in tree else "none"
        raise BadMessage(f"no message of a {sender} in this version: {got}", TYPE)
    if len(body) > _max_bytes(struct):
        raise BadMessage(f"{len(body)} bytes, more than {_max_bytes(struct)}", str(name))
    known = {key: item for key, item in tree.items() if key != TYPE}
    known = _known_fields(known, struct, str(name))
    try:
        message: Message = msgspec.convert({TYPE: name, **known}, struct, strict=True)
        check_fields(message)
    except msgspec.ValidationError as error:
        raise _schema_error(str(error), str(name)) from None
    except FieldError as error:
        raise BadMessage(error.problem, f"{name}.{error.field}") from None
    return message


def read_tree(body: bytes) -> dict[str, Tree]:
    """A message's fields as they came, extensions included.

    Raises:
        BadMessage: Not a map in the strict form, or too long.
    """
    if len(body) > MAX_MESSAGE_BYTES:
        raise BadMessage(f"{len(body)} bytes, more than {MAX_MESSAGE_BYTES}")
    try:
        tree = unpack(body)
        inspect(tree, _known_type(tree))
    except DescriptorError as error:
        raise BadMessage(str(error).removeprefix(f"{error.path}: "), error.path) from None
    if not isinstance(tree, dict):
        raise BadMessage(f"expected a map, got {quote(tree)}")
    return tree


def type_of(message: Message) -> str:
    """The name of a message's type on the wire."""
    return str(message.__struct_config__.tag)


def _max_bytes(struct: type[Message]) -> int:
    return MAX_UNPROVEN_BYTES if struct in _UNPROVEN else MAX_MESSAGE_BYTES


def _known_type(tree: Tree) -> str:
    """The message's type, for the path of an error; empty where it is none."""
    name = tree.get(TYPE) if isinstance(tree, dict) else None
    is_known = isinstance(name, str) and any(name in structs for structs in _STRUCTS.values())
    return str(name) if is_known else ""


def _known_fields(tree: dict[str, Tree], struct: type[msgspec.Struct], path: str) -> Tree:
    """A tree without its extensions, at every level at which a struct stands."""
    fields = nested(struct)
    known: dict[str, Tree] = {}
    for name, item in tree.items():
        if name.startswith(EXTENSION_PREFIX):
            continue
        if name not in fields:
            raise BadMessage("a field that this version lacks", join(path, name))
        inner = fields[name]
        if inner is not None and isinstance(item, list):
            known[name] = [
                _known_fields(each, inner.struct, f"{path}.{name}[{index}]")
                if isinstance(each, dict)
                else each
                for index, each in enumerate(item)
            ]
        else:
            known[name] = item
    return known


def _schema_error(text: str, name: str) -> BadMessage:
    """An error of msgspec in our words, its path without the `$`."""
    found = _AT.search(text)
    path = f"{name}.{found[1]}" if found and found[1] else name
    message = _AT.sub("", text)
    lacking = _LACKING.fullmatch(message)
    if lacking:
        return BadMessage("is missing", join(path, lacking[1]))
    if message.startswith("Invalid enum value "):
        value = message.removeprefix("Invalid enum value ").strip("'")
        return BadMessage(f"{quote(value)} is none of those that this version knows", path)
    return BadMessage(message[:1].lower() + message[1:], path)
