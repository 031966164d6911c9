"""Fairness: indices and times by hand, runs of real flows, the command."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.evaluation.contender import Contender, contender_from_scheme
from distrlcc.evaluation.fairness import (
    SharedRun,
    convergence_times,
    fairness_of,
    jain_index,
    measure,
    run_shared,
    running_rates,
    settled,
    to_json,
    windowed_rates,
)
from distrlcc.evaluation.plots import shared_link
from distrlcc.evaluation.runner import MBIT
from distrlcc.evaluation.scores import BUCKET_S
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.types import PACKET_BYTES

LINK = Link(rate_mbps=12.0, delay_ms=10.0, queue_packets=20)
BASE_RTT = 0.021


def _run(flows: tuple[Flow, ...], rates: Any, seconds: float = 10.0, **changes: Any) -> SharedRun:
    """Make a run of flows with the given rates, Mbit/s, ``[F, B]``."""
    acked = np.array(rates, float) * BUCKET_S / MBIT
    total = acked.sum(axis=0)
    values: dict[str, Any] = {
        "scenario": Scenario("made", LINK, flows, duration_s=seconds),
        "acked": acked,
        "queueing_s": acked * 0.5 * BASE_RTT,
        "sent": acked,
        "dropped": 0.0 * acked,
        "capacity": np.full(len(total), 12.0 * BUCKET_S / MBIT),
        "used": total,
        "base_rtt_s": np.full(len(flows), BASE_RTT),
        "stops_s": np.array([min(flow.stop_s or seconds, seconds) for flow in flows]),
    }
    return SharedRun(**values | changes)


def test_jains_index() -> None:
    rates = np.array([[1.0, 3.0, 1.0, 0.0, 5.0], [1.0, 1.0, np.nan, 0.0, 0.0]])
    found = jain_index(rates)
    np.testing.assert_allclose(found[[0, 1, 4]], [1.0, 16 / 20, 0.5])
    assert np.isnan(found[[2, 3]]).all()  # one flow alone; nothing delivered


def test_a_page_draws_the_capacity_at_the_time_of_the_rates() -> None:
    rates = np.repeat([[6.0], [6.0]], 100, axis=1)
    rates[:, 50:] = 3.0
    run = _run((Flow(), Flow()), rates, capacity=rates.sum(axis=0) * BUCKET_S / MBIT)
    data = shared_link("chart", run, "cubic").data
    lines = data["panels"][0]["lines"]
    assert np.add(lines[0]["values"], lines[1]["values"]) == pytest.approx(data["capacity"])


@pytest.mark.parametrize(
    ("rate", "delay_ms", "flows", "coarse"),
    [(0.2, 20.0, 2, True), (0.3, 20.0, 2, False), (0.05, 20.0, 1, False), (10.0, 600.0, 2, True)],
)
def test_windows_that_are_too_short_for_shares_are_told(
    rate: float, delay_ms: float, flows: int, coarse: bool
) -> None:
    link = Link(rate_mbps=rate, delay_ms=delay_ms, queue_packets=20)
    scenario = Scenario("made", link, (Flow(),) * flows, duration_s=6.0)
    notes = measure(Contender("cubic"), "made", [scenario]).notes
    assert any("on 1 of 1 links windows of 1 s are shorter" in note for note in notes) == coarse


def test_no_more_is_dropped_than_was_sent() -> None:
    rates = np.full((2, 100), 6.0)
    kept = _run((Flow(), Flow()), rates)
    late = _run((Flow(), Flow()), rates, sent=0.1 * kept.acked, dropped=kept.acked)
    assert fairness_of(late)["excess_loss"] == 1.0


def test_a_flow_of_a_size_counts_until_it_is_complete() -> None:
    flows = (Flow(), Flow("reno", start_s=2.0, packets=20))
    (run,) = run_shared(Contender("reno"), [Scenario("sized", LINK, flows, duration_s=6.0)])
    assert run.stops_s[0] == 6.0
    assert 2.0 < run.stops_s[1] < 2.5
    rates = windowed_rates(run)
    assert not np.isfinite(rates[1]).any()  # never for a whole window
    assert np.isfinite(rates[0]).all()
    assert running_rates(run)[1] > 0.4


def test_a_flow_counts_in_windows_within_its_time() -> None:
    flows = (Flow(), Flow(start_s=2.0, stop_s=6.0))
    run = _run(flows, [[6.0] * 100, [6.0] * 100])
    seen = np.isfinite(windowed_rates(run))
    assert seen.shape == (2, 91)
    assert seen[0].all()
    assert np.flatnonzero(seen[1]).tolist() == list(range(20, 51))
    calm = settled(run, 91)
    # Settled 3 s after the beginning, the join at 2 s and the leaving at 6 s; and in between.
    assert np.flatnonzero(calm).tolist() == [50, *range(90, 91)]


def test_convergence_takes_until_every_flow_stays_near_its_share() -> None:
    time = np.arange(100) * BUCKET_S
    # The second flow joins at 2 s and takes its share at 4.5 s: the window from 4.1 s on has 0.6 of
    # its second at 6 Mbit/s, which is 3.6 of 12; 0.8 of it makes 4.8, which is within 25% of 6.
    second = np.where(time >= 4.5 - 1e-9, 6.0, 0.0)
    run = _run((Flow(), Flow(start_s=2.0)), [12.0 - second, second])
    assert convergence_times(run) == pytest.approx([2.3])
    never = _run((Flow(), Flow(start_s=2.0)), [[9.0] * 100, [3.0] * 100])
    assert np.isnan(convergence_times(never)).all()
    soon_left = _run((Flow(start_s=9.5),), [[0.0] * 95 + [9.0] * 5])  # no window of its own
    assert np.isnan(convergence_times(soon_left)).all()
    crowd = (Flow(), Flow(start_s=0.2), Flow(start_s=0.5))  # the third joins at once
    assert np.isnan(convergence_times(_run(crowd, [[4.0] * 100] * 3))).tolist() == [True, False]
    scores = fairness_of(never)
    assert (scores["converged"], scores["jain"]) == pytest.approx((0.0, 144 / 180))
    assert math.isnan(scores["convergence_s"])
    assert math.isnan(scores["share"])
    assert scores["queueing_delay_rtt"] == pytest.approx(0.5)


def test_it_must_stay_so_for_twenty_round_trips() -> None:
    even = (np.arange(100) // 12) % 2 == 0  # each 1.2 s the other flow has the most
    rates = [np.where(even, 10.0, 2.0), np.where(even, 2.0, 10.0)]
    run = _run((Flow(), Flow(start_s=1.0)), rates)
    assert np.isnan(convergence_times(run)).all()


def test_a_share_beside_a_scheme_and_alone() -> None:
    run = _run((Flow(), Flow("cubic")), [[3.0] * 100, [9.0] * 100])
    scores = fairness_of(run)
    assert (scores["share"], scores["tolerable"]) == pytest.approx((0.25, 1.0))
    starved = fairness_of(_run((Flow(), Flow("cubic")), [[1.0] * 100, [11.0] * 100]))
    assert (starved["share"], starved["tolerable"]) == pytest.approx((1 / 12, 0.0))
    lone = fairness_of(_run((Flow(),), [[9.0] * 100]))
    assert np.isnan([lone["jain"], lone["converged"]]).all()
    assert lone["utilisation"] == pytest.approx(0.75)


def test_no_link_hides_another_of_its_name() -> None:
    scenarios = [Scenario("mine", LINK, (Flow(), Flow()), duration_s=s) for s in (4.0, 5.0)]
    row = measure(contender_from_scheme("oracle"), "suite", scenarios)
    assert list(to_json([row])["suites"]["suite"]["oracle"]["links"]) == ["mine", "mine (2)"]


def test_flows_that_know_the_link_share_it_alike() -> None:
    flows = (Flow(), Flow(start_s=5.0), Flow(start_s=10.0, stop_s=15.0))
    scenario = Scenario("oracles", LINK, flows, duration_s=20.0)
    (run,) = run_shared(contender_from_scheme("oracle"), [scenario])
    assert run.agents == 3
    scores = fairness_of(run)
    assert scores["jain"] > 0.99
    assert scores["converged"] == 1.0
    assert scores["convergence_s"] < 0.5
    assert scores["utilisation"] > 0.97
    # Each bucket has what the link can carry, and no more.
    packets = 12e6 * BUCKET_S / (8 * PACKET_BYTES)
    np.testing.assert_allclose(run.capacity, packets, rtol=1e-5)
    assert run.acked.sum(axis=0).max() <= packets + 2
    assert (run.acked[1, :50] == 0).all()
    assert (run.acked[2, 155:] == 0).all()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "pair.toml"
    suite.write_text(
        'name = "pair"\nduration_s = 8.0\nlink = {rate_mbps = 8.0, delay_ms = 10.0, '
        'queue_packets = 20}\n[[flows]]\nscheme = "agent"\n[[flows]]\nscheme = "cubic"\n'
        "start_s = 2.0\n"
    )
    out, figures = tmp_path / "report", tmp_path / "figures.json"
    arguments = ["--against", "oracle,cubic", "--suite", str(suite), "--seeds", "2"]
    assert main(["fairness", *arguments, "--out", str(out), "--json", str(figures)]) == 0
    assert "Jain" in capsys.readouterr().out
    found = json.loads(figures.read_text())
    assert found == json.loads((out / "fairness.json").read_text())
    cubic = found["suites"][str(suite)]["cubic"]
    assert cubic["overall"]["tolerable"]["mean"] == 1.0
    (link,) = cubic["links"].values()
    assert [flow["scheme"] for flow in link["flows"]] == ["agent", "cubic"]
    assert 6.0 < sum(flow["throughput_mbps"] for flow in link["flows"]) < 9.0
    page = (out / "fairness.html").read_text()
    assert '"kind":"lines"' in page
    assert (out / "fairness-oracle.pdf").read_bytes().startswith(b"%PDF")
    assert (out / "fairness-cubic.png").stat().st_size > 10_000
