"""`pipeline`: chunks, their schedule, and threads that overlap by events and never by time."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transload_kernels.errors import BadArgument
from transload_kernels.pipeline import (
    Cancelled,
    Chunk,
    CpuStage,
    GpuStage,
    Pipeline,
    Schedule,
    as_memoryview,
    plan_chunks,
)

PATIENCE_S = 20
"""For events that must come; a test that waits this long fails."""


def numbered(num_chunks: int, depth: int = 3) -> tuple[Chunk, ...]:
    return plan_chunks([256] * num_chunks, 256 * depth, depth)


def await_event(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S), "it never happened"


def step_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("transload-step")]


def test_chunks_hold_as_many_whole_items_as_fit() -> None:
    assert plan_chunks([100, 100, 56, 1, 256, 30], 512, 2) == (
        Chunk(0, 0, 3, 256, 0),
        Chunk(1, 3, 1, 1, 1),
        Chunk(2, 4, 1, 256, 0),
        Chunk(3, 5, 1, 30, 1),
    )


def test_no_items_are_no_chunks() -> None:
    assert plan_chunks([], 768) == ()


def test_any_items_are_all_in_chunks_once_and_in_order() -> None:
    rng = random.Random(3)
    for _ in range(200):
        items = [rng.randint(1, 512) for _ in range(rng.randint(0, 40))]
        depth = rng.randint(1, 4)
        chunks = plan_chunks(items, 512 * depth + rng.randint(0, 255), depth)
        seen = [i for chunk in chunks for i in range(chunk.first_item, sum(chunk[1:3]))]
        assert seen == list(range(len(items)))
        for number, chunk in enumerate(chunks):
            of_chunk = items[chunk.first_item : chunk.first_item + chunk.num_items]
            assert (chunk.number, chunk.slot) == (number, number % depth)
            assert chunk.num_bytes == sum(of_chunk) <= 512
        for chunk, after in itertools.pairwise(chunks):
            assert chunk.num_bytes + items[after.first_item] > 512


@pytest.mark.parametrize(
    ("items", "budget", "depth", "names"),
    [
        ([10, 257], 768, 3, r"item_bytes\[1\]: 257, a slot has 1\.\.256 \(768 bytes in 3 slots\)"),
        ([0], 768, 3, r"item_bytes\[0\]: 0"),
        ([1], 767, 3, "budget_bytes: 767 is less than 3 slots"),
        ([1], 4096, 0, "budget_bytes"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    items: list[int], budget: int, depth: int, names: str
) -> None:
    with pytest.raises(BadArgument, match=names):
        plan_chunks(items, budget, depth)


def test_the_schedule_bounds_what_is_on_its_way() -> None:
    schedule = Schedule(num_chunks=4, num_steps=2, depth=2)
    assert schedule.take(1) is None
    assert schedule.take(0) == 0
    assert schedule.take(0) is None
    schedule.leave(0)
    assert schedule.take(0) == 1
    assert schedule.take(1) == 0
    schedule.leave(0)
    assert schedule.take(0) is None
    schedule.leave(1)
    assert schedule.take(0) == 2
    assert schedule.take(1) == 1


def test_the_schedule_lets_chunks_leave_after_a_stop() -> None:
    schedule = Schedule(num_chunks=4, num_steps=2, depth=2)
    assert schedule.take(0) == 0
    schedule.stop()
    schedule.leave(0)
    assert [schedule.take(0), schedule.take(1)] == [None, None]
    assert schedule.is_over(0)
    assert schedule.is_over(1)
    assert schedule.num_done() == 0


def test_any_schedule_keeps_order_slots_and_ends() -> None:
    rng = random.Random(5)
    for _ in range(100):
        num_chunks, num_steps, depth = (rng.randint(1, 9), rng.randint(1, 4), rng.randint(1, 4))
        schedule = Schedule(num_chunks, num_steps, depth)
        within: dict[int, int] = {}
        passed: list[list[int]] = [[] for _ in range(num_steps)]
        while schedule.num_done() < num_chunks:
            for step in range(num_steps):
                number = schedule.take(step)
                if number is not None:
                    assert step not in within
                    assert number == len(passed[step])
                    assert step == 0 or number in passed[step - 1]
                    assert number < len(passed[-1]) + depth
                    within[step] = number
            step = rng.choice(sorted(within))
            passed[step].append(within.pop(step))
            schedule.leave(step)
        assert passed == [list(range(num_chunks))] * num_steps


def test_blocks_arrive_through_a_small_stage() -> None:
    source = torch.randint(0, 256, (40, 100), dtype=torch.uint8)
    wire: list[bytes] = []
    chunks = plan_chunks([100] * 40, 1024, 2)
    stage = CpuStage(1024, 2)

    def gather(chunk: Chunk, slot: Tensor) -> None:
        slot.copy_(source[chunk.first_item : chunk.first_item + chunk.num_items].flatten())

    def send(chunk: Chunk, slot: Tensor) -> None:
        wire.append(bytes(as_memoryview(slot)))

    Pipeline(chunks, [("gather", stage.step(gather)), ("send", stage.step(send))], 2).run()
    assert b"".join(wire) == bytes(source.flatten().tolist())

    there = torch.zeros_like(source)

    def receive(chunk: Chunk, slot: Tensor) -> None:
        as_memoryview(slot)[:] = wire[chunk.number]

    def scatter(chunk: Chunk, slot: Tensor) -> None:
        there[chunk.first_item : chunk.first_item + chunk.num_items] = slot.view(-1, 100)

    steps = [("receive", stage.step(receive)), ("scatter", stage.step(scatter))]
    Pipeline(chunks, steps, 2).run()
    assert torch.equal(there, source)
    assert step_threads() == []


def test_a_chunk_is_gathered_while_the_one_before_is_sent() -> None:
    gathering = [threading.Event() for _ in range(4)]
    sending = [threading.Event() for _ in range(4)]

    def gather(chunk: Chunk) -> None:
        gathering[chunk.number].set()
        if chunk.number:
            await_event(sending[chunk.number - 1])

    def send(chunk: Chunk) -> None:
        sending[chunk.number].set()
        if chunk.number < 3:
            await_event(gathering[chunk.number + 1])

    Pipeline(numbered(4), [("gather", gather), ("send", send)], 3).run()


def test_a_slow_sender_holds_the_gatherer_back() -> None:
    gathered: list[int] = []
    is_full = threading.Event()
    seen_by_sender: list[int] = []

    def gather(chunk: Chunk) -> None:
        gathered.append(chunk.number)
        if chunk.number == 2:
            is_full.set()

    def send(chunk: Chunk) -> None:
        await_event(is_full)
        seen_by_sender.append(max(gathered) - chunk.number)

    Pipeline(numbered(20), [("gather", gather), ("send", send)], 3).run()
    assert gathered == list(range(20))
    assert max(seen_by_sender) <= 2


def test_steps_see_chunks_in_order() -> None:
    seen: dict[str, list[int]] = {"gather": [], "send": [], "scatter": []}

    def noting(name: str) -> tuple[str, Callable[[Chunk], None]]:
        return name, lambda chunk: seen[name].append(chunk.number)

    Pipeline(numbered(50, 2), [noting(name) for name in seen], 2).run()
    assert set(map(tuple, seen.values())) == {tuple(range(50))}


@pytest.mark.parametrize("at", [0, 5, 9])
@pytest.mark.parametrize("failing", ["gather", "send", "scatter"])
def test_a_failing_step_ends_the_transfer(failing: str, at: int) -> None:
    calls: list[tuple[str, int]] = []

    def step(name: str) -> Callable[[Chunk], None]:
        def work(chunk: Chunk) -> None:
            calls.append((name, chunk.number))
            if (name, chunk.number) == (failing, at):
                raise ConnectionResetError("peer is gone")

        return work

    names = ("gather", "send", "scatter")
    pipeline = Pipeline(numbered(10), [(name, step(name)) for name in names], 3)
    with pytest.raises(ConnectionResetError, match="peer is gone") as failure:
        pipeline.run()
    assert failure.value.__notes__ == [f"in step {failing!r}, chunk {at} of 10"]
    assert step_threads() == []
    later = names[names.index(failing) + 1 :]
    assert not [call for call in calls if call[0] in later and call[1] >= at]
    assert (failing, at + 1) not in calls


def test_two_failures_end_as_one() -> None:
    is_sent = threading.Event()

    def gather(chunk: Chunk) -> None:
        if chunk.number == 2:
            await_event(is_sent)
            raise OSError("second")

    def send(chunk: Chunk) -> None:
        try:
            raise ConnectionResetError("first")
        finally:
            is_sent.set()

    pipeline = Pipeline(numbered(5), [("gather", gather), ("send", send)], 3)
    with pytest.raises((ConnectionResetError, OSError)):
        pipeline.run()
    assert step_threads() == []


def test_a_cancelled_transfer_says_how_far_it_came() -> None:
    sent: list[int] = []
    pipeline: Pipeline

    def send(chunk: Chunk) -> None:
        sent.append(chunk.number)
        if chunk.number == 3:
            pipeline.cancel()

    pipeline = Pipeline(numbered(10), [("gather", lambda chunk: None), ("send", send)], 3)
    with pytest.raises(Cancelled, match="after 4 of 10 chunks"):
        pipeline.run()
    assert sent == [0, 1, 2, 3]
    assert step_threads() == []


def test_cancelling_wakes_steps_that_wait_and_may_be_repeated() -> None:
    is_at_work, may_go = threading.Event(), threading.Event()
    outcome: list[str] = []

    def gather(chunk: Chunk) -> None:
        is_at_work.set()
        await_event(may_go)

    pipeline = Pipeline(numbered(2), [("gather", gather), ("send", lambda chunk: None)], 3)

    def run() -> None:
        try:
            pipeline.run()
        except Cancelled as cancelled:
            outcome.append(str(cancelled))

    runner = threading.Thread(target=run)
    runner.start()
    await_event(is_at_work)
    pipeline.cancel()
    pipeline.cancel()
    may_go.set()
    runner.join(PATIENCE_S)
    assert outcome == ["after 0 of 2 chunks"]


def test_cancelling_after_the_end_changes_nothing() -> None:
    pipeline = Pipeline(numbered(2), [("send", lambda chunk: None)], 3)
    pipeline.run()
    pipeline.cancel()
    with pytest.raises(BadArgument, match="has been run"):
        pipeline.run()


def test_no_chunks_end_at_once() -> None:
    Pipeline((), [("gather", lambda chunk: None), ("send", lambda chunk: None)], 3).run()


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self.log.append(f"wait for {self.name}")

    def __enter__(self) -> None:
        self.log.append(f"on {self.name}:")

    def __exit__(self, *_: object) -> None:
        pass


class FakeEvent:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def record(self, stream: FakeStream) -> None:
        self.log.append(f"{self.name} after {stream.name}")

    def synchronize(self) -> None:
        self.log.append(f"wait for {self.name}")


class FakeCuda:
    """Streams and events that write down what is asked of them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._names = iter(("kernels", "copies"))
        self._num_events = 0

    def Stream(self, device: torch.device) -> FakeStream:
        return FakeStream(self.log, next(self._names))

    def Event(self) -> FakeEvent:
        self._num_events += 1
        return FakeEvent(self.log, f"event {self._num_events - 1}")

    def current_stream(self, device: torch.device) -> FakeStream:
        return FakeStream(self.log, "the caller's")

    def stream(self, stream: FakeStream) -> FakeStream:
        return stream


