"""When a rollout is cut short, and when the store is asked about the others at all."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from distrlcc.config import override
from distrlcc.parallel.decentralized import ElasticGroup, StragglerRule
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_config import DistributedConfig


@dataclass
class Group:
    """Counts how often it is asked."""

    size: int
    rank: int = 0
    finished: int = 0
    asked: int = 0
    leads: bool = True

    def others_finished(self) -> int:
        self.asked += 1
        return self.finished


def _rule(group: Group, paces: Any = (), **settings: float) -> StragglerRule:
    return StragglerRule(group, DistributedConfig(**settings), 16, paces)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "scored", "share", "cuts"),
    [(2, False, 0.6, True), (1, False, 0.6, False), (2, True, 0.6, False), (2, False, 0.0, False)],
)
def test_a_rollout_is_cut_only_where_other_ranks_wait_for_a_slow_one(
    size: int, scored: bool, share: float, cuts: bool
) -> None:
    config = override(recipe("quickstart"), [f"distributed.straggler_share={share}"])
    state = SimpleNamespace(config=config, paused=lambda: scored)
    group: Any = ElasticGroup(Group(size), stopper=None)  # type: ignore[arg-type]
    assert (group.stop(state) is not None) is cuts


def test_the_store_is_not_asked_before_the_others_should_be_done() -> None:
    group = Group(size=3, finished=2)
    rule = _rule(group, [0.001, 1000.0, 1000.0], straggler_grace=0.0)
    assert not any(rule(rows) for rows in range(1, 16))
    assert group.asked == 0


def test_a_rank_that_is_slower_than_most_others_is_cut_once_a_quarter_is_done() -> None:
    group = Group(size=3, finished=2)
    rule = _rule(group, [9.0, 1e-4, 2e-4], straggler_grace=0.0)
    time.sleep(0.005)  # the others should be done
    assert not any(rule(rows) for rows in range(1, 4))
    assert rule(4)
    group = Group(size=3, finished=1)  # 0.6 of the others are both
    rule = _rule(group, straggler_grace=0.0)
    assert not any(rule(rows) for rows in range(1, 16))
    assert group.asked >= 1
