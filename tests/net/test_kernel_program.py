"""The kernel's program, by BPF_PROG_TEST_RUN: beside what is learned from, and its guard."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from distrlcc.control import windows
from distrlcc.env.actions import ACTIONS
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.kernel_policy import same_action
from distrlcc.net.kernel.trial import BEGIN, GUARD, Trial, intervals
from distrlcc.policy import kernel_layout as layout
from distrlcc.policy.kernel_layout import ONE, fixed
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.policy.policy_file import PolicyFile, find_policy, load_policy
from distrlcc.policy.quantise import quantise
from distrlcc.sim.suites import load_suite
from distrlcc.types import IntervalStats
from scripts.build_bpf import COMPILER, differences
from tests.policy.random_policies import make_spec, random_arrays

pytestmark = pytest.mark.net


def random_policy(observation: str, action: str, **changes: object) -> PolicyFile:
    size = layout.SPACES[observation] + getattr(ACTIONS[action], "size", 1)
    discrete = hasattr(ACTIONS[action], "factors")
    spec = make_spec(
        observation=observation,
        action=action,
        action_kind="discrete" if discrete else "continuous",
        action_size=ACTIONS[action].size,
        observation_size=size + ("options" in changes),
        **changes,
    )
    return PolicyFile(spec, random_arrays(spec, 0.4), "sample")


PREFERENCE = {"preference": "0.25", "delay_weights": "0.05 5.0"}
POLICIES = {
    "one": load_policy(find_policy("one")),
    "dagger": load_policy(find_policy("dagger")),
    "preference": load_policy(find_policy("preference")),
    "indigo": load_policy(find_policy("indigo")),
    "distrlcc": load_policy(find_policy("distrlcc")),
    "aurora": load_policy(find_policy("aurora")),
    "genet": load_policy(find_policy("genet")),
    "bounded, and what tells jitter": random_policy(
        "scale-free-spread", "fine", kind="mingru", hidden=(64, 64), guard=0.05
    ),
    "rates drawn, wide and recurrent": random_policy(
        "genet", "fast-rate", kind="lstm", hidden=(64, 64), activation="tanh"
    ),
    "a layer behind": random_policy(
        "scale-free-spread", "fine", kind="mingru", hidden=(96, 96), post_hidden=128
    ),
    "rates of layers behind": random_policy(
        "aurora", "rate", kind="lstm", hidden=(20, 20), post_hidden=17, activation="tanh"
    ),
    "two gates": random_policy("scale-free-recent", "fine", kind="mingru", hidden=(50, 64)),
    "two gates alone": random_policy("aurora", "rate", kind="mingru", hidden=(33,)),
    "four layers": random_policy(
        "aurora", "fine", hidden=(128, 128, 100, 17), options=PREFERENCE, activation="tanh"
    ),
}


def test_the_sections_are_as_large_as_their_types(trial: Trial) -> None:
    types = {
        layout.POLICIES: np.dtype((layout.POLICY, 2)),
        layout.CONTROL: layout.CONTROL_TYPE,
        layout.STATS: layout.STATS_TYPE,
        layout.TRIAL: layout.TRIAL_TYPE,
    }
    assert {name: len(trial.section(name)) for name in types} == {
        n: t.itemsize for n, t in types.items()
    }
    # Programs of earlier layouts are told by their size.
    assert layout.POLICY.itemsize not in range(272_400, 272_448, 8)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_what_is_seen_is_what_the_space_sees(trial: Trial, name: str) -> None:
    spec = make_spec(observation=name, action_size=5, observation_size=layout.SPACES[name] + 5)
    policy = quantise(PolicyFile(spec, random_arrays(spec, 0.3)), ACTIONS["indigo"])
    trial.policies[0] = policy
    n, rng = 40, np.random.default_rng(2)
    rows, space = trial.begun(n), OBSERVATIONS[name](n)
    assert space.size == policy["observed"]
    # Whole microseconds, as both see the same; silences, and paths that get longer and shorter,
    # a quarter of them within a LAN.
    lowest = np.where(np.arange(n) < n // 4, 50, 8_000)
    path, shortest, last = rng.integers(lowest, 25 * lowest) / 1e6, np.zeros(n), np.zeros(n)
    for step in range(150):
        path = np.where(rng.random(n) < 0.05, rng.integers(lowest, 25 * lowest) / 1e6, path)
        acked = np.where(rng.random(n) < 0.3, 0, rng.integers(1, 60, n))
        least = np.where(acked > 0, path, 0.0)
        last = np.where(acked > 0, path + rng.integers(0, 4 * lowest) / 1e6, last)
        shorter = (acked > 0) & ((shortest == 0) | (path < shortest))
        shortest = np.where(shorter, path, shortest)
        values = dict.fromkeys(IntervalStats.names(), np.zeros(n)) | {
            "duration": np.full(n, 0.01),
            "acked": acked.astype(float),
            "sent": rng.integers(0, 60, n).astype(float),
            "lost": np.where(rng.random(n) < 0.8, 0.0, rng.integers(0, 9, n)),
            "rtt_sum": np.round(acked * (least + last) / 2, 6),
            "rtt_min": least,
            "rtt_max": np.where(acked > 0, last, 0.0),
            "rtt_last": last,
            "min_rtt": shortest,
            "inflight": np.exp(rng.uniform(0, 10.4, n)).round(),
            "cwnd": np.exp(rng.uniform(0.7, 10.4, n)).round(),
            "delay_ewma": rng.uniform(0, 300, n),
            "delivery_rate_ewma": rng.uniform(0, 900, n),
            "send_rate_ewma": rng.uniform(0, 900, n),
        }
        stats = IntervalStats(**values)
        rows["now"], rows["cwnd"] = intervals(stats), fixed(stats.cwnd)
        trial.step(rows, np.zeros(n, np.int64), np.zeros(n, np.bool_))
        expected = space.observe(stats)
        # The waiting packets' times are of 1/16 us here, and a fading rate's least is 1/65536.
        seen = rows["observation"][:, : space.size] / ONE
        assert np.abs(seen - expected).max() < 1e-3, (step, np.abs(seen - expected).max(axis=0))


@pytest.mark.parametrize("name", POLICIES)
def test_networks_decide_as_here(trial: Trial, name: str) -> None:
    policy = POLICIES[name]
    trial.policies[0] = quantise(policy, ACTIONS[policy.spec.action])
    contender = Contender(name, NumpyPolicy(policy), policy.spec.preference)
    scenarios = load_suite("random").scenarios("test", 8)
    share, decisions = same_action(contender, trial, scenarios, 4.0)
    assert decisions > 500
    assert share >= 0.997


def test_windows_are_bounded_as_in_the_simulator(trial: Trial) -> None:
    policy, n, rng = random_policy("scale-free", "fine", guard=0.05), 400, np.random.default_rng(0)
    trial.policies[0] = quantise(policy, ACTIONS["fine"])
    # States of all kinds: before the first sample, in silence, on a path that got longer, ...
    cwnd, acked = np.exp(rng.uniform(1.4, 9.0, n)), rng.choice([0, 1, 7, 40, 6000], n)
    ever, rate = rng.choice([0, 300, 9_000, 400_000], n), np.exp(rng.uniform(3.0, 12.0, n))
    least, before = (rng.choice([0, 2, 7], n) * ever for _ in range(2))
    on = rng.choice([0, 0, 1, windows.OUTSIDE], n)
    guarded = np.where(on > 0, rng.integers(4, 3000, n), 0)
    rows = trial.begun(n)
    rows["cwnd"], rows["lately"] = fixed(cwnd), fixed(rate * (ever > 0), layout.RATE_ONE)
    rows["least"], rows["least_before"], rows["now"]["min_rtt"] = least, before, ever
    rows["now"]["acked"], rows["guard"]["on"], rows["guard"]["window"] = acked, on, fixed(guarded)
    trial.memory["mode"], counted = BEGIN, int(trial.stats["lowered"])
    for row in rows:
        trial.memory["connection"] = row
        trial.run()
        for field in ("cwnd", "action"):
            row[field] = trial.memory["connection"][field]
    # The same with floating point, by the actions that the program took.
    control = windows.WindowControl(n, 0.0, 0.05)
    path = np.where((least > 0) & (before > 0), np.minimum(least, before), least + before)
    path = np.minimum(np.where(path > 0, path, ever), windows.MOST_LONGER * ever)
    for place, values in (
        (windows.ACKED, acked),
        (windows.TOP, rate * (ever > 0)),
        (windows.LEAST, path / 1e6),
        (windows.ON, on),
        (windows.WINDOW, guarded),
    ):
        control.state[:, place] = values
    chosen = ACTIONS["fine"].apply(rows["action"].astype(int), cwnd, np.zeros(n))
    expected, _ = control.apply((cwnd, np.zeros(n)), chosen)
    assert rows["cwnd"] / ONE == pytest.approx(expected, rel=1e-4)
    assert int(trial.stats["lowered"]) - counted == control.lowered.sum()
    for many in (control.lowered, ~control.lowered):
        assert many[on == 0].sum() > 40


def test_decisions_of_which_the_guard_left_less_are_counted(trial: Trial) -> None:
    policy = random_policy("scale-free-spread", "fine", hidden=(8,), guard=0.05)
    whole = quantise(policy, ACTIONS["fine"])
    most = int(whole["factor"].argmax())  # whatever it answers raises the window most
    for field in ("factor", "offset"):
        whole[field][:] = whole[field][most]
    trial.policies[0] = whole
    memory, stats = trial.memory, trial.stats

    def lowered(acked: int = 100, limited: int = 0, on: int = 0, window: int = 40) -> int:
        memory["connection"] = np.zeros((), layout.CONNECTION)
        connection, before = memory["connection"], int(stats["lowered"])
        connection["cwnd"], connection["limited"] = 100 * ONE, limited
        connection["now"]["acked"] = acked
        connection["guard"]["on"], connection["guard"]["window"] = on, window * ONE
        memory["mode"] = BEGIN
        trial.run()
        return int(stats["lowered"]) - before

    # What was acknowledged bounds growth; then CUBIC's rule; the application's limit is no guard.
    assert (lowered(), lowered(acked=0)) == (0, 1)
    assert (lowered(on=1), lowered(on=1, window=4000)) == (1, 0)
    assert (lowered(acked=0, limited=1), lowered(limited=1, on=1)) == (0, 1)


def test_the_guard_takes_over_and_gives_back(trial: Trial) -> None:
    policy = POLICIES["one"]
    whole = quantise(policy, ACTIONS["fine"])
    trial.policies[0] = whole
    memory, stats = trial.memory, trial.stats
    memory["connection"] = np.zeros((), layout.CONNECTION)
    memory["mode"] = GUARD
    connection, ack = memory["connection"], memory["ack"]
    connection["cwnd"], connection["now"]["rtt_last"] = 100 * ONE, 50_000
    clock = SimpleNamespace(us=1_000_000, delivered=0)
    connection["guard"]["begun"] = clock.us

    def round_trip(lost: int) -> float:
        """Acknowledge a window within 50 ms, with some packets lost; return the window."""
        before, clock.us = clock.delivered, clock.us + 50_000
        clock.delivered += 100
        for n, (acked, missed) in enumerate([(50, 0), (50 - lost, lost)]):
            memory["ack"] = (
                clock.us + n,
                acked,
                missed,
                100,
                before,
                clock.delivered,
                0,
                0,
                0,
                0,
                0,
            )
            connection["cwnd"] = 100 * ONE  # the policy wants as much
            trial.run()
        return float(connection["cwnd"]) / ONE

    assert ack["lost"] == 0
    # A loss now and then, and a bad round trip, are the policy's matter.
    for lost in (3, 3, 30, 0, 30, 3):
        assert round_trip(lost) == 100
    assert stats["guard_entries"] == 0
    # Two bad round trips in a row are not.
    assert round_trip(30) == 100
    assert round_trip(30) == pytest.approx(70)
    assert (connection["guard"]["on"], stats["guard_entries"]) == (1, 1)
    # CUBIC: one reduction for a round trip's loss, then growth: concave to what it was.
    assert round_trip(20) == pytest.approx(49, abs=1)
    windows: list[float] = []
    while connection["guard"]["on"] and len(windows) < 100:
        windows.append(round_trip(0))
    assert windows == sorted(windows)
    assert 49 < windows[-1] < 70
    assert (len(windows), connection["guard"]["on"]) == (8, 0)
    assert stats["guard_us"] > 400_000
    # Again where packets queue, and so from half the loss on; and it lasts twice as long.
    connection["now"]["rtt_min"], connection["now"]["min_rtt"] = 76_000, 50_000
    for _ in range(2):
        assert not connection["guard"]["on"]
        round_trip(3)
    windows = []
    while connection["guard"]["on"] and len(windows) < 100:
        windows.append(round_trip(0))
    assert len(windows) == 16


def test_the_guard_is_that_of_the_simulator(trial: Trial) -> None:
    whole = quantise(POLICIES["one"], ACTIONS["fine"])
    trial.policies[0] = whole
    memory = trial.memory
    memory["connection"], memory["mode"] = np.zeros((), layout.CONNECTION), GUARD
    connection, state = memory["connection"], np.zeros((1, windows.STATE_SIZE))
    rng, now, delivered, room = np.random.default_rng(0), 0.0, 0, list[tuple[bool, bool]]()
    for k in range(1500):
        # A round trip of a hundred packets; loss and queue are others after 20.
        if k % 20 == 0:
            rtt, share = rng.choice([0.05, 0.08]), rng.choice([0.0, 0.02, 0.04, 0.1, 0.3])
        lost = int(rng.binomial(100, share))
        acked, duration = 100 - lost, 1.02 * rtt
        seen = [duration, acked, lost, acked * rtt, rtt, 100, 100]
        windows.observe(state, np.array(seen)[:, None], 0.05, 0.0)
        now += duration
        # The kernel is given the simulator's least RTTs, so that the rule alone is compared.
        connection["least"] = round(1e6 * state[0, windows.LEAST])
        for field, seconds in (
            ("rtt_min", rtt),
            ("rtt_last", rtt),
            ("min_rtt", state[0, windows.EVER]),
        ):
            connection["now"][field] = round(1e6 * seconds)
        last, delivered = delivered, delivered + acked
        memory["ack"] = (round(1e6 * now), acked, lost, 100, last, delivered, 0, 0, 0, 0, 0)
        connection["cwnd"] = 100 * ONE
        connection["srtt"] = 8e6 * state[0, windows.SRTT]
        connection["lately"] = layout.RATE_ONE * state[0, windows.TOP]
        trial.run()
        guard = connection["guard"]
        assert (guard["on"], guard["entries"]) == tuple(state[0, [windows.ON, windows.ENTRIES]])
        # Whether the queue has no room decides on the pacing.
        held = np.array([[100.0], [0.0]])
        windows.hold(state, held[0], held, np.zeros(1, np.bool_), 1.5, 0.05)
        gentle = held[1, 0] * state[0, windows.SRTT] < 1.1 * held[0, 0]
        room.append((gentle, bool(guard["no_room"])))
        if guard["on"]:
            assert guard["window"] / ONE == pytest.approx(state[0, windows.WINDOW], rel=0.02)
    assert state[0, windows.ENTRIES] > 4
    assert 100 < sum(gentle for gentle, _ in room) < 1400
    assert np.mean([one == other for one, other in room]) > 0.98
    # A policy without a guard keeps its pacing.
    for growth, found in ((4, 1), (0, 0)):
        trial.policies["growth"] = growth
        memory["ack"] = (round(1e6 * now), 98, 2, 100, last, delivered, 0, 0, 0, 0, 0)
        connection["srtt"] = 8 * connection["now"]["min_rtt"]
        trial.run()
        assert connection["guard"]["no_room"] == found


@pytest.mark.parametrize(("held", "noisy"), [(0.004, 2), (0.05, 0)])
def test_outside_of_what_policies_hold_the_guard_is_that_of_the_simulator(
    trial: Trial, held: float, noisy: int
) -> None:
    whole = quantise(POLICIES["one"], ACTIONS["fine"])
    trial.policies[0] = whole
    trial.policies["noise_us"] = round(1e6 * held)
    memory, stats = trial.memory, trial.stats
    memory["connection"], memory["mode"] = np.zeros((), layout.CONNECTION), GUARD
    before = {name: int(stats[name]) for name in ("short_entries", "noisy_entries", "outside_us")}
    connection, state = memory["connection"], np.zeros((1, windows.STATE_SIZE))
    rng, now, delivered, cwnd, found = np.random.default_rng(0), 0.0, 0, 100.0, []
    # A path that is short, then long, and noisy twice: least RTT, noise, rounds.
    for path, noise, rounds in (
        *((0.001, 0.0, 900), (0.05, 0.0, 300), (0.05, 0.02, 160), (0.05, 0.0, 600)),
        *((0.03, 0.02, 250), (0.03, 0.0, 1200)),
    ):
        for _ in range(rounds):
            drawn = np.round(path + noise * rng.random(64), 6)
            duration, lost = round(1.1 * max(drawn.max(), state[0, windows.SRTT]), 6), 0
            if state[0, windows.ON] == windows.OUTSIDE and noise and rng.random() < 0.1:
                lost = 10
            seen = [duration, 100, lost, 100 * drawn.mean(), drawn.min(), 1e6, cwnd]
            windows.observe(state, np.array(seen)[:, None], 0.5, held)
            row = state[0]
            now += duration
            connection["least"] = round(1e6 * row[windows.LEAST])
            for field, seconds in (
                ("rtt_min", drawn.min()),
                ("rtt_last", path),
                ("min_rtt", row[windows.EVER]),
            ):
                connection["now"][field] = round(1e6 * seconds)
            last, delivered = delivered, delivered + 100
            sums = round(64e6 * drawn.mean()), 64, round(1e6 * drawn.min())
            memory["ack"] = (round(1e6 * now), 100, lost, 1 << 20, last, delivered, 0, 0, *sums)
            connection["cwnd"] = round(cwnd * ONE)
            trial.run()
            guard = connection["guard"]
            assert (guard["on"], guard["slow"]) == tuple(row[[windows.ON, windows.SLOW]])
            assert guard["noisy"] == row[windows.NOISY]
            if guard["on"]:
                assert guard["window"] / ONE == pytest.approx(row[windows.WINDOW], rel=0.02)
                assert connection["cwnd"] == guard["window"]
        found.append((int(guard["on"]), guard["window"] / ONE))
    assert [on for on, _ in found] == ([2, 0, 2, 0, 2, 0] if noisy else [2, 0, 0, 0, 0, 0])
    # Beyond the policy's own windows, as CUBIC would go.
    assert found[0][1] == windows.MOST_CWND
    counted = {name: int(stats[name]) - count for name, count in before.items()}
    entries = (counted["short_entries"], counted["noisy_entries"])
    assert entries == tuple(row[[windows.SHORT_ENTRIES, windows.NOISY_ENTRIES]]) == (1, noisy)
    assert counted["outside_us"] == pytest.approx(1e6 * row[windows.OUTSIDE_TIME], rel=0.01)
    # --always leaves all to the policy, at once where a swap brings it.
    for always in (0, 1):
        trial.policies["noise_us"] = 0 if always else 4000
        memory["ack"]["rtt_least"] = 500
        trial.run()
        assert connection["guard"]["on"] == (0 if always else layout.OUTSIDE)


def test_a_policy_of_rates_goes_on_at_the_rate_that_the_guard_ended_with(trial: Trial) -> None:
    whole = quantise(POLICIES["aurora"], ACTIONS["rate"])
    trial.policies[0] = whole
    memory = trial.memory
    memory["connection"], memory["mode"] = np.zeros((), layout.CONNECTION), GUARD
    connection = memory["connection"]
    connection["rate"], connection["now"]["rtt_last"] = 30_000 * layout.RATE_ONE, 50_000
    for delivered in range(100, 2000, 100):
        lost = 30 if delivered < 250 else 0
        last = delivered - 100
        memory["ack"] = (
            1_000_000 + 500 * delivered,
            100,
            lost,
            100,
            last,
            delivered,
            0,
            0,
            0,
            0,
            0,
        )
        trial.run()
        if not connection["guard"]["on"] and delivered > 250:
            break
    # 70 packets and their growth, per 50 ms; the window is again as in training.
    window = connection["guard"]["window"] / ONE
    assert connection["rate"] / layout.RATE_ONE == pytest.approx(window / 0.05, rel=1e-4)
    assert 70 < window < 100
    assert connection["cwnd"] == whole["first_window"] > 1000 * ONE


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")
def test_what_is_committed_is_what_the_sources_give() -> None:
    assert differences() == []
