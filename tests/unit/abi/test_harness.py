"""Harnesses that break the rules are told so, and nothing of them is left."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from transload_abi.errors import PlanError, Refused
from transload_abi.harness import process
from transload_abi.harness.process import HarnessProcess
from transload_abi.harness.protocol import (
    Answer,
    Declined,
    Done,
    Fields,
    HarnessFailed,
    InProcess,
    NotOffered,
    Unsupported,
    asked,
)
from transload_abi.harness.report import Result, Tally, run, unequal
from transload_abi.harness.serve import serve

ANSWER_S = 30.0
SHORT_S = 0.05
"""For what is never going to come."""

HEAD = "import json, os, signal, sys\nfor line in sys.stdin:\n    asked = json.loads(line)\n    "


def harness(body: str, answer_s: float = ANSWER_S) -> HarnessProcess:
    """A harness that does `body` with each request that was `asked`."""
    return HarnessProcess([sys.executable, "-c", HEAD + body], answer_s)


def says(text: str) -> str:
    return f"print({text}, flush=True)"


ECHO = says('json.dumps({"id": asked["id"], "ok": asked})')


def test_a_request_and_its_answer() -> None:
    with harness(ECHO) as echo:
        assert echo.ask("read", {"file": "a\nb\u00e4"}) == Done(
            {"id": 1, "op": "read", "args": {"file": "a\nb\u00e4"}}
        )
        assert echo.ask("compare", {}) == Done({"id": 2, "op": "compare", "args": {}})


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"ok": {}}, Done({})),
        ({"refused": {}}, Declined()),
        ({"refused": {"code": "plan", "path": "a.b", "says": "no"}}, Declined("plan", "a.b", "no")),
        ({"unsupported": "later"}, Unsupported("later")),
    ],
)
def test_every_sort_of_answer(said: Fields, answer: Answer) -> None:
    with harness(says(f'json.dumps({{"id": asked["id"], **{said!r}}})')) as one:
        assert one.ask("read", {}) == answer


def test_requests_and_answers_may_be_large() -> None:
    text = "x" * 300_000
    with harness(ECHO) as echo:
        answer = echo.ask("read", {"file": text})
    assert answer == Done({"id": 1, "op": "read", "args": {"file": text}})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (says("'hello'"), "expected a line with a JSON object, got 'hello'"),
        (says("'[' * 100_000"), f"expected a line with a JSON object, got '{'[' * 80}'..."),
        (says("'[1]'"), "expected a line with a JSON object, got '[1]'"),
        (
            "sys.stdout.buffer.write(b'\\xff\\n'); sys.stdout.flush()",
            "expected a line with a JSON object, got '\ufffd'",
        ),
        (
            says("""'{"id": 2, "ok": {}}'"""),
            """expected the answer to request 1, got '{"id": 2, "ok": {}}'""",
        ),
        (says("""'{"ok": {}}'"""), """expected the answer to request 1, got '{"ok": {}}'"""),
        (
            says("""'{"id": true, "ok": {}}'"""),
            """expected the answer to request 1, got '{"id": true, "ok": {}}'""",
        ),
        (
            says("""'{"id": 1, "ok": []}'"""),
            """expected ok, refused or unsupported, got '{"id": 1, "ok": []}'""",
        ),
        (
            says("""'{"id": 1, "ok": {}, "refused": {}}'"""),
            "expected ok, refused or unsupported, got "
            """'{"id": 1, "ok": {}, "refused": {}}'""",
        ),
        (
            says("""'{"id": 1, "refused": {"code": 7}}'"""),
            "expected ok, refused or unsupported, got "
            """'{"id": 1, "refused": {"code": 7}}'""",
        ),
        (
            says("""'{"id": 1, "unsupported": {}}'"""),
            """expected ok, refused or unsupported, got '{"id": 1, "unsupported": {}}'""",
        ),
        ("sys.exit(3)", "it ended with status 3"),
        ("os.kill(os.getpid(), 9)", "it was ended by signal 9"),
        ("sys.stdout.write('{'); sys.exit(0)", "it ended with status 0"),
    ],
)
def test_what_a_harness_must_not_say_or_do(body: str, told: str) -> None:
    with harness(body) as wrong, pytest.raises(HarnessFailed) as caught:
        wrong.ask("read", {})
    assert str(caught.value) == f"the harness, asked to read: {told}"


def test_an_answer_too_many_is_no_answer_to_the_next() -> None:
    with harness(f"{ECHO}; {ECHO}") as twice:
        twice.ask("read", {})
        with pytest.raises(HarnessFailed, match=r"expected the answer to request 2, got "):
            twice.ask("read", {})


def test_a_line_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_LINE_BYTES", 100_000)
    with (
        harness(says("'x' * 300_000")) as long,
        pytest.raises(HarnessFailed, match="a line of more than 100000 bytes"),
    ):
        long.ask("read", {})


def test_no_answer() -> None:
    with (
        harness("pass", SHORT_S) as silent,
        pytest.raises(HarnessFailed, match=r"asked to read: no answer within 0\.05 s"),
    ):
        silent.ask("read", {})


def test_nobody_takes_a_request() -> None:
    deaf = HarnessProcess([sys.executable, "-c", "import signal; signal.pause()"], SHORT_S)
    with deaf, pytest.raises(HarnessFailed, match=r"the request was not taken within 0\.05 s"):
        deaf.ask("read", {"file": "x" * 1_000_000})


def test_a_harness_that_left_before_it_was_asked() -> None:
    with (
        HarnessProcess([sys.executable, "-c", "import sys; sys.exit(4)"]) as gone,
        pytest.raises(HarnessFailed, match="it ended with status 4"),
    ):
        gone.ask("read", {"file": "x" * 1_000_000})


def test_a_harness_that_closes_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "END_S", SHORT_S)
    with (
        harness("os.close(1)") as mute,
        pytest.raises(HarnessFailed, match="it closed its input or output and goes on"),
    ):
        mute.ask("read", {})


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(HarnessFailed, match=r"the harness cannot be started: .*No such file"):
        HarnessProcess(["./nowhere"])


def pid_of(one: HarnessProcess) -> int:
    answer = one.ask("read", {})
    assert isinstance(answer, Done)
    return int(answer.fields["pid"])


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


PID = says('json.dumps({"id": asked["id"], "ok": {"pid": os.getpid()}})')


def test_it_ends_with_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "END_S", ANSWER_S)
    file = tmp_path / "ended"
    with harness(f"{PID}\nopen({str(file)!r}, 'w').close()") as well_behaved:
        pid = pid_of(well_behaved)
    assert not is_there(pid)
    assert file.exists()


def test_nothing_is_left_of_one_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "END_S", SHORT_S)
    with harness(f"{PID}\nsignal.pause()") as stubborn:
        pid = pid_of(stubborn)
    assert not is_there(pid)


def test_one_that_failed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "END_S", 1000.0)
    with harness(f"{PID} if asked['id'] == 1 else signal.pause()") as one:
        pid = pid_of(one)
        one._answer_s = SHORT_S
        with pytest.raises(HarnessFailed, match="no answer"):
            one.ask("read", {})
    assert not is_there(pid)


# --- an implementation in Python, as a harness


def refuse(error: Exception) -> Callable[[Fields], Fields]:
    def act(_fields: Fields) -> Fields:
        raise error

    return act


IMPLEMENTATION = InProcess(
    {
        "double": lambda fields: {"number": 2 * fields["number"]},
        "plan": refuse(PlanError("too long", "blocks")),
        "move": refuse(Refused("other models")),
        "crash": refuse(KeyError("mine")),
    },
    {PlanError: "plan", Refused: "missing"},
)


def test_errors_are_refusals_where_they_are_named() -> None:
    assert IMPLEMENTATION.ask("double", {"number": 2}) == Done({"number": 4})
    assert IMPLEMENTATION.ask("plan", {}) == Declined("plan", "blocks", "too long")
    assert IMPLEMENTATION.ask("move", {}) == Declined("missing", "", "other models")
    assert IMPLEMENTATION.ask("draw", {}) == Unsupported("no such operation")
    with pytest.raises(KeyError, match="mine"):
        IMPLEMENTATION.ask("crash", {})


def served(*requests: object) -> list[str]:
    source = io.BytesIO("".join(json.dumps(each) + "\n" for each in requests).encode())
    sink = io.BytesIO()
    serve(IMPLEMENTATION, source, sink)
    return sink.getvalue().decode().splitlines()


def test_requests_are_answered_in_their_order() -> None:
    assert served(
        {"id": 1, "op": "double", "args": {"number": 1}},
        {"id": 2, "op": "plan", "args": {}},
        {"id": 5, "op": "draw", "args": {}},
    ) == [
        '{"id":1,"ok":{"number":2}}',
        '{"id":2,"refused":{"code":"plan","path":"blocks","says":"too long"}}',
        '{"id":5,"unsupported":"no such operation"}',
    ]


@pytest.mark.parametrize("request_", [[], {"id": 1}, {"id": 1, "op": 2, "args": {}}])
def test_what_is_no_request_ends_it(request_: object) -> None:
    with pytest.raises(HarnessFailed, match="expected a"):
        served(request_)


def test_what_has_to_be_offered() -> None:
    assert asked(IMPLEMENTATION, "double", number=4) == Done({"number": 8})
    with pytest.raises(NotOffered, match="draw: no such operation"):
        asked(IMPLEMENTATION, "draw")


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        (Declined(), "a refusal"),
        (Declined("plan", "blocks", "too long"), "a refusal (plan: blocks: too long)"),
        (Declined("", "", "x" * 1000), f"a refusal ({'x' * 300})"),
    ],
)
def test_refusals_in_words(refusal: Declined, text: str) -> None:
    assert str(refusal) == text


# --- results


def fails(*sentences: str, error: Exception | None = None) -> Callable[[], Iterator[str]]:
    def differences() -> Iterator[str]:
        yield from sentences
        if error:
            raise error

    return differences


RUN = [
    ("a", fails()),
    ("b", fails("one", "two")),
    ("c", fails(error=NotOffered("move: later"))),
    ("d", fails("one", error=NotOffered("move: later"))),
    ("e", fails(error=PlanError("lists"))),
    ("f", fails(error=KeyError("blocks"))),
    ("g", fails("one", error=HarnessFailed("it left"))),
    ("h", fails()),
]
RESULTS = [
    Result("a"),
    Result("b", ("one", "two")),
    Result("c", (), "move: later"),
    Result("d", ("one",), "move: later"),
    Result("e", ("PlanError: lists",)),
    Result("f", ("the vector itself cannot be read: KeyError('blocks')",)),
    Result("g", ("one", "it left")),
]


def test_results_end_where_a_harness_fails() -> None:
    assert list(run([(name, differences()) for name, differences in RUN])) == RESULTS
    assert [each.name for each in RESULTS if each.is_passed] == ["a"]


def test_results_in_words() -> None:
    tally = Tally(len(RUN))
    assert [tally.line(result) for result in RESULTS] == [
        "a: ok",
        "b: one; two",
        "c: skipped, not offered: move: later",
        "d: one",
        "e: PlanError: lists",
        "f: the vector itself cannot be read: KeyError('blocks')",
        "g: one; it left",
    ]
    assert tally.summary() == "7 vectors, 5 failed, 1 skipped, 1 not run"


@pytest.mark.parametrize(
    ("result", "status", "lenient"),
    [(RESULTS[0], 0, 0), (RESULTS[1], 1, 1), (RESULTS[2], 1, 0), (RESULTS[3], 1, 1)],
)
def test_the_status(result: Result, status: int, lenient: int) -> None:
    tally = Tally(1)
    tally.line(result)
    assert tally.status(allow_unsupported=False) == status
    assert tally.status(allow_unsupported=True) == lenient


def test_json_values_that_differ() -> None:
    assert list(unequal("a", {"x": 1, "y": [2]}, {"y": [2], "x": 1})) == []
    assert list(unequal("a", {"x": True}, {"x": 1})) == ["a: expected {'x': 1}, got {'x': True}"]
    assert list(unequal("a", None, "b")) == ["a: expected b, got None"]
