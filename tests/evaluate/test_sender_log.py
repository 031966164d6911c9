"""What senders say of themselves, by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from distrlcc.evaluate.sender_log import SenderLog, read_sender_log
from distrlcc.net.tcp_flow import TcpSample, TcpSent


def test_means_are_over_time_and_leave_out_what_is_not_defined() -> None:
    log = SenderLog(
        time_s=np.array([0.5, 1.0, 2.0, 2.5]),
        cwnd_packets=np.array([10.0, 20.0, 40.0, 80.0]),
        smoothed_rtt_ms=np.array([np.nan, 30.0, 60.0, 60.0]),
    )
    series = log.over(np.array([0.0, 1.0, 2.5, 4.0]))
    # 0.5 s of 10 and of 20; 1 s of 40 and 0.5 s of 80; nothing is said of what came later.
    assert series.cwnd_packets[:2] == pytest.approx([15.0, 160.0 / 3])
    assert np.isnan(series.cwnd_packets[2])
    assert series.smoothed_rtt_ms[:2] == pytest.approx([30.0, 60.0])
    assert np.isnan(series.retransmitted_share).all()


def test_what_was_sent_again_is_a_share_of_what_was_sent_meanwhile() -> None:
    log = SenderLog(
        time_s=np.array([0.0, 1.0, 2.0, 3.0]),
        cwnd_packets=np.ones(4),
        smoothed_rtt_ms=np.ones(4),
        sent_packets=np.array([0.0, 100.0, 150.0, 150.0]),
        retransmitted_packets=np.array([0.0, 0.0, 10.0, 10.0]),
    )
    share = log.over(np.array([0.0, 1.0, 2.0, 3.0])).retransmitted_share
    assert share[:2] == pytest.approx([0.0, 0.2])
    assert np.isnan(share[2])  # nothing was sent
    assert log.over(np.array([0.0, 3.0])).retransmitted_share == pytest.approx([10.0 / 150.0])


def test_both_kinds_of_senders_are_read(tmp_path: Path) -> None:
    path = tmp_path / "sent.json"
    samples = (
        TcpSample(0.0, 0.0, 10, 10, 0, 0),
        TcpSample(1.0, 25.5, 30, 1000, 10, 1_400_000),
        TcpSample(2.0, 26.5, 50, 2000, 20, 2_900_000),
    )
    path.write_text(json.dumps(TcpSent("reno", 2.0, samples).to_json()))
    found = read_sender_log(path, kernel=True).over(np.array([1.0, 2.0]))
    assert (found.cwnd_packets[0], found.smoothed_rtt_ms[0]) == (50.0, 26.5)
    assert found.retransmitted_share == pytest.approx([0.01])
    assert np.isnan(read_sender_log(path, kernel=True).smoothed_rtt_ms[0])
    columns = {"time": [0.01, 0.02], "cwnd": [10.0, 12.0], "smoothed_rtt": [0.0, 0.021]}
    path.write_text(json.dumps({"steps_columns": columns}))
    found = read_sender_log(path, kernel=False).over(np.array([0.0, 0.02]))
    assert found.cwnd_packets == pytest.approx([11.0])
    assert found.smoothed_rtt_ms == pytest.approx([21.0])
    assert np.isnan(found.retransmitted_share).all()
