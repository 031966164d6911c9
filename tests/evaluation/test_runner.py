"""Measured figures of links whose answers are known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.errors import ConfigError
from distrlcc.evaluation.contender import (
    Contender,
    contender_from_file,
    contender_from_scheme,
)
from distrlcc.evaluation.fairness import run_shared
from distrlcc.evaluation.recovery import first_fit, recovery_scores, recovery_times
from distrlcc.evaluation.runner import evaluate, histogram_percentile, stretches
from distrlcc.evaluation.scores import METRICS
from distrlcc.policy.policy_file import Acting, save_policy
from distrlcc.sim.families import bdp_packets
from distrlcc.sim.layout import HISTOGRAM_BINS
from distrlcc.sim.scenario import Change, Flow, Link, Scenario
from distrlcc.sim.suites import load_suite
from tests.evaluation.made import make_policy, policy_contender

RATE = 12.032  # a packet a millisecond


def _fixed(cwnd: float, **link: float) -> Scenario:
    values: dict[str, float] = {"rate_mbps": RATE, "delay_ms": 20, **link}
    return Scenario("fixed", Link(**values), (Flow(cwnd=cwnd),), duration_s=4.0)  # type: ignore[arg-type]


def _measured(scheme: str, *scenarios: Scenario) -> dict[str, np.ndarray]:
    """Return a scheme's figures on each link."""
    scores, _ = evaluate(contender_from_scheme(scheme), list(scenarios))
    return {key: values[:, 0] for key, values in scores.figures.items()}


def test_half_a_window_has_half_the_link_and_no_queue() -> None:
    scores = _measured("fixed", _fixed(20.5), _fixed(41), _fixed(61))
    half, full, above = range(3)
    assert scores["utilisation"] == pytest.approx([20 / 41, 1, 1], abs=0.005)
    assert scores["mean_rtt_ms"] == pytest.approx([41, 41, 61], abs=0.01)
    assert scores["mean_queueing_delay_ms"] == pytest.approx([0, 0, 20], abs=0.01)
    assert scores["p95_queueing_delay_ms"][above] == pytest.approx(20, rel=0.011)
    assert scores["p95_rtt_ms"][above] == pytest.approx(61, rel=0.011)
    assert scores["queueing_delay_rtt"][above] == pytest.approx(20 / 41, rel=0.01)
    assert scores["power"] == pytest.approx([20 / 41, 1, 41 / 61], abs=0.005)
    assert scores["throughput_mbps"][full] == pytest.approx(RATE, rel=0.005)
    assert (scores["loss"] == 0).all()
    assert scores["first_second_utilisation"][half] < scores["first_second_utilisation"][full]


def test_loss_is_told_apart_into_the_links_and_the_senders() -> None:
    random, full = _fixed(41, loss=0.1), _fixed(80, queue_packets=20)
    scores = _measured("fixed", random, full)
    assert scores["loss"][0] == pytest.approx(0.1, abs=0.02)
    assert scores["excess_loss"][0] == 0
    assert scores["loss"][1] == scores["excess_loss"][1] > 0.1


@pytest.mark.parametrize(
    "kind",
    [
        {"aqm": "droptail:packets=9999,mark=9998"},
        {"aqm": "codel:packets=9999,target=5,interval=100"},
        {"aqm": "pie:packets=9999"},
        {"jitter_ms": 1.0},
        {"policer_mbps": 99.0, "policer_packets": 9999},
        {"queue_packets": 9999},
    ],
    ids=str,
)
def test_no_more_is_lost_than_was_sent(kind: dict[str, Any]) -> None:
    """What waits as the first second ends is lost after it, when next to nothing is sent."""
    link = Link(rate_mbps=2.0, delay_ms=20.0, changes=(Change(0.9, loss=1.0),), **kind)
    scores = _measured("cubic", Scenario("cut", link, duration_s=8.0))
    assert 0.9 < scores["loss"][0] <= 1.0
    assert scores["excess_loss"][0] <= scores["loss"][0]


def test_delays_of_minutes_are_told() -> None:
    slow = Link(rate_mbps=12.0, delay_ms=60_000.0)
    flows = (Flow(cwnd=2.0, extra_rtt_ms=60_000.0),)
    scores = _measured("fixed", Scenario("slow", slow, flows, duration_s=400.0))
    assert scores["p95_rtt_ms"][0] == pytest.approx(scores["mean_rtt_ms"][0], rel=0.02)
    assert scores["mean_rtt_ms"][0] > 180e3