def test_a_gpu_stage_sends_what_its_copy_has_brought() -> None:
    cuda, sent = FakeCuda(), []
    chunk = Chunk(4, 8, 2, 3, 1)
    with GpuStage(torch.device("cpu"), 512, 2, cuda) as stage:
        gathering = stage.gathering(lambda chunk, slot: slot.copy_(torch.tensor([7, 8, 9])))
        sending = stage.sending(lambda chunk, slot: sent.append(slot.tolist()))
        gathering(chunk)
        cuda.log.append("then")
        sending(chunk)
    assert sent == [[7, 8, 9]]
    assert cuda.log == [
        "kernels waits for the caller's",
        "copies waits for the caller's",
        "on kernels:",
        "copies waits for kernels",
        "on copies:",
        "event 1 after copies",
        "then",
        "wait for event 1",
        "wait for kernels",
        "wait for copies",
    ]


def test_a_gpu_stage_waits_until_a_chunk_is_scattered() -> None:
    cuda, got = FakeCuda(), []
    chunk = Chunk(0, 0, 1, 2, 0)
    stage = GpuStage(torch.device("cpu"), 512, 2, cuda)
    receiving = stage.receiving(lambda chunk, slot: slot.copy_(torch.tensor([5, 6])))
    scattering = stage.scattering(lambda chunk, slot: got.append(slot.tolist()))
    receiving(chunk)
    scattering(chunk)
    assert got == [[5, 6]]
    assert cuda.log[2:] == ["on kernels:", "event 0 after kernels", "wait for event 0"]


