"""A fast stand-in for one vLLM engine: both legs of a handoff over a bare asyncio protocol.

It computes nothing, so what a benchmark in front of it measures is the router. It knows no
router and no benchmark: it answers, and counts what it answered (`GET /stats`).

Rules:
    - `kv_transfer_params.do_remote_decode` makes a request a prefill leg: one JSON answer at
      once, with a handoff of vLLM 0.32's NIXL shape.
    - Any other generation request is a decode leg, or *bare* where it carries no handoff. It is
      answered as JSON at once, or as server-sent events where `stream` is true: one role event,
      then `max_tokens` content events, then `[DONE]`; one HTTP chunk per event.
    - Events are paced as an engine paces them: one step serves every running stream with one
      event, and the next step is `STEP_S` later. A late step is not caught up, so a stream never
      gets two events of one step, and events reach the router one by one. Only `[DONE]` follows
      the last event in the same step, as in vLLM.
    - `GET /pace/0` removes the time between steps: each stream still gets one event per turn of
      the event loop and each is a write of its own, but a router that is slower than the mock
      finds several in one read. `GET /pace/10000` (microseconds) sets it again.
    - `GET /burst/32` gives each stream 32 events a step, each still a chunk and a write of its own.
    - Content is made from the request's `seed`, so an answer given to the wrong request shows.
    - Handoffs issued and consumed are each summed as 64-bit digests of their request ids. Equal
      counts and equal sums mean that the same handoffs came back: none lost, doubled or invented.
"""

import argparse
import asyncio
import hashlib
import itertools
import sys
from collections.abc import Iterator
from typing import cast

import httptools
import msgspec
import uvloop

MODEL = "bench-model"
CREATED = 1764547200
# A decode step of a small model on a data-centre GPU; at 64 streams 6,400 events a second, which
# leaves two cores (AMD EPYC, 2 vCPU) room enough that no router under test falls behind its step.
STEP_S = 0.010
# A prompt of 1,024 tokens in blocks of 16.
BLOCK_IDS = list(range(100, 164))
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
DIGEST_MASK = (1 << 64) - 1
JSON = b"application/json"


class KvTransferParams(msgspec.Struct):
    """The fields of `kv_transfer_params` that tell which leg a request is."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_request_id: str | None = None


class Generation(msgspec.Struct):
    """What the mock reads of a chat or completions body; the rest is skipped."""

    model: str
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    use_beam_search: bool = False
    kv_transfer_params: KvTransferParams | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens to answer with, vLLM's default of 16 where the body names none."""
        return self.max_completion_tokens or self.max_tokens or 16


class Stats(msgspec.Struct):
    """What one mock did since it started."""

    prefill_legs: int = 0
    decode_legs: int = 0
    bare: int = 0
    released: int = 0
    rejected: int = 0
    aborted_streams: int = 0
    events: int = 0
    issued_digest: int = 0
    consumed_digest: int = 0