def test_capacity_follows_the_schedule_and_the_trace() -> None:
    changing = Link(rate_mbps=RATE, delay_ms=5, changes=(Change(2.0, rate_mbps=RATE / 2),))
    trace = Link(trace="poisson:6:1", delay_ms=5)
    flows = (Flow(cwnd=200),)
    links = [Scenario("a", changing, flows, 3.0), Scenario("b", trace, flows, 5.0)]
    scores, series = evaluate(contender_from_scheme("fixed"), links, series_links=(0,))
    assert scores.figures["utilisation"][:, 0] == pytest.approx([1, 1], abs=0.002)
    assert scores.figures["throughput_mbps"][:, 0] == pytest.approx([0.75 * RATE, 6], rel=0.03)
    assert series[0].capacity_mbps[5] == pytest.approx(RATE)
    assert series[0].capacity_mbps[-1] == pytest.approx(RATE / 2)
    assert series[0].queue_packets[-5] > 100


def test_a_silent_flow_is_not_a_number_and_not_an_error() -> None:
    outage = (Change(0.3, rate_mbps=0.0), Change(3.9, rate_mbps=RATE))
    scenario = Scenario("silent", Link(rate_mbps=RATE, changes=outage), duration_s=4.0)
    flows = (Flow(stop_s=3.5),)
    scores = _measured("fixed", replace(scenario, flows=flows))
    assert scores["utilisation"][0] == scores["power"][0] == 0
    assert np.isnan(scores["mean_rtt_ms"][0])


def test_a_flow_is_measured_to_its_own_end() -> None:
    link = Link(rate_mbps=RATE, delay_ms=20.0, queue_packets=100)
    scenarios = [Scenario("all", link, duration_s=4.0)]
    scenarios.append(Scenario("part", link, (Flow(stop_s=4.0),), duration_s=10.0))
    for name, values in _measured("oracle", *scenarios).items():
        assert values[0] == pytest.approx(values[1], rel=0.01, nan_ok=True), name


def test_a_trace_without_a_delay_has_a_base_of_a_millisecond() -> None:
    scenario = Scenario("bare", Link(trace="constant:12", delay_ms=0.0, queue_packets=50))
    scores = _measured("cubic", scenario)
    assert 0.01 < scores["power"][0] <= 1.0
    assert scores["queueing_delay_rtt"][0] <= 51.0


def test_a_policy_acts_from_its_flows_start_on() -> None:
    link = Link(20.0, delay_ms=10.0, queue_packets=100)
    scenarios = [
        Scenario(str(start), link, (Flow(start_s=start),), duration_s=start + 4.0)
        for start in (0.0, 2.0)
    ]
    contender = contender_from_file("aurora")
    figures = evaluate(contender, scenarios)[0].figures
    for name in ("first_second_utilisation", "power", "mean_queueing_delay_ms"):
        at_once, late = figures[name][:, 0]
        assert late == pytest.approx(at_once, rel=0.02), name


def test_a_first_second_without_capacity_has_no_utilisation() -> None:
    link = Link(0.0, delay_ms=20.0, changes=(Change(1.5, rate_mbps=RATE),))
    scores = _measured("cubic", Scenario("silent", link, duration_s=4.0))
    assert np.isnan(scores["first_second_utilisation"][0])
    assert scores["utilisation"][0] > 0.1


def test_percentiles_of_histograms_are_within_a_percent() -> None:
    delays = np.random.default_rng(0).exponential(30e6, 20_000)
    bins = np.bincount(
        np.minimum((np.log1p(delays * 1e-5) * 100.49917).astype(int), HISTOGRAM_BINS - 1),
        minlength=HISTOGRAM_BINS,
    ).astype(float)
    expected = np.percentile(delays, 95) * 1e-6
    assert histogram_percentile(bins[None], 0.95)[0] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("acting", ["sample", "argmax"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"observation": "aurora", "action": "rate", "interval_rtts": 0.5},
        {"observation": "indigo", "action": "indigo"},
    ],
)
def test_a_policy_acts_the_same_for_the_same_seed(acting: Acting, changes: dict[str, Any]) -> None:
    contender = policy_contender(make_policy(acting, **changes))
    scenarios = load_suite("random").scenarios("test", 6)
    a, _ = evaluate(contender, scenarios, seeds=2)
    b, _ = evaluate(contender, scenarios, seeds=2)
    assert np.array_equal(a.values(METRICS), b.values(METRICS), equal_nan=True)
    assert a.learned
    lossy = [k for k, s in enumerate(scenarios) if s.link.loss > 0]
    assert np.diff(a.figures["loss"][lossy]).any()


def test_links_do_not_influence_each_other() -> None:
    scenarios = load_suite("cellular").scenarios("test", 4)
    contender = contender_from_scheme("bbr")
    together, _ = evaluate(contender, scenarios)
    alone, _ = evaluate(contender, scenarios[2:3])
    assert np.array_equal(together.values(METRICS)[:, 2], alone.values(METRICS)[:, 0])


