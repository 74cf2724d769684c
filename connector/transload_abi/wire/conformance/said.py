"""What a side of a session says, in bytes, as what it means: to be compared with a recording."""

from collections.abc import Iterator
from typing import NamedTuple

from transload_abi.harness.protocol import Fields
from transload_abi.limits import MAX_DOCUMENT_BYTES
from transload_abi.tree import tree_of
from transload_abi.wire import codec, frames
from transload_abi.wire.errors import WireError
from transload_abi.wire.limits import MAX_DATA_BYTES
from transload_abi.wire.spans import Spans

_FREE = ("reason",)
"""Fields whose words are a side's own."""


class Said(NamedTuple):
    """One frame.

    Attributes:
        stream: On which it goes.
        message: Its fields, without those that are a side's own to choose.
        descriptor: In hex.
        data: A data frame's header; `None` where it is none.
        bytes_: The data.
    """

    stream: int
    message: Fields | None = None
    descriptor: str = ""
    data: frames.DataBegin | None = None
    bytes_: bytes = b""

    @property
    def is_data(self) -> bool:
        """Whether it is a data frame."""
        return self.data is not None

    @classmethod
    def of_step(cls, step: Fields) -> "Said":
        """The frame of a recorded step that is no data frame."""
        if "message" in step:
            return cls(step["stream"], _bound(step["message"]))
        body = bytes.fromhex(step["bytes"])[frames.HEADER_BYTES :]
        return cls(step["stream"], descriptor=body.hex())


class Listener:
    """Takes all that one side says in a session."""

    def __init__(self, sender: codec.Sender) -> None:
        self._sender = sender
        self._decoders: dict[int, frames.FrameDecoder] = {}

    def hear(self, said: object) -> tuple[list[Said], str]:
        """The frames of an answer's list, and what is wrong with it, or nothing."""
        heard: list[Said] = []
        if not isinstance(said, list):
            return heard, f"expected a list, got {type(said).__name__}"
        for part in said:
            match part:
                case {"stream": int(stream), "bytes": str(text)}:
                    try:
                        self._take(stream, bytes.fromhex(text), heard)
                    except WireError as error:
                        return heard, f"what is no frame: {error}"
                    except ValueError:
                        return heard, "bytes that are no hex digits"
                case _:
                    return heard, "expected objects with stream and bytes"
        unfinished = [n for n, each in self._decoders.items() if not each.is_between_frames]
        return heard, f"a frame on stream {unfinished[0]} does not end" if unfinished else ""

    def _take(self, stream: int, data: bytes, heard: list[Said]) -> None:
        decoder = self._decoders.setdefault(
            stream, frames.FrameDecoder(MAX_DATA_BYTES, MAX_DOCUMENT_BYTES)
        )
        for frame in decoder.feed(data):
            match frame:
                case frames.MessageFrame(body):
                    message = codec.decode(body, self._sender)
                    fields = {codec.TYPE: codec.type_of(message), **tree_of(message)}
                    heard.append(Said(stream, _bound(fields)))
                case frames.DescriptorFrame(body):
                    heard.append(Said(stream, descriptor=body.hex()))
                case frames.DataBegin():
                    heard.append(Said(stream, data=frame))
                case frames.DataBytes(bytes_, _):
                    heard[-1] = heard[-1]._replace(bytes_=heard[-1].bytes_ + bytes(bytes_))


class DataSaid:
    """The data of a holder's reads.

    Args:
        whole: The payloads of those that end well.
        reads: All that are asked for, by id.
    """

    def __init__(self, whole: dict[int, bytes], reads: dict[int, Fields]) -> None:
        self._whole = whole
        self._reads = reads
        self._seen = {read: Spans() for read in whole}

    def take(self, said: Said) -> Iterator[str]:
        """What is wrong with a data frame, or with the end of a read."""
        if said.data is not None:
            yield from self._take_data(said, said.data)
        elif said.message and said.message[codec.TYPE] == "read_end":
            read = said.message["id"]
            if read in self._seen and self._seen[read].num_bytes < len(self._whole[read]):
                yield f"read {read} ends before all of its bytes were sent"

    def _take_data(self, said: Said, begin: frames.DataBegin) -> Iterator[str]:
        read, offset = begin.read, begin.offset
        asked = self._reads.get(read)
        if asked is None or said.stream != asked.get("stream", 0):
            yield f"data of read {read} on stream {said.stream}, which nobody asked for"
            return
        if begin.checksum is None and asked.get("checksums"):
            yield f"data of read {read} without a checksum"
        if begin.checksum not in (None, frames.checksum_of(said.bytes_)):
            yield f"data of read {read} with a wrong checksum"
        if read not in self._whole:
            return
        end = offset + len(said.bytes_)
        if said.bytes_ != self._whole[read][offset:end]:
            yield f"data of read {read} at {offset}: other bytes than recorded"
        elif self._seen[read].overlaps(offset, end):
            yield f"data of read {read} at {offset}: sent twice"
        else:
            self._seen[read].add(offset, end)


def words_of(said: list[Said]) -> list[Fields]:
    """Messages and descriptors to be compared: answers to requests in the order of their ids.

    Args:
        said: Without data frames.
    """
    words: list[Fields] = []
    for each in said:
        what = each.message if each.message is not None else {"descriptor": each.descriptor}
        words.append({"stream": each.stream, **what})
    return sorted(words, key=lambda each: each.get("id", 0))


def _bound(message: Fields) -> Fields:
    return {name: item for name, item in message.items() if name not in _FREE}
