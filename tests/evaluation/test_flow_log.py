"""A flow's figures and series from a link's log and from its sender's, by hand."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from distrlcc.errors import OutputError
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.flow_log import (
    SenderLog,
    link_series,
    read_flow_log,
    read_sender_log,
    score_log,
)
from distrlcc.evaluation.report import log_page
from distrlcc.sim.link import read_log
from distrlcc.sim.scenario import Change, Flow, Link, Scenario

HEADER = "# queue: droptail [packets=30]\n# base timestamp: 0\n"
SAID = SenderLog(*np.array([[1.0, 2.0], [10.0, 20.0], [30.0, 40.0], *[[0.0, 0.0]] * 3]))


def _log(path: Path, lines: list[str], header: str = HEADER) -> Path:
    path.write_text(header + "\n".join(lines) + "\n")
    return path


def _full(begin: int, count: int) -> list[str]:
    """Return the lines of a full link without a queue: a packet each ms."""
    times = range(begin, begin + count)
    return [line for t in times for line in (f"{t} + 1504", f"{t + 1} # 1504", f"{t + 1} - 1504 1")]


def _served(times: range, wait: int) -> list[str]:
    """Return the lines of packets that leave at times, each after a wait in ms."""
    return [line for t in times for line in (f"{t} # 1504", f"{t} - 1504 {wait}")]


def _score(path: Path, scenario: Scenario, own: Path | None = None) -> dict[str, float]:
    return score_log(read_flow_log(path, scenario, own=own))


def _alone(link: Link, seconds: float, start_s: float = 0.0) -> Scenario:
    return Scenario("alone", link, (Flow(start_s=start_s),), duration_s=seconds)


def test_by_hand(tmp_path: Path) -> None:
    """A packet each 2 ms on a link of one per ms, the later half waiting 4 ms, one in ten lost."""
    lines = []
    for k in range(2000):  # 4 s, beginning at 100 ms
        time = 100 + 2 * k
        wait = 1 if time < 2100 else 4
        lines += [f"{time} + 1504", f"{time} # 1504", f"{time + 1} # 1504"]
        if k % 10 == 9:
            lines.append(f"{time} d 1 1504")
        else:
            lines.append(f"{time + wait} - 1504 {wait}")
    link = Link(rate_mbps=12.032, delay_ms=20.0, loss=0.5)
    scores = _score(_log(tmp_path / "log", lines), _alone(link, 4.0))
    assert scores["utilisation"] == pytest.approx(0.45, abs=0.002)
    assert scores["first_second_utilisation"] == pytest.approx(0.45, abs=0.002)
    # Of what left the bottleneck half was lost at random after it.
    assert scores["throughput_mbps"] == pytest.approx(12.032 * 0.45 * 0.5, rel=0.005)
    assert scores["mean_queueing_delay_ms"] == pytest.approx(2.0, abs=0.02)  # 1 s of 0, 2 s of 3 ms
    assert scores["p95_queueing_delay_ms"] == 3.0
    assert scores["mean_rtt_ms"] == pytest.approx(43.0, abs=0.02)
    assert scores["p95_rtt_ms"] == pytest.approx(44.0)
    assert scores["excess_loss"] == pytest.approx(0.1)
    assert scores["loss"] == pytest.approx(0.55)
    assert scores["queueing_delay_rtt"] == pytest.approx(2.0 / 41.0, rel=0.01)
    assert scores["power"] == pytest.approx(0.45 * 41.0 / 43.0, rel=0.01)


def test_no_more_is_dropped_than_came(tmp_path: Path) -> None:
    """A queue of the first second is dropped after it, as CoDel may, when one packet comes."""
    lines = [*["1 + 1504"] * 50, *_full(1500, 1), "2000 d 49 73696"]
    scores = _score(_log(tmp_path / "log", lines), _alone(Link(12.0, loss=0.5), 4.0))
    assert scores["excess_loss"] == scores["loss"] == 1.0


def test_the_page_of_a_log_has_the_rate_of_the_whole(tmp_path: Path) -> None:
    """The last of the buckets of 100 ms is cut short, and full."""
    lines = [*_full(0, 10), *_full(200, 11)]
    page = log_page(read_log(_log(tmp_path / "log", lines)), "log", command="plot")
    (rate,) = re.findall(r"([\d.]+) Mbit/s crossed the link", page)
    assert float(rate) == pytest.approx(20 * 1504 * 8e-6 / 0.211, abs=0.01)


def test_an_outage_has_no_delay_and_a_log_without_packets_is_one_line(tmp_path: Path) -> None:
    lines, alone = ["1 + 1504", "2 # 1504", "2 - 1504 1", "1500 # 1504"], _alone(Link(12.0), 4.0)
    with pytest.raises(OutputError, match="no full packet crossed the link"):
        _score(_log(tmp_path / "log", ["1 # 1504"]), alone)
    scores = _score(_log(tmp_path / "log", lines), alone)
    assert (scores["throughput_mbps"], scores["utilisation"], scores["power"]) == (0.0, 0.0, 0.0)
    assert scores["first_second_utilisation"] == 1.0
    assert math.isnan(scores["mean_rtt_ms"])


@pytest.mark.parametrize(("start_s", "begin"), [(0.0, 5000), (2.0, 700)])
def test_time_begins_with_the_first_full_packet(tmp_path: Path, start_s: float, begin: int) -> None:
    """A flow that starts late, on a link of its own, is scored from then on."""
    late = ["1 + 544", "2 - 544 1", "600 + 544", "601 - 544 1"]  # a handshake
    log = _log(tmp_path / "log", late + _full(begin, 3000))
    scores = _score(log, _alone(Link(rate_mbps=12.032), start_s + 3.0, start_s))
    assert scores["utilisation"] == pytest.approx(1.0)
    assert scores["first_second_utilisation"] == pytest.approx(1.0)
    assert scores["throughput_mbps"] == pytest.approx(12.032, rel=0.002)


def test_what_is_lost_is_counted_by_packets(tmp_path: Path) -> None:
    """A link of 12.032 Mbit/s falls to a hundredth and half of the packets get lost."""
    lines = ["0 + 1504", *_served(range(1, 2001), 1), *_served(range(2100, 4100, 100), 1)]
    link = Link(rate_mbps=12.032, changes=(Change(2.0, rate_mbps=0.12032, loss=0.5),))
    scores = _score(_log(tmp_path / "log", lines), _alone(link, 4.0))
    packets = [1000, 20]  # after the first second
    assert scores["loss"] == pytest.approx(0.5 * packets[1] / sum(packets), rel=0.01)
    carried = (packets[0] + 0.5 * packets[1]) * 1504 * 8e-6 / 3.0
    assert scores["throughput_mbps"] == pytest.approx(carried, rel=0.01)


def test_a_log_that_ends_early_does_not_make_the_link_smaller(tmp_path: Path) -> None:
    alone = _alone(Link(rate_mbps=12.032), 8.0)
    scores = _score(_log(tmp_path / "log", _full(0, 2000)), alone)
    assert scores["utilisation"] == pytest.approx(1.0 / 7.0, rel=0.01)  # of 1 to 8 s
    assert scores["power"] == pytest.approx(1.0 / 7.0, rel=0.01)
    assert scores["first_second_utilisation"] == pytest.approx(1.0, rel=0.01)


def test_beside_others_utilisation_is_the_links_and_all_else_the_flows(tmp_path: Path) -> None:
    """Another flow's packets every 2 ms from 0 on; ours between them from 2 s on, waiting 3 ms."""
    whole, own = [], []
    for k in range(8000):
        mine = [f"{50 + k} + 1504"] if k % 2 and k >= 2000 else []
        others = [] if k % 2 else [f"{50 + k} + 1504"]
        both = [f"{51 + k} # 1504"]
        if mine and k % 20 == 19:
            mine.append(f"{50 + k} d 1 1504")
        elif mine:
            mine.append(f"{53 + k} - 1504 3")
        if others:
            others.append(f"{51 + k} - 1504 1")
        whole += [*mine, *others, *both]
        own += [*mine, *both]
    link = Link(rate_mbps=12.032, delay_ms=10.0, loss=0.1)
    flows = (Flow(start_s=2.0), Flow("cubic"))
    scenario = Scenario("two", link, flows, duration_s=8.0)
    one_port = HEADER + "# port: 4730\n"
    scores = _score(
        _log(tmp_path / "log", whole), scenario, own=_log(tmp_path / "own", own, one_port)
    )
    share = 0.5 * 0.9  # of our packets one in ten is dropped
    assert scores["utilisation"] == pytest.approx(0.95, abs=0.002)
    assert scores["first_second_utilisation"] == pytest.approx(0.95, abs=0.003)  # from 2 s on
    assert scores["throughput_mbps"] == pytest.approx(12.032 * share * 0.9, rel=0.002)
    assert scores["excess_loss"] == pytest.approx(0.1, abs=0.001)
    assert scores["loss"] == pytest.approx(0.19, abs=0.001)
    assert scores["mean_queueing_delay_ms"] == pytest.approx(2.0)
    assert scores["p95_rtt_ms"] == pytest.approx(23.0)
    assert scores["power"] == pytest.approx(share * 0.9 * 21.0 / 23.0, rel=0.002)
    late = Scenario("late", link, (Flow(start_s=2.0), Flow("cubic", start_s=1.0)), duration_s=9.0)
    # The link's time began with the other flow, 1 s after the scenario's.
    shifted = _score(tmp_path / "log", late, own=tmp_path / "own")
    assert shifted["first_second_utilisation"] == pytest.approx(0.5, abs=0.003)
    with pytest.raises(OutputError, match="no full packet to port 4730 crossed the link"):
        _score(tmp_path / "log", scenario, own=_log(tmp_path / "none", whole[2:3], one_port))


