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


@pytest.mark.parametrize(
    ("size", "scored", "share", "cuts"),
    [(2, False, 0.6, True), (1, False, 0.6, False), (2, True, 0.6, False), (2, False, 0.0, False)],
)
def test_a_rollout_is_cut_only_where_other_ranks_wait_for_a_slow_one(
    size: int, scored: bool, share: float, cuts: bool
) -> None:
    config = override(recipe("quickstart"), [f"distributed.straggler_share={share}"])
    state = SimpleNamespace(config=config, paused=lambda: scored)
    group: Any = ElasticGroup(Group(size), None, None)  # type: ignore[arg-type]
    assert (group.stop(state) is not None) is cuts


@pytest.mark.parametrize(
    ("finished", "paces", "cut_after", "asks"),
    [
        pytest.param(2, [9.0, 1e-4, 2e-4], 4, True, id="a quarter is done, the others all"),
        pytest.param(2, [0.001, 1000.0, 1000.0], None, False, id="the others cannot be done"),
        pytest.param(1, (), None, True, id="0.6 of the two others are both"),
    ],
)
def test_a_rank_slower_than_most_others_is_cut(
    finished: int, paces: Any, cut_after: int | None, asks: bool
) -> None:
    group: Any = Group(size=3, finished=finished)
    rule = StragglerRule(group, DistributedConfig(straggler_grace=0.0), 16, paces)
    time.sleep(0.005)  # the others should be done
    assert next((rows for rows in range(1, 16) if rule(rows)), None) == cut_after
    assert (group.asked > 0) is asks
