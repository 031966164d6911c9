"""Actions and observations by hand."""

from dataclasses import replace

import numpy as np
import pytest

from distrlcc.control.state import LEAST_PATH, MAX_CWND, MIN_CWND
from distrlcc.env.actions import ACTIONS
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.observations import (
    OBSERVATIONS,
    RECENT_WINDOW,
    Aurora,
    Indigo,
    IndigoMinRtt,
    ScaleFree,
    ScaleFreeNoise,
    ScaleFreeRecent,
    ScaleFreeSpread,
)
from distrlcc.sim.scenario import Link, Scenario
from tests.env.steps import interval_stats

ONES = np.ones(1)
TIMES = ("duration", "rtt_sum", "rtt_last", "rtt_min", "min_rtt")


def test_indigos_actions_are_its_five_and_windows_stay_in_bounds() -> None:
    windows, _ = ACTIONS["indigo"].apply(np.arange(5), np.full(5, 100.0), np.zeros(5))
    assert windows.tolist() == [50, 90, 100, 110, 200]
    ends = ACTIONS["multiplicative"].apply(np.array([0, 5]), np.array([2.5, 30_000.0]), np.zeros(2))
    assert ends[0].tolist() == [MIN_CWND, MAX_CWND]


def test_fine_actions_undo_one_another_within_a_hundredth() -> None:
    factors = ACTIONS["fine"].apply(np.arange(9), np.full(9, 1000.0), np.zeros(9))[0] / 1000.0
    assert factors[4] == 1.0
    assert factors * factors[::-1] == pytest.approx(np.ones(9), abs=0.01)
    label = ACTIONS["fine"].label
    best = np.array([1010.0, 1020.0, 970.0, 1200.0])
    assert label(best, np.full(4, 1000.0), ONES, ONES).tolist() == [4, 5, 3, 6]


def test_labels_come_nearest_to_the_best_window() -> None:
    best = np.array([200.0, 104.0, 112.0, 60.0, 92.0])
    labels = ACTIONS["indigo"].label(best, np.full(5, 100.0), ONES, ONES)
    assert labels.tolist() == [4, 2, 3, 0, 1]


def test_auroras_action_scales_the_rate_by_its_formula_and_its_label_leads_to_the_best() -> None:
    space, rate = ACTIONS["rate"], np.array([500.0])
    rates = space.apply(np.array([[2.0], [-2.0]]), np.ones(2), np.full(2, 1000.0))[1]
    assert rates == pytest.approx([1050.0, 1000 / 1.05])
    for target in (0.9, 1.0, 1.15):
        action = space.label(50.0 * target * ONES, ONES, rate, np.array([0.1]))
        assert space.apply(action[:, None], ONES, rate)[1] == pytest.approx(500 * target)


def test_indigos_fields_are_normalised_as_its_authors_do() -> None:
    rates = {"delivery_rate_ewma": 50.0, "send_rate_ewma": 100.0}
    stats = interval_stats(delay_ewma=20.0, cwnd=500.0, min_rtt=0.05, **rates)
    assert Indigo(1).observe(stats)[0] == pytest.approx([0.1, 0.25, 0.5, 0.1])
    assert IndigoMinRtt(1).observe(stats)[0, 4] == pytest.approx(0.5)


def test_auroras_history_shifts_and_holds_inflation_and_ratios() -> None:
    space, first = Aurora(1), {"duration": 0.1, "acked": 10, "sent": 12, "min_rtt": 0.05}
    space.observe(interval_stats(**first, rtt_sum=0.5))
    seen = space.observe(interval_stats(**first | {"sent": 15}, rtt_sum=0.6))[0]
    assert seen[-3:] == pytest.approx([0.1, 0.02, 0.05])
    assert seen[-6:-3] == pytest.approx([0.0, 0.0, 0.02])
    assert (seen[:-6] == 0).all()


def test_scale_free_features_do_not_depend_on_the_scale() -> None:
    """A link ten times as fast and as short gives the same ratios."""
    slow, fast = ScaleFree(1), ScaleFree(1)
    ratios = [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12]
    same = {"sent": 100, "acked": 100, "cwnd": 80, "inflight": 80}
    for k in range(30):
        rtt = 0.08 if k < 20 else 0.11
        rtts = {"rtt_sum": 100 * rtt, "rtt_last": rtt, "rtt_min": rtt, "min_rtt": 0.08}
        a = interval_stats(duration=0.1, **same, **rtts)
        b = replace(a, **{name: getattr(a, name) / 10 for name in TIMES})
        x, y = slow.observe(a)[0], fast.observe(b)[0]
        assert x[ratios] == pytest.approx(y[ratios], abs=1e-9)
    assert x[0] == pytest.approx(np.log(0.11 / 0.08))


