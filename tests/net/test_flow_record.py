"""The log of a flow's steps: the same JSON as ever, and no memory however long it lasts."""

from __future__ import annotations

import json
import subprocess
import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from distrlcc.cli.output import emit_text
from distrlcc.errors import OutputError
from distrlcc.net.flow_record import Step, StepLog, Ticker

COUNT = 50_000


def _step(number: int) -> Step:
    return Step(number * 0.01, 0.01, number % 7, 0.0, 0.0401234567, 12.5, 3.0, 0.04, 0.0)


def _peak(act: Callable[[], object]) -> float:
    """Return the memory that something took at most, MB."""
    tracemalloc.start()
    act()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 1e6


def test_a_long_flows_steps_take_no_memory_and_none_is_missing(tmp_path: Path) -> None:
    ticker, target = Ticker(now=0, step=10_000_000), tmp_path / "s.json"
    with StepLog(tmp_path) as log:

        def step(numbers: range) -> None:
            for number in numbers:
                log.add(_step(number))
                ticker.tick(now=ticker.due + number % 1000, step=10_000_000)

        # The first ones take some buffers, which all others share.
        step(range(COUNT // 100))
        assert _peak(lambda: step(range(COUNT // 100, COUNT))) < 0.1
        assert _peak(lambda: emit_text(str(target), log.json())) < 2.0
        assert log.whole().shape == (COUNT, len(Step._fields))
        # The log has no name at any time.
        assert [path.name for path in tmp_path.iterdir()] == ["s.json"]
    columns = json.loads(target.read_text())
    assert list(columns) == list(Step._fields)
    assert columns["time"] == [round(number * 0.01, 6) for number in range(COUNT)]
    assert columns["acked"][-1] == (COUNT - 1) % 7
    assert set(columns["rtt"]) == {0.040123}
    assert ticker.count == COUNT


def test_a_flow_without_steps(tmp_path: Path) -> None:
    with StepLog(tmp_path) as log:
        assert json.loads("".join(log.json())) == {name: [] for name in Step._fields}
        assert log.whole().shape == (0, len(Step._fields))


@pytest.mark.net
def test_a_place_that_is_full_or_none_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*none: No such file"):
        StepLog(tmp_path / "none")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=True)
    try:
        with StepLog(tmp_path) as log, pytest.raises(OutputError, match="No space left"):
            deque(map(log.add, map(_step, range(10_000))), maxlen=0)
    finally:
        subprocess.run(["umount", tmp_path], check=True)
