"""What the benchmark of workers says, of a run and of counts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.delivery import _percentile, measure_delivery
from distrlcc.actors.pace import LATENESS_SECONDS
from distrlcc.config import override
from distrlcc.recipes.registry import recipe


def test_a_share_of_the_steps_is_within_the_bound_of_a_bin() -> None:
    counts = np.zeros(len(LATENESS_SECONDS) + 1)
    counts[0], counts[4] = 98, 2
    assert _percentile(counts, 0.98) == pytest.approx(0.05)
    assert _percentile(counts, 0.99) == pytest.approx(0.2)
    counts[-1] = 1e6
    assert _percentile(counts, 0.99) == pytest.approx(1e3 * LATENESS_SECONDS[-1])


@pytest.mark.long
@pytest.mark.slow
def test_two_paced_workers_deliver_what_they_act() -> None:
    config = override(recipe("distrlcc"), ["dagger.rollout_length=64"])
    found = measure_delivery(config, 2, 10.0, 15.0)
    assert found.steps_per_second == pytest.approx(200.0, rel=0.15)
    assert found.acted_per_second == pytest.approx(200.0, rel=0.15)
    assert 0.0 <= found.late_share <= 1.0
    assert found.late_ms_p99 > 0.0
    assert found.publish_ms_median <= found.publish_ms_p99
    assert found.refused == 0