def digest(request_id: str) -> int:
    """64 bits of a request id, for sums that compare as multisets do."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "big")


def token_text(seed: int, index: int) -> str:
    """The text of one token of the answer to `seed`."""
    return f" {seed}.{index}"


def http_response(status: bytes, content_type: bytes, body: bytes) -> bytes:
    """One whole HTTP/1.1 answer."""
    return b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        content_type,
        len(body),
        body,
    )


def http_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
STREAM_END = http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def events(request: Generation, path: str, request_id: str) -> Iterator[bytes]:
    """The events of one streamed answer, each as one HTTP chunk, without `[DONE]`."""
    chat = path == CHAT
    kind = "chat.completion.chunk" if chat else "text_completion"
    head = f'data: {{"id":"{request_id}","object":"{kind}","created":{CREATED},"model":"{MODEL}",'
    if chat:
        role = '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        yield http_chunk(
            f'{head}{role}"finish_reason":null}}],"prompt_token_ids":null}}\n\n'.encode()
        )
    key = '"delta":{"content":' if chat else '"text":'
    close = "}" if chat else ""
    seed, last = request.seed or 0, request.num_tokens - 1
    for index in range(last + 1):
        reason = '"length"' if index == last else "null"
        yield http_chunk(
            f'{head}"choices":[{{"index":0,{key}"{token_text(seed, index)}"{close},"logprobs":null,'
            f'"finish_reason":{reason},"stop_reason":null,"token_ids":null}}]}}\n\n'.encode()
        )


def answer(
    request: Generation, path: str, request_id: str, handoff: dict[str, object] | None
) -> bytes:
    """The JSON body of one answer that is not streamed."""
    num_tokens, seed = request.num_tokens, request.seed or 0
    text = "".join(token_text(seed, index) for index in range(num_tokens))
    choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": "length"}
    if path == CHAT:
        choice["message"] = {"role": "assistant", "content": text, "tool_calls": []}
    else:
        choice["text"] = text
    return msgspec.json.encode(
        {
            "id": request_id,
            "object": "chat.completion" if path == CHAT else "text_completion",
            "created": CREATED,
            "model": MODEL,
            "choices": [choice],
            "usage": {
                "prompt_tokens": 1024,
                "total_tokens": 1024 + num_tokens,
                "completion_tokens": num_tokens,
                "prompt_tokens_details": None,
            },
            "prompt_logprobs": None,
            "kv_transfer_params": handoff,
        }
    )


class Engine:
    """One mock engine: its identity, its counters and its step over the running streams."""

    def __init__(self, engine_id: str, step_s: float = STEP_S) -> None:
        self.engine_id = engine_id
        self.stats = Stats()
        self.step_s = step_s
        self.burst = 1
        self._streams: dict[Connection, Iterator[bytes]] = {}
        self._ids = itertools.count()
        self._step_is_due = False

    def next_request_id(self, path: str) -> str:
        """A fresh request id, spelled as vLLM spells them."""
        return f"{'chatcmpl' if path == CHAT else 'cmpl'}-{self.engine_id}-{next(self._ids):016x}"

    def handoff(self, request_id: str) -> dict[str, object]:
        """The handoff of a finished prefill; counted as issued."""
        self.stats.issued_digest = (self.stats.issued_digest + digest(request_id)) & DIGEST_MASK
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [BLOCK_IDS],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "remote_prefill_cached_tokens": 0,
        }

    def consume(self, params: KvTransferParams | None) -> None:
        """Count a request that is no prefill leg, and its handoff if it has one."""
        if params is None or not params.do_remote_prefill or params.remote_request_id is None:
            self.stats.bare += 1
            return
        self.stats.decode_legs += 1
        consumed = self.stats.consumed_digest + digest(params.remote_request_id)
        self.stats.consumed_digest = consumed & DIGEST_MASK

    def start_stream(self, connection: "Connection", chunks: Iterator[bytes]) -> None:
        """Serve `chunks` to a connection from the next step on."""
        self._streams[connection] = chunks
        if not self._step_is_due:
            self._step_is_due = True
            asyncio.get_running_loop().call_later(self.step_s, self._step)

    def drop_stream(self, connection: "Connection") -> None:
        """Forget a connection that is gone; a stream it had counts as aborted."""
        if self._streams.pop(connection, None) is not None:
            self.stats.aborted_streams += 1

    def _step(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self.step_s
        for connection, chunks in list(self._streams.items()):
            self._serve(connection, chunks)
        self._step_is_due = bool(self._streams)
        if self._step_is_due and self.step_s:
            loop.call_at(due, self._step)
        elif self._step_is_due:
            loop.call_soon(self._step)

    def _serve(self, connection: "Connection", chunks: Iterator[bytes]) -> None:
        """One step's events for one stream, each in its own write."""
        for _ in range(self.burst):
            if connection.is_paused:
                return
            chunk = next(chunks, None)
            if chunk is None:
                del self._streams[connection]
                connection.finish_stream()
                return
            self.stats.events += 1
            connection.write(chunk)


