"""Sums through shared memory: right, the same everywhere, and never waiting for the dead."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from distrlcc.parallel import shared_sum
from distrlcc.parallel.shared_sum import SLOT_BYTES, Memory, SharedSum, SharedSumError

pytestmark = pytest.mark.skipif(
    platform.machine() not in shared_sum._ORDERED, reason="sockets are used on this processor"
)


def _members(count: int, seconds: float = 5.0, pids: list[int] | None = None) -> list[SharedSum]:
    memory = Memory(count)
    pids = pids or [os.getpid()] * count
    members = [SharedSum(memory.name, rank, pids, seconds) for rank in range(count)]
    memory.close()
    return members


def test_all_get_the_same_sum_of_each_turn() -> None:
    members = _members(3)
    rng = np.random.default_rng(3)
    turns: list[list[Any]] = [
        list(rng.normal(size=(3, size)).astype(dtype))
        for size, dtype in [(9001, "f4"), (1, "f8"), (SLOT_BYTES // 8, "f8"), (0, "f4")] * 20
    ]
    with ThreadPoolExecutor(3) as pool:
        found = list(
            pool.map(lambda k: [members[k].sum(turn[k]) for turn in turns], range(3), timeout=60.0)
        )
    for turn, sums in zip(turns, zip(*found, strict=True), strict=True):
        expected = np.stack(turn).sum(axis=0, dtype=turn[0].dtype)
        for each in sums:
            assert each.dtype == expected.dtype
            assert each.tobytes() == expected.tobytes()
    for member in members:
        member.close()
        member.close()


def test_a_member_that_is_late_gone_or_gives_up_is_noticed() -> None:
    late, _ = _members(2, seconds=0.3)
    begin = time.monotonic()
    with pytest.raises(SharedSumError, match=r"did not exchange within 0.3 s"):
        late.sum(np.ones(4))
    assert 0.3 <= time.monotonic() - begin < 3.0

    with subprocess.Popen(["sleep", "60"]) as other:
        member, _ = _members(2, seconds=30.0, pids=[os.getpid(), other.pid])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(member.sum, np.ones(4))
            time.sleep(0.1)
            assert not waiting.done()
            other.kill()
            with pytest.raises(SharedSumError, match="process has ended"):
                waiting.result(5.0)
        member.close()

    member, quits = _members(2, seconds=30.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(member.sum, np.ones(4))
        time.sleep(0.1)
        quits.give_up()
        with pytest.raises(SharedSumError, match="has given the exchange up"):
            waiting.result(5.0)


def test_an_exchange_that_was_given_up_is_over_for_the_late_too() -> None:
    early, late = _members(2, seconds=0.2)
    with pytest.raises(SharedSumError, match="did not exchange"):
        early.sum(np.ones(2))
    early.give_up()
    with pytest.raises(SharedSumError, match="given the exchange up"):
        late.sum(np.ones(2))

    # Who ends after an exchange does not spoil it for those who are still reading.
    first, second = _members(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.sum, np.ones(2))
        second.sum(np.ones(2))
        waiting.result(5.0)
        second.close()
        first._turn -= 1
        assert first.sum(np.ones(2)).tolist() == [2.0, 2.0]
        with pytest.raises(SharedSumError, match="given the exchange up"):
            first.sum(np.ones(2))


def test_memory_that_is_not_there_or_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="by sockets"):
        Memory(shared_sum.MOST_PROCESSES + 1)
    memory = Memory(2)
    pid, file, token = shared_sum._NAME.unpack(memory.name)
    other = shared_sum._NAME.pack(pid, file, token[::-1])
    with pytest.raises(OSError, match="another one"):
        SharedSum(other, 0, [pid, pid], 1.0)
    memory.close()
    with pytest.raises(OSError):  # noqa: PT011 - the number is free, or another file's by now
        SharedSum(memory.name, 0, [pid, pid], 1.0)

    def full(file: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space"):
        Memory(2)
    assert len(os.listdir("/proc/self/fd")) == files
    monkeypatch.undo()
    monkeypatch.setattr(shared_sum, "_ORDERED", ())
    with pytest.raises(OSError, match="by sockets"):
        Memory(2)
