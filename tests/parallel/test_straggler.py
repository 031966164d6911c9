"""When a rollout is cut short, and when the others are asked after at all."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from distrlcc.parallel.decentralized import StragglerRule
from distrlcc.runs.run_config import DistributedConfig


@dataclass
class Group:
    """Counts how often it is asked."""

    size: int
    rank: int = 0
    finished: int = 0
    asked: int = 0

    def others_finished(self) -> int:
        self.asked += 1
        return self.finished


def _rule(group: Group, paces: Any = (), **settings: float) -> StragglerRule:
    return StragglerRule(group, DistributedConfig(**settings), 16, paces)  # type: ignore[arg-type]


def test_alone_nobody_is_asked_after() -> None:
    group = Group(size=1)
    rule = _rule(group, [0.01], straggler_grace=0.0)
    assert not any(rule(rows) for rows in range(1, 16))
    assert group.asked == 0


def test_nobody_is_asked_after_before_they_should_be_done() -> None:
    group = Group(size=3, finished=2)
    rule = _rule(group, [0.001, 1000.0, 1000.0], straggler_grace=0.0)
    assert not any(rule(rows) for rows in range(1, 16))
    assert group.asked == 0


def test_whoever_is_slower_than_most_others_is_cut_once_a_quarter_is_done() -> None:
    group = Group(size=3, finished=2)
    rule = _rule(group, [9.0, 1e-4, 2e-4], straggler_grace=0.0)
    time.sleep(0.005)  # the others should be done
    assert not any(rule(rows) for rows in range(1, 4))
    assert rule(4)
    group = Group(size=3, finished=1)  # 0.6 of the others are both
    rule = _rule(group, straggler_grace=0.0)
    assert not any(rule(rows) for rows in range(1, 16))
    assert group.asked >= 1
