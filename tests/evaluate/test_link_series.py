"""A flow over time by a link's log, by hand."""

from pathlib import Path

import numpy as np
import pytest

from distrlcc.evaluate.flow_log import read_flow_log
from distrlcc.evaluate.link_series import link_series
from distrlcc.evaluate.real_contender import scheme_or_kernel
from distrlcc.evaluate.sender_log import SenderLog
from distrlcc.sim.scenario import Change, Flow, Link, Scenario

HEADER = "# queue: droptail [packets=30]\n# base timestamp: 0\n"
SAID = SenderLog(np.array([1.0, 2.0]), np.array([10.0, 20.0]), np.array([30.0, 40.0]))


def _written(path: Path, lines: list[str]) -> Path:
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return path


def test_rate_delay_queue_and_capacity_of_a_link_that_slows_down(tmp_path: Path) -> None:
    """A packet each ms for 1 s, then each 2 ms, which wait 5 ms; the log ends before the link."""
    lines = ["100 + 1504"]
    for k in range(1000):
        lines += [f"{101 + k} # 1504", f"{101 + k} - 1504 1"]
    for k in range(250):
        lines += [f"{1102 + 2 * k} # 1504", f"{1102 + 2 * k} - 1504 7"]
    link = Link(rate_mbps=12.032, changes=(Change(1.0, rate_mbps=6.016, loss=0.5),))
    scenario = Scenario("slows", link, (Flow(),), duration_s=2.0)
    log = read_flow_log(_written(tmp_path / "log", lines), scenario)
    series = link_series(log, SAID, scheme_or_kernel("kernel-reno"))
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
    assert series.sender.cwnd_packets == pytest.approx([10.0] * 10 + [20.0] * 10)


def test_beside_others_all_but_the_capacity_is_the_flows_own(tmp_path: Path) -> None:
    whole, own = ["0 + 1504"], ["1000 + 1504"]
    for k in range(3000):
        both, mine = [f"{k + 1} # 1504"], k >= 1000 and k % 4 == 0
        whole += [*both, f"{k + 1} - 1504 {4 if mine else 2}"]
        own += [*both, *([f"{k + 1} - 1504 4"] if mine else [])]
    flows = (Flow(start_s=1.0), Flow("cubic"))
    scenario = Scenario("two", Link(rate_mbps=12.032), flows, duration_s=3.0)
    log = read_flow_log(
        _written(tmp_path / "log", whole), scenario, own=_written(tmp_path / "own", own)
    )
    series = link_series(log, SAID, scheme_or_kernel("cubic"))
    assert len(series.time_s) == 20  # from its start on
    assert series.capacity_mbps == pytest.approx(12.032, rel=0.02)
    assert series.rate_mbps == pytest.approx(3.008, rel=0.05)
    assert series.queueing_delay_ms == pytest.approx(3.0)