def _path(space: ScaleFree, rtt: float, steps: int, cwnd: float = 40.0) -> np.ndarray:
    """Return what a sender sees last that has 4 ACKs of so long a round trip in each step."""
    seen = {"acked": 4, "rtt_sum": 4 * rtt, "rtt_last": rtt, "rtt_min": rtt, "min_rtt": 0.05}
    stats = interval_stats(duration=0.01, cwnd=cwnd, inflight=cwnd, **seen)
    for _ in range(steps):
        features = space.observe(stats)
    return np.asarray(features[0])


def test_a_link_of_ten_gigabit_looks_like_one_of_300_megabit() -> None:
    """The window, ACKs and queue are told as those of 25,000 packets/s; ratios are as they are."""
    one, ten = ScaleFreeNoise(1), ScaleFreeNoise(1)
    rtts = {"rtt_last": 0.012, "rtt_min": 0.01, "min_rtt": 0.01}
    packets = {"sent": 250, "acked": 250, "cwnd": 250, "inflight": 300, "rtt_sum": 250 * 0.012}
    for _ in range(20):
        slow = interval_stats(duration=0.01, **rtts, **packets)
        fast = replace(slow, **{name: 30 * getattr(slow, name) for name in packets})
        told, seen = one.observe(slow)[0], ten.observe(fast)[0]
    assert seen == pytest.approx(told, abs=1e-3)
    assert seen[[6, 13]] == pytest.approx([np.log(250) - 4, np.log1p(250) - 2])


def test_recent_features_begin_with_the_scale_free_ones_and_silence_counts_as_delay() -> None:
    plain, recent = ScaleFree(1), ScaleFreeRecent(1)
    for rtt in (0.07, 0.05):
        seen = _path(recent, rtt, 30)
        assert (seen[: ScaleFree.size] == _path(plain, rtt, 30)).all()
        assert seen.size == ScaleFreeRecent.size
    for _ in range(30):
        silent = interval_stats(duration=0.01, rtt_last=0.05, min_rtt=0.05, cwnd=10)
        (last,) = plain.observe(silent)
    assert last[0] == pytest.approx(np.log(0.3 / 0.05), rel=0.01)


def test_a_longer_path_is_in_the_recent_features_within_four_round_trips() -> None:
    """Base, wait, recent fast, quick, now, cut, slow cut, queued."""
    space = ScaleFreeRecent(1)
    before = _path(space, 0.05, 100)[ScaleFree.size :]
    assert before[[0, 1, 5, 6, 7]] == pytest.approx(np.zeros(5), abs=1e-9)
    at_once = _path(space, 0.1, 1)[ScaleFree.size :]
    assert at_once[:2] == pytest.approx([0.0, np.log(2.0)])
    after = _path(space, 0.1, 30)[ScaleFree.size :]
    assert after[:2] == pytest.approx([np.log(2.0), 0.0])
    assert after[2:5] == pytest.approx(np.log((400 * 0.1 + 0.1) / 40.0) * np.ones(3))
    assert after[7] == pytest.approx(np.log1p(400 * 0.05))


def test_recent_features_are_forgotten_at_a_reset_and_kept_in_a_state() -> None:
    space, other, new = ScaleFreeRecent(1), ScaleFreeRecent(1), ScaleFreeRecent(1)
    _path(space, 0.05, 30)
    other.load_state_dict(space.state_dict())
    assert (_path(space, 0.08, 3) == _path(other, 0.08, 3)).all()
    space.reset(np.array([0]))
    assert (_path(space, 0.08, 3) == _path(new, 0.08, 3)).all()
    assert not (_path(other, 0.08, 3) == _path(new, 0.08, 3)).all()


def test_a_window_that_was_cut_shows_for_some_round_trips() -> None:
    space = ScaleFreeRecent(1)
    _path(space, 0.05, 200)
    cut, later = (_path(space, 0.05, steps, cwnd=20.0)[-4:-2] for steps in (1, 10))
    assert (cut < [-0.5, -0.6]).all()
    assert (later > [-0.1, -0.5]).all()
    assert (later < [0.0, -0.3]).all()


def test_a_queue_that_has_stood_for_long_is_known_by_the_least_rtt_ever() -> None:
    space = ScaleFreeRecent(1)
    assert _path(space, 0.05, 100)[-1] == 0.0
    assert _path(space, 0.5, 100)[-1] == 0.0  # the min RTT is still that of before
    late = _path(space, 0.5, 800)
    assert late[0] == pytest.approx(0.0, abs=1e-9)  # and now the queue is taken for the path
    assert late[-1] == pytest.approx(np.log(10.0))
    silent = ScaleFreeRecent(1).observe(interval_stats(duration=0.01, cwnd=10))
    assert silent[0, -1] == 0.0