class Connection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection, one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self.is_paused = False
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # A cast: uvloop's transports are no instances of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the stream, if one runs."""
        self._transport = None
        self._engine.drop_stream(self)

    def pause_writing(self) -> None:
        """Let steps pass this stream by."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """Take part in the steps again."""
        self.is_paused = False

    def data_received(self, data: bytes) -> None:
        """Feed the parser; a peer that does not speak HTTP is closed."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._engine.stats.rejected += 1
            if self._transport is not None:
                self._transport.close()

    def write(self, data: bytes) -> None:
        """Write to the peer, if it is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def finish_stream(self) -> None:
        """End the streamed answer."""
        self.write(STREAM_END)

    def on_message_begin(self) -> None:
        """Parser callback: a new request."""
        self._url = b""
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        """Parser callback: a piece of the target."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """Parser callback: a piece of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Parser callback: answer the request."""
        path = self._url.decode("latin-1").partition("?")[0]
        if path in (CHAT, COMPLETIONS):
            self._generate(path, b"".join(self._body))
        else:
            self.write(self._plain(path))

    def _plain(self, path: str) -> bytes:
        if path == "/health":
            return http_response(b"200 OK", JSON, b"")
        if path == "/version":
            return http_response(b"200 OK", JSON, b'{"version":"0.32.0"}')
        if path == "/v1/models":
            card = {"id": MODEL, "object": "model", "created": CREATED, "owned_by": "vllm"}
            models = msgspec.json.encode({"object": "list", "data": [card]})
            return http_response(b"200 OK", JSON, models)
        if path == "/metrics":
            text = f'vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}"}} 0.0\n'
            return http_response(b"200 OK", b"text/plain; version=0.0.4", text.encode())
        if path == "/stats":
            return http_response(b"200 OK", JSON, msgspec.json.encode(self._engine.stats))
        if path.startswith("/burst/") and path[7:].isdecimal():
            self._engine.burst = int(path[7:])
            return http_response(b"200 OK", JSON, b"")
        if path.startswith("/pace/") and path[6:].isdecimal():
            self._engine.step_s = int(path[6:]) * 1e-6
            return http_response(b"200 OK", JSON, b"")
        return http_response(b"404 Not Found", JSON, b'{"detail":"Not Found"}')

    def _generate(self, path: str, body: bytes) -> None:
        engine = self._engine
        try:
            request = msgspec.json.decode(body, type=Generation)
        except msgspec.DecodeError as error:
            self._reject(str(error))
            return
        if not (request.messages if path == CHAT else request.prompt):
            self._reject("the prompt is missing")
            return
        params = request.kv_transfer_params
        if request.use_beam_search and params is not None:
            engine.stats.released += 1
            self._reject("beam search and kv_transfer_params exclude each other")
            return
        request_id = engine.next_request_id(path)
        if params is not None and params.do_remote_decode:
            engine.stats.prefill_legs += 1
            body = answer(request, path, request_id, engine.handoff(request_id))
            self.write(http_response(b"200 OK", JSON, body))
            return
        engine.consume(params)
        if request.stream:
            self.write(STREAM_HEAD)
            engine.start_stream(self, events(request, path, request_id))
        else:
            self.write(http_response(b"200 OK", JSON, answer(request, path, request_id, None)))

    def _reject(self, message: str) -> None:
        self._engine.stats.rejected += 1
        error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
        self.write(http_response(b"400 Bad Request", JSON, msgspec.json.encode({"error": error})))


async def start(engine: Engine, port: int) -> asyncio.Server:
    """Listen on loopback; port 0 takes a free one. The caller closes the server."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=1024)


async def serve(engine_id: str, port: int, step_s: float) -> None:
    """Serve until killed."""
    server = await start(Engine(engine_id, step_s), port)
    await server.serve_forever()


def main() -> int:
    """Run one mock engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine-id", required=True)
    parser.add_argument("--step-s", type=float, default=STEP_S, help="time between two events")
    args = parser.parse_args()
    uvloop.run(serve(args.engine_id, args.port, args.step_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
