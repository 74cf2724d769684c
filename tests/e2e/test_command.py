"""The command as operators run it: a process that serves, says so, and ends when told."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from support import behaviours
from support.command import START_S, address, command
from support.ledger import Ledger
from support.scripted_engine import Leg, ScriptedEngine, running
from support.vllm_api import CHAT
from support.vllm_behaviour import VllmBehaviour
from support.waiting import soon
from transload_router.settings import Settings

# By cost the short prompts of tests would be decode's alone.
PLAIN = ("--no-handoff-probe", "--policy", "least-loaded")


@pytest.fixture
async def engines() -> AsyncIterator[tuple[ScriptedEngine, ScriptedEngine]]:
    ledger = Ledger()
    async with (
        running(ScriptedEngine("p", ledger, VllmBehaviour())) as p,
        running(ScriptedEngine("d", ledger, VllmBehaviour())) as d,
    ):
        yield p, d


async def run(*args: str, **env: str) -> tuple[int, str, str]:
    """(status, stdout, stderr) of a command that ends by itself."""
    async with command(*args, **env) as it:
        out, err = await soon(it.process.communicate(), START_S)
        assert it.process.returncode is not None
        return it.process.returncode, out.decode(), err.decode()


async def refuses_connections(url: str) -> None:
    async with asyncio.timeout(START_S):
        while True:
            try:
                async with httpx.AsyncClient(timeout=10) as client:
                    await client.get(url + "/healthz")
            except httpx.TransportError:
                return


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
async def test_serve_until_told_to_end(
    engines: tuple[ScriptedEngine, ScriptedEngine], number: signal.Signals
) -> None:
    p, d = engines
    args = ("serve", "--prefill", p.url, "--decode", d.url, "--port", "0", *PLAIN)
    async with command(*args) as it:
        url = address(await it.line_with("listens on"))
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            async with asyncio.timeout(START_S):
                while (await client.get("/readyz")).status_code != 200:
                    pass
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            answer = await client.post(CHAT.path, json=CHAT.request(stream=True))
            assert CHAT.done in answer.content
            assert "server" not in answer.headers
            assert len(d.asked(Leg.DECODE)) == 1
        assert await it.end(number) == 0
        assert "Traceback" not in "".join(it.lines)


async def test_a_running_stream_ends_well_before_the_process_does(
    engines: tuple[ScriptedEngine, ScriptedEngine],
) -> None:
    p, d = engines
    gate = asyncio.Event()
    d.by_leg[Leg.DECODE] = behaviours.gated_stream({2: gate})
    args = ("serve", "--prefill", p.url, "--decode", d.url, "--port", "0", *PLAIN)
    async with command(*args) as it:
        url = address(await it.line_with("listens on"))
        async with (
            httpx.AsyncClient(base_url=url, timeout=10) as client,
            client.stream("POST", CHAT.path, json=CHAT.request(stream=True)) as answer,
        ):
            parts = answer.aiter_raw()
            body = await anext(parts)
            it.process.send_signal(signal.SIGTERM)
            await refuses_connections(url)
            gate.set()
            async for part in parts:
                body += part
            assert CHAT.done in body
        assert await soon(it.process.wait(), START_S) == 0


async def test_a_port_that_is_taken(engines: tuple[ScriptedEngine, ScriptedEngine]) -> None:
    p, d = engines
    status, _, err = await run("serve", "--decode", d.url, "--port", str(p.port))
    assert status == 1
    assert "cannot listen" in err


async def test_check_config(tmp_path: Path) -> None:
    file = tmp_path / "transload.yaml"
    file.write_text("prefill: [http://p:1]\ndecode: [http://d:1]\nport: 7\nidle_timeout_s: 9\n")
    args = ("check-config", "--config", str(file), "--port", "8")
    status, out, _ = await run(*args, TRANSLOAD_IDLE_TIMEOUT_S="11", TRANSLOAD_PORT="9")
    assert status == 0
    told = json.loads(out)
    assert (told["port"], told["idle_timeout_s"], told["prefill"]) == (8, 11.0, ["http://p:1"])


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ((), "decode"),
        (("--decode", "ftp://x"), "scheme"),
        (("--decode", "http://a", "--decode", "http://a:80"), "twice"),
        (("--decode", "http://a", "--prefill", "http://a"), "prefill"),
        (("--decode", "http://a", "--credentials", "replace"), "decode_api_key"),
        (("--decode", "http://a", "--config", "/nowhere.yaml"), "cannot read"),
        (("--decode", "http://a", "--tokenizer", "/nowhere"), "tokenizer '/nowhere'"),
    ],
)
async def test_settings_that_cannot_work(args: tuple[str, ...], word: str) -> None:
    for name in ("check-config", "serve"):
        status, _, err = await run(name, *args)
        assert status == 2
        assert word in err
        assert "Traceback" not in err


async def test_keys_are_not_printed() -> None:
    args = ("check-config", "--decode", "http://d:1", "--credentials", "replace")
    status, out, err = await run(*args, TRANSLOAD_DECODE_API_KEY="s3cret")
    assert status == 0
    assert "s3cret" not in out + err


async def test_help_names_every_setting() -> None:
    status, out, _ = await run("serve", "--help")
    assert status == 0
    flags = {f"--{name.replace('_', '-')}" for name in Settings.model_fields}
    assert flags <= set(re.findall(r"--[a-z-]+", out))


async def test_the_router_is_light() -> None:
    """No torch, triton or vllm comes with it, even where they are installed."""
    code = (
        "import sys, transload_router.app, transload_router.cli, transload_router.app.line;"
        "print([m for m in ('torch', 'triton', 'vllm', 'numpy', 'transformers')"
        " if m in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await soon(process.communicate(), START_S)
    assert out.decode().strip() == "[]"


@pytest.mark.parametrize(("asked", "words"), [("--help", "usage: transload"), ("version", "0.")])
def test_what_it_says_of_itself_needs_no_packages(asked: str, words: str) -> None:
    script = (
        "import sys; sys.modules.update(dict.fromkeys(('pydantic', 'fastapi', 'uvicorn')));"
        f"sys.argv = ['transload', {asked!r}];"
        "from transload_router.__main__ import run; sys.exit(run())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert words in done.stdout