def test_a_long_trace_runs_in_stretches_that_count_as_one() -> None:
    whole = Scenario("long", Link(trace="cellular:9", trace_start_s=3.0), duration_s=150.0)
    parts = stretches(whole)
    assert [part.link.trace_start_s for part in parts] == [3.0, 53.0, 103.0]
    assert [part.duration_s for part in parts] == [50.0] * 3
    assert stretches(replace(whole, duration_s=60.0)) == [replace(whole, duration_s=60.0)]
    together, drawn = evaluate(contender_from_scheme("bbr"), [whole], series_links=(0,))
    alone, _ = evaluate(contender_from_scheme("bbr"), parts)
    assert together.figures["throughput_mbps"][0, 0] == pytest.approx(
        alone.figures["throughput_mbps"].mean()
    )
    assert drawn[0].edges_s[-1] == pytest.approx(150.0, abs=0.2)


def test_the_command_writes_report_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine" / "policy.safetensors"
    save_policy(path, make_policy())
    out, figures = tmp_path / "report", tmp_path / "figures.json"
    words = ["--against", "cubic,oracle", "--links", "2", "--seeds", "2", "--trace", "cellular:9"]
    words += ["--suite", "random", "--out", str(out), "--json", str(figures)]
    assert main(["evaluate", str(path), *words]) == 0
    page = (out / "report.html").read_text()
    assert "random/test/1" in page
    assert "trace/cellular:9" in page
    data = json.loads(figures.read_text())
    assert set(data["schemes"]) == {"mine", "cubic", "oracle"}
    assert data["ranking"][0] == "oracle"
    overall = data["schemes"]["mine"]["overall"]
    assert overall["utilisation"]["low"] <= overall["utilisation"]["mean"]
    assert len(data["schemes"]["cubic"]["scenarios"]) == 3
    assert str(out / "report.html") in capsys.readouterr().out
    capsys.readouterr()
    words = ["--against", "vegas", "--links", "1", "--seeds", "1", "--json", "-"]
    assert main(["evaluate", *words]) == 0
    assert json.loads(capsys.readouterr().out)["ranking"] == ["vegas"]


def test_mean_queueing_delay_lies_below_the_rtt_on_an_endless_queue() -> None:
    scenario = Scenario("endless", Link(rate_mbps=10, delay_ms=20), duration_s=10.0)
    scores = _measured("cubic", scenario)
    mean, p95 = scores["mean_queueing_delay_ms"][0], scores["p95_queueing_delay_ms"][0]
    assert 100 < mean < p95
    assert scores["mean_rtt_ms"][0] == pytest.approx(mean + 40 + 1.2032, abs=0.01)


def test_a_changing_path_has_no_power_above_one() -> None:
    change = Change(5.0, rate_mbps=50.0, delay_ms=5.0)
    link = Link(rate_mbps=2, delay_ms=60, changes=(change,))
    scores = _measured("oracle", Scenario("c", link, duration_s=10.0))
    assert 0.9 < scores["power"][0] <= 1.0
    assert scores["mean_queueing_delay_ms"][0] < 1.0


def test_links_with_other_numbers_of_flows_do_not_matter_to_the_oracle() -> None:
    one = Scenario("one", Link(rate_mbps=12, delay_ms=20, queue_packets=50), duration_s=4.0)
    two = Scenario("two", one.link, (Flow(), Flow("cubic", start_s=1.0)), duration_s=4.0)
    alone, beside = _measured("oracle", one), _measured("oracle", one, two)
    assert {key: values[0] for key, values in beside.items()} == alone
    assert alone["utilisation"] > 0.99


def test_beside_another_flow_power_is_of_the_own_share() -> None:
    link = Link(rate_mbps=12, delay_ms=20, queue_packets=200)
    scenario = Scenario("late", link, (Flow(start_s=2.0), Flow("cubic")), duration_s=8.0)
    scores = _measured("vegas", scenario)
    share = scores["throughput_mbps"][0] / 12
    assert scores["utilisation"][0] > 0.95
    assert share < 0.6
    base = 1.0 - scores["mean_queueing_delay_ms"][0] / scores["mean_rtt_ms"][0]
    assert scores["power"][0] == pytest.approx(share * base, rel=0.02)


@pytest.mark.parametrize("schemes", [("cubic",), ("cubic", "agent"), ("agent", "agent")])
def test_one_policy_drives_one_flow(schemes: tuple[str, ...]) -> None:
    scenario = Scenario("s", Link(rate_mbps=12), tuple(Flow(name) for name in schemes))
    with pytest.raises(ConfigError, match="agent first"):
        evaluate(contender_from_scheme("vegas"), [scenario])


def test_long_steps_are_spread_over_the_series() -> None:
    contender = policy_contender(make_policy(interval_rtts=6.0))
    scenario = Scenario("slow", Link(rate_mbps=RATE, delay_ms=20), duration_s=3.0)
    _, series = evaluate(contender, [scenario], series_links=(0,))
    assert series[0].capacity_mbps == pytest.approx(RATE)


