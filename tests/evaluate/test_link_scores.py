"""A flow's figures from a link's log, by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from distrlcc.errors import OutputError
from distrlcc.evaluate.link_scores import score_log
from distrlcc.sim.scenario import Change, Link

HEADER = "# queue: droptail [packets=3]\n# base timestamp: 0\n"


def _log(path: Path, lines: list[str]) -> Path:
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return path


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
    scores = score_log(_log(tmp_path / "log", lines), link, 4.0)
    assert scores.utilisation == pytest.approx(0.45, abs=0.002)
    assert scores.first_second_utilisation == pytest.approx(0.45, abs=0.002)
    # Of what left the bottleneck half was lost at random after it.
    assert scores.throughput_mbps == pytest.approx(12.032 * 0.45 * 0.5, rel=0.005)
    assert scores.mean_queueing_delay_ms == pytest.approx(2.0, abs=0.02)  # 1 s of 0, 2 s of 3 ms
    assert scores.p95_queueing_delay_ms == 3.0
    assert scores.base_rtt_ms == pytest.approx(41.0)
    assert scores.mean_rtt_ms == pytest.approx(43.0, abs=0.02)
    assert scores.p95_rtt_ms == pytest.approx(44.0)
    assert scores.excess_loss == pytest.approx(0.1)
    assert scores.loss == pytest.approx(0.55)
    assert scores.queueing_delay_rtt == pytest.approx(2.0 / 41.0, rel=0.01)
    assert scores.power == pytest.approx(0.45 * 41.0 / 43.0, rel=0.01)


def test_a_log_without_packets_is_one_line(tmp_path: Path) -> None:
    link = Link(rate_mbps=12.0)
    with pytest.raises(OutputError, match="no full packet crossed the link"):
        score_log(_log(tmp_path / "log", ["1 # 1504"]), link, 4.0)


def test_an_outage_is_no_error_and_has_no_delay(tmp_path: Path) -> None:
    lines = ["1 + 1504", "2 # 1504", "2 - 1504 1", "1500 # 1504"]
    scores = score_log(_log(tmp_path / "log", lines), Link(rate_mbps=12.0), 4.0)
    assert (scores.throughput_mbps, scores.utilisation, scores.power) == (0.0, 0.0, 0.0)
    assert scores.first_second_utilisation == 1.0
    assert math.isnan(scores.mean_rtt_ms)


def test_time_begins_with_the_first_full_packet(tmp_path: Path) -> None:
    late = ["1 + 544", "2 - 544 1", "900 + 544", "901 - 544 1"]  # a handshake that took 4 s
    for k in range(3000):
        late += [f"{5000 + k} + 1504", f"{5001 + k} # 1504", f"{5001 + k} - 1504 1"]
    scores = score_log(_log(tmp_path / "log", late), Link(rate_mbps=12.032), 3.0)
    assert scores.utilisation == pytest.approx(1.0)
    assert scores.throughput_mbps == pytest.approx(12.032, rel=0.002)


def test_loss_that_changes_counts_as_long_as_it_lasts(tmp_path: Path) -> None:
    lines = []
    for k in range(4000):
        lines += [f"{k} + 1504", f"{k + 1} # 1504", f"{k + 1} - 1504 1"]
    changes = (Change(2.0, loss=0.3),)
    link = Link(rate_mbps=12.032, loss=0.0, changes=changes)
    scores = score_log(_log(tmp_path / "log", lines), link, 4.0)
    assert scores.loss == pytest.approx(0.2)  # of the 3 s after the first, 2 had it
