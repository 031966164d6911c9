"""Sums through shared memory: right, the same everywhere, and never waiting for the dead."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.runtime import shared_sum
from distrlcc.runtime.shared_sum import SLOT_BYTES, SharedSum, SharedSumError, create, remove

pytestmark = pytest.mark.skipif(
    platform.machine() not in shared_sum._ORDERED, reason="sockets are used on this processor"
)


def _members(count: int, seconds: float = 5.0, pids: list[int] | None = None) -> list[SharedSum]:
    name = create(count)
    pids = pids or [os.getpid()] * count
    members = [SharedSum(name, rank, pids, seconds) for rank in range(count)]
    remove(name)
    return members


def test_all_get_the_same_sum_of_each_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared_sum, "FOLDER", tmp_path)
    members = _members(3)
    assert list(tmp_path.iterdir()) == []
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


def test_where_there_is_no_memory_there_is_no_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert create(shared_sum.MOST_PROCESSES + 1) == b""
    monkeypatch.setattr(shared_sum, "FOLDER", tmp_path / "none")
    assert create(2) == b""
    monkeypatch.setattr(shared_sum, "FOLDER", tmp_path)

    def full(file: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert create(2) == b""
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(shared_sum, "_ORDERED", ())
    assert create(2) == b""