def test_a_path_that_changes_is_no_queue(tmp_path: Path) -> None:
    lines = []
    for k in range(2000):  # a packet each 2 ms; from 2 s on the link serves one in so long
        time = 2 * k
        wait = 1 if time < 2000 else 2
        lines += [f"{time} + 1504", f"{time + wait} # 1504", f"{time + wait} - 1504 {wait}"]
    outage = (Change(3.9, rate_mbps=0.0), Change(3.95, rate_mbps=6.016))
    changes = (Change(2.0, rate_mbps=6.016, delay_ms=40.0), *outage)
    link = Link(rate_mbps=12.032, delay_ms=10.0, changes=changes)
    scores = _score(_log(tmp_path / "log", lines), _alone(link, 4.0))
    assert scores["mean_queueing_delay_ms"] == pytest.approx(0.0, abs=0.01)
    # After the first second a third has 21 ms and two thirds 82.
    assert scores["mean_rtt_ms"] == pytest.approx((21.0 + 2 * 82.0) / 3, rel=0.002)
    assert scores["p95_rtt_ms"] == pytest.approx(82.0)


def test_rate_delay_queue_and_capacity_of_a_link_that_slows_down(tmp_path: Path) -> None:
    """A packet each ms for 1 s, then each 2 ms, which wait 5 ms; the log ends before the link."""
    lines = ["100 + 1504", *_served(range(101, 1101), 1), *_served(range(1102, 1602, 2), 7)]
    link = Link(rate_mbps=12.032, changes=(Change(1.0, rate_mbps=6.016, loss=0.5),))
    scenario = Scenario("slows", link, (Flow(),), duration_s=2.0)
    log = read_flow_log(_log(tmp_path / "log", lines), scenario)
    series = link_series(log, SAID, Contender("kernel-reno"))
    assert (series.scheme, series.link, series.learned) == ("kernel-reno", "slows", False)
    assert len(series.time_s) == 20
    assert series.time_s[[0, -1]] == pytest.approx([0.05, 1.95])
    assert series.capacity_mbps[1:9] == pytest.approx(12.032)
    assert series.capacity_mbps[11:] == pytest.approx(6.016, rel=0.03)  # the log ends at 1.5 s
    assert series.rate_mbps[1:9] == pytest.approx(12.032)
    assert series.rate_mbps[11:14] == pytest.approx(3.008)  # half was lost at random
    assert series.rate_mbps[16:] == pytest.approx(0.0)
    assert series.queueing_delay_ms[1:9] == pytest.approx(0.0)
    assert series.queueing_delay_ms[11:14] == pytest.approx(5.0)
    assert np.isnan(series.queueing_delay_ms[16:]).all()
    assert series.queue_packets[11:14] == pytest.approx(3.5)  # 0.5 packets/ms that wait 7 ms
    assert series.sender is not None
    assert series.sender["mean_cwnd_packets"] == pytest.approx([10.0] * 10 + [20.0] * 10)