def test_a_longer_path_is_noticed_after_two_windows() -> None:
    space = ScaleFree(1)
    _path(space, 0.05, 100)
    assert _path(space, 0.1, 201)[0] == pytest.approx(np.log(2.0))
    seen = _path(space, 0.1, 699)
    assert seen[0] == 0.0
    assert seen[7] == pytest.approx(np.log(0.1 * 30))


def test_windows_close_when_they_are_full_whatever_sums_of_steps_round_to() -> None:
    space = ScaleFreeRecent(1)
    # Ten steps of 10 ms are two round trips of 50 ms; as floating point they are a little less.
    for step in range(10):
        space.observe(
            interval_stats(duration=0.01, acked=1, rtt_sum=0.05, rtt_min=0.05, rtt_last=0.05)
        )
        assert (space.state_dict()["rows"][0, RECENT_WINDOW] == 0.0) == (step == 9)


def test_spread_features_tell_a_jittering_path_from_a_queue() -> None:
    """Least, low quantile, mean above the quantile, spread, slow spread; a path of 50 ms."""
    space, recent = ScaleFreeSpread(1), ScaleFreeRecent(1)
    two, three = np.log([2.0, 3.0])
    for rtts, expected in (
        ([0.05, 0.05], [0.0, 0.0, 0.0, 0.0, 0.0]),
        # The quantile goes up by 1/64 of the way, the slow spread by 1/16.
        ([0.1, 0.2], [two, two / 64, three - two / 64, two, two / 16]),
        # A silent step has the last sample's delay, and the rest is as it was.
        ([], [two, two / 64, 2 * two - two / 64, two, two / 16]),
        # The quantile goes down by 1/8 of the way.
        ([0.05, 0.05], [0.0, two / 64 * 7 / 8, -two / 64 * 7 / 8, 0.0, two / 16 * 15 / 16]),
    ):
        seen = {"acked": len(rtts), "rtt_sum": sum(rtts), "rtt_last": rtts[-1] if rtts else 0.2}
        ends = {"rtt_min": min(rtts, default=0.0), "rtt_max": max(rtts, default=0.0)}
        stats = interval_stats(duration=0.01, min_rtt=0.05, cwnd=20.0, **seen, **ends)
        (found,) = space.observe(stats)
        assert found[ScaleFreeRecent.size :] == pytest.approx(expected, abs=1e-12)
        assert (found[: ScaleFreeRecent.size] == recent.observe(stats)[0]).all()


@pytest.mark.parametrize("name", [name for name in OBSERVATIONS if name.startswith("scale-free")])
def test_rtts_below_a_hosts_noise_are_all_the_same(name: str) -> None:
    # A LAN's RTTs, of which each is drawn, are seen as ones of 2 ms; longer ones as they are.
    rng = np.random.default_rng(1)
    for scale, same in ((0.5, True), (40.0, False)):
        seen = []
        for drawn in (True, False):
            space, least = OBSERVATIONS[name](1), np.inf
            for _ in range(60):
                low, high = (
                    scale * LEAST_PATH * np.sort(rng.uniform(0.02, 2.0, 2) if drawn else [2, 2])
                )
                least = min(least, low)
                rtts = {"rtt_min": low, "rtt_max": high, "rtt_last": high, "min_rtt": least}
                acked = {"acked": 20.0, "rtt_sum": 10 * (low + high), "duration": 0.01}
                newest = space.observe(interval_stats(**acked, **rtts, cwnd=50.0, inflight=40.0))
            seen.append(newest)
        assert np.array_equal(seen[0], seen[1]) == same


@pytest.mark.parametrize(("action", "rate"), [("genet", 80.0), ("fine", 0.0)])
def test_the_least_rate_is_the_minimum_and_a_slow_links_rate_is_not(
    action: str, rate: float
) -> None:
    config = EnvConfig(suites=("slow",), action=action)
    batch = LinkBatch(1, config, with_labels=False)
    batch.load(0, Scenario("slow", Link(1.0, delay_ms=5.0)))
    batch.hold(np.array([2.0]), np.array([rate]))
    # 80 packets/s are the link's 83 nearly, and less than one in a round trip.
    assert batch.at_minimum() == [rate == 0.0]
    batch.hold(np.array([9.0]), np.array([batch.actions.least_rate]))
    assert batch.at_minimum() == [rate > 0.0]
