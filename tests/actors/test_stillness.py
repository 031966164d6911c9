"""What counts as standing still: to sleep and to compute, not to wait for a core."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distrlcc.actors.stillness import Stillness, waited_for_core

SECONDS = 1.0


def _counts_waiting() -> bool:
    """Say whether this kernel counts how long threads wait for a core; else it tells zeros."""
    try:
        ran, _, times = map(int, Path("/proc/self/schedstat").read_text().split())
    except (OSError, ValueError):
        return False
    return ran > 0 and times > 0


def _compute(until: float) -> None:
    while time.monotonic() < until:
        sum(range(1000))


def _measure(work: Callable[[float], None]) -> float:
    """Return the stillness of a thread that does this for `SECONDS`, as a share of the time."""
    stillness, ready = Stillness(), threading.Event()

    def run() -> None:
        stillness.moved()
        ready.set()
        work(time.monotonic() + SECONDS)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10.0)
    begin = time.monotonic()
    stillness.seconds(thread.native_id)
    time.sleep(0.8 * SECONDS)
    share = stillness.seconds(thread.native_id) / (time.monotonic() - begin)
    thread.join()
    return share


def test_whoever_sleeps_stands_still() -> None:
    assert _measure(lambda until: time.sleep(until - time.monotonic())) > 0.5


@pytest.mark.skipif(not _counts_waiting(), reason="the kernel counts no waits for a core")
def test_whoever_waits_for_a_core_does_not() -> None:
    core = min(os.sched_getaffinity(0))
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c",
             f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile 1: pass"],
            stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]  # fmt: skip

    def work(until: float) -> None:
        os.sched_setaffinity(0, {core})
        _compute(until)

    try:
        for rival in rivals:
            assert rival.stdout is not None
            assert rival.stdout.readline() == b"\n"
        assert _measure(work) < 0.6
    finally:
        for rival in rivals:
            with rival:
                rival.kill()


def test_moving_ends_it() -> None:
    stillness = Stillness()
    time.sleep(0.2)
    assert stillness.seconds(None) > 0.19
    begin = time.monotonic()
    stillness.moved()
    assert stillness.seconds(None) <= time.monotonic() - begin


def test_a_thread_that_is_gone_waited_for_nothing() -> None:
    assert waited_for_core(None) == waited_for_core(2**22 + 1) == 0.0


def test_whoever_waits_for_ever_is_still_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stillness, waited = Stillness(), [0.0]
    monkeypatch.setattr("distrlcc.actors.stillness.waited_for_core", lambda _: waited[0])
    monkeypatch.setattr("distrlcc.actors.stillness.MOST_WAIT_SECONDS", 0.1)
    stillness.moved()
    stillness.seconds(1)
    time.sleep(0.5)
    waited[0] = 1e3
    assert stillness.seconds(1) > 0.3