def test_beside_others_all_but_the_capacity_is_the_flows_own(tmp_path: Path) -> None:
    whole, own = ["0 + 1504"], ["1000 + 1504"]
    for k in range(3000):
        both, mine = [f"{k + 1} # 1504"], k >= 1000 and k % 4 == 0
        whole += [*both, f"{k + 1} - 1504 {4 if mine else 2}"]
        own += [*both, *([f"{k + 1} - 1504 4"] if mine else [])]
    flows = (Flow(start_s=1.0), Flow("cubic"))
    scenario = Scenario("two", Link(rate_mbps=12.032), flows, duration_s=3.0)
    log = read_flow_log(_log(tmp_path / "log", whole), scenario, own=_log(tmp_path / "own", own))
    series = link_series(log, SAID, Contender("cubic"))
    assert len(series.time_s) == 20  # from its start on
    assert series.capacity_mbps == pytest.approx(12.032, rel=0.02)
    assert series.rate_mbps == pytest.approx(3.008, rel=0.05)
    assert series.queueing_delay_ms == pytest.approx(3.0)


def test_means_are_over_time_and_shares_of_what_was_sent_meanwhile() -> None:
    log = SenderLog(
        time_s=np.array([0.0, 0.5, 1.0, 2.0, 2.5]),
        cwnd_packets=np.array([0.0, 10.0, 20.0, 40.0, 80.0]),
        smoothed_rtt_ms=np.array([np.nan, np.nan, 30.0, 60.0, 60.0]),
        sent_packets=np.array([0.0, 50.0, 100.0, 140.0, 150.0]),
        retransmitted_packets=np.array([0.0, 0.0, 0.0, 5.0, 10.0]),
        guarded=np.zeros(5),
    )
    series = log.over(np.array([0.0, 1.0, 2.5, 4.0]))
    # 0.5 s of 10 and of 20; 1 s of 40 and 0.5 s of 80; nothing is said of what came later.
    assert series["mean_cwnd_packets"] == pytest.approx([15.0, 160.0 / 3, np.nan], nan_ok=True)
    assert series["mean_smoothed_rtt_ms"][:2] == pytest.approx([30.0, 60.0])
    assert series["retransmitted_share"] == pytest.approx([0.0, 0.2, np.nan], nan_ok=True)
    assert log.over(np.array([0.0, 2.5]))["retransmitted_share"] == pytest.approx([10.0 / 150.0])