def test_the_oracle_is_back_within_two_round_trips_and_cubic_is_not() -> None:
    scenarios = load_suite("dynamic").scenarios("test", 8)
    changes = sum(change.at_s < one.duration_s for one in scenarios for change in one.link.changes)
    oracle = recovery_times(contender_from_scheme("oracle"), scenarios)
    assert len(oracle) == changes
    assert np.median(oracle) < 2.0
    cubic, void = recovery_scores(contender_from_scheme("cubic"), scenarios)
    assert cubic["recovered"].mean < 0.3
    assert cubic["recovered"].worst == 0.0
    assert not void


def test_a_window_that_fits_one_rate_never_fits_the_other() -> None:
    window = round(bdp_packets(12.0, 41.0))
    changes = (Change(2.0, rate_mbps=12), Change(4.0, rate_mbps=24))
    link = Link(rate_mbps=24, delay_ms=20, changes=changes)
    scenario = Scenario("x", link, flows=(Flow("agent", cwnd=window),), duration_s=6.0)
    down, up = recovery_times(Contender("fixed"), [scenario])
    assert down < 1.0  # nothing to do: what was in flight fits now
    assert math.isinf(up)


def test_what_recovers_has_round_trips_of_its_own_and_losses_are_no_change() -> None:
    changes = (Change(2.0, rate_mbps=6), Change(4.0, rate_mbps=12))
    noted = (changes[0], Change(2.1, loss=0.001), changes[1])
    far = (Flow(extra_rtt_ms=60.0),)
    scenarios = [
        Scenario("far", Link(rate_mbps=12, changes=changes), far, duration_s=6.0),
        Scenario("lossy", Link(rate_mbps=12, changes=noted), duration_s=6.0),
        Scenario("never changes", Link(rate_mbps=12), duration_s=3.0),
    ]
    times = recovery_times(contender_from_scheme("oracle"), scenarios)
    assert len(times) == 4
    assert (times[:2] <= 5.0).all()


@pytest.mark.parametrize(
    ("inflight", "expected"),
    [
        ([20, 10, 10, 10, 10], 0.02),
        ([20, 10, 20, 10, 10], 0.04),  # it only passed by
        ([20, 20, 20, 20, 10], math.inf),  # the next change came first
        ([9, 11, 10, 9, 11], 0.01),
    ],
)
def test_what_passes_by_is_not_back(inflight: list[float], expected: float) -> None:
    ages = 0.01 * np.arange(1, 6, dtype=float)
    assert first_fit(ages, np.array(inflight, float), 10.0, 0.01) == pytest.approx(expected)


@pytest.mark.long
def test_a_policers_rate_is_what_its_link_can_carry() -> None:
    # Bursts that the bucket lets through, and dry steps after them, in steps of 10 ms.
    link = Link(50.0, delay_ms=20.0, queue_packets=200, policer_mbps=10.0, policer_packets=50)
    alone = Scenario("policed", link, duration_s=20.0)
    oracle, _ = evaluate(contender_from_scheme("oracle"), [alone])
    cubic, _ = evaluate(contender_from_scheme("cubic"), [alone])
    for scores in (oracle, cubic):
        share = scores.figures["throughput_mbps"][0, 0] / 10.0
        assert scores.figures["utilisation"][0, 0] == pytest.approx(share, abs=0.04)
    assert oracle.figures["utilisation"][0, 0] > 0.97
    assert oracle.figures["loss"][0, 0] < 0.04
    # Shared links have the same capacity.
    (run,) = run_shared(contender_from_scheme("cubic"), [alone])
    assert run.capacity.sum() * 1504 * 8e-6 / 20.0 == pytest.approx(10.0, rel=0.06)


def test_a_policer_that_is_faster_than_its_link_is_none() -> None:
    link = Link(100.0, delay_ms=50.0, policer_mbps=100_000.0, policer_packets=100)
    scores = _measured("oracle", Scenario("policed", link, duration_s=4.0))
    assert scores["utilisation"][0] > 0.97


def test_the_guard_acts_on_a_policy_that_floods_and_not_on_one() -> None:
    policy = make_policy(action="fine", guard=0.05)
    policy.arrays["policy_head.bias"][8] = 1e6  # it doubles the window in each step
    link = Link(rate_mbps=12.0, delay_ms=20.0, queue_packets=10)
    floods, _ = evaluate(policy_contender(policy), [Scenario("link", link, duration_s=20.0)])
    assert floods.figures["guarded"].item() > 0.5
    ours, _ = evaluate(contender_from_file("one"), load_suite("random").scenarios("test", 8))
    assert ours.figures["guarded"].max() < 0.01
