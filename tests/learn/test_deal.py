from __future__ import annotations

import numpy as np
import pytest

from distrlcc.learn.minibatches import plan_minibatches

KEY = np.uint64(7)


def _samples(rows: int, first: int, count: int, total: int, size: int, have: int) -> list[set[int]]:
    """Return each minibatch as global sample numbers row * total + environment."""
    plan = plan_minibatches(rows * total, size, rows, total, first)
    parts = []
    for chosen in plan.minibatches(have, count, KEY):
        row, environment = np.divmod(chosen.numpy(), count)
        parts.append(set((row * total + environment + first).tolist()))
        assert len(parts[-1]) == len(chosen)
    return parts


@pytest.mark.parametrize(("rows", "size"), [(64, 100), (4, 32), (1, 7), (64, 10**6), (2, 1)])
def test_ranks_deal_what_one_process_deals(rows: int, size: int) -> None:
    alone = _samples(rows, 0, 12, 12, size, rows)
    ranks = [_samples(rows, first, count, 12, size, rows) for first, count in ((0, 5), (5, 7))]
    assert alone == [a | b for a, b in zip(*ranks, strict=True)]
    assert sorted(sample for part in alone for sample in part) == list(range(rows * 12))
    if size == 100:
        assert [len(part) for part in alone] == [96] * 8


def test_a_cut_rank_leaves_out_the_rows_that_it_lacks() -> None:
    whole = _samples(16, 0, 6, 12, 24, 16)
    cut = _samples(16, 0, 6, 12, 24, 5)
    assert cut == [{sample for sample in part if sample < 5 * 12} for part in whole]


def test_the_deal_depends_on_the_key() -> None:
    plan = plan_minibatches(640, 64, 64, 10, 0)
    first = [chosen.tolist() for chosen in plan.minibatches(64, 10, KEY)]
    assert first == [chosen.tolist() for chosen in plan.minibatches(64, 10, KEY)]
    assert first != [chosen.tolist() for chosen in plan.minibatches(64, 10, np.uint64(8))]