def test_a_gpu_stage_is_left_quiet_after_an_error() -> None:
    cuda = FakeCuda()
    with pytest.raises(OSError, match="gone"), GpuStage(torch.device("cpu"), 512, 2, cuda):
        raise OSError("gone")
    assert cuda.log[2:] == ["wait for kernels", "wait for copies"]


def test_a_pipeline_refuses_a_depth_at_which_chunks_share_slots() -> None:
    steps = [("gather", lambda chunk: None)]
    for depth in (-1, 0, 4):
        with pytest.raises(BadArgument, match=r"depth: .* not that of the chunks' plan"):
            Pipeline(numbered(10, 3), steps, depth)
    Pipeline(numbered(2, 3), steps, 3).run()
    with pytest.raises(BadArgument, match="steps: expected one or more"):
        Pipeline(numbered(2), [], 3)


def test_a_thread_that_cannot_start_ends_the_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("transload-step_1"):
            raise RuntimeError("can't start new thread")
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    steps = [(name, lambda chunk: None) for name in ("gather", "send")]
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Pipeline(numbered(10), steps, 3).run()
    assert step_threads() == []


def test_only_flat_bytes_of_the_cpu_are_seen_as_such() -> None:
    assert bytes(as_memoryview(torch.empty(0, dtype=torch.uint8))) == b""
    with pytest.raises(BadArgument, match="buffer: expected flat memory"):
        as_memoryview(torch.zeros(8, dtype=torch.uint8)[::2])
    with pytest.raises(BadArgument, match="buffer: expected device cpu"):
        as_memoryview(torch.zeros(8, dtype=torch.uint8, device="meta"))