def test_both_kinds_of_senders_are_read(tmp_path: Path) -> None:
    path = tmp_path / "sent.json"
    columns = {
        "time_s": [0.0, 1.0, 2.0],
        "smoothed_rtt_ms": [0.0, 25.5, 26.5],
        "cwnd_packets": [10, 30, 50],
        "sent_packets": [10, 1000, 2000],
        "retransmitted_packets": [0, 10, 20],
    }
    path.write_text(json.dumps([{"samples_columns": columns}]))
    found = read_sender_log(path, kernel=True).over(np.array([1.0, 2.0]))
    assert (found["mean_cwnd_packets"][0], found["mean_smoothed_rtt_ms"][0]) == (50.0, 26.5)
    assert found["retransmitted_share"] == pytest.approx([0.01])
    assert np.isnan(read_sender_log(path, kernel=True).smoothed_rtt_ms[0])
    columns = {"time": [0.01, 0.02], "cwnd": [10.0, 12.0], "smoothed_rtt": [0.0, 0.021]}
    columns["guarded"] = [1.0, 0.0]
    path.write_text(json.dumps({"steps_columns": columns}))
    log = read_sender_log(path, kernel=False)
    assert log.over(np.array([0.0, 0.02]))["guarded"] == pytest.approx([0.5])
    found = log.over(np.array([0.0, 0.02]))
    assert found["mean_cwnd_packets"] == pytest.approx([11.0])
    assert found["mean_smoothed_rtt_ms"] == pytest.approx([21.0])
    assert np.isnan(found["retransmitted_share"]).all()
