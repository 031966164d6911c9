"""Real packets beside the simulator."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from distrlcc.errors import ConfigError, LinkError
from distrlcc.evaluate.emulated import check_emulated, scheme_or_kernel
from distrlcc.evaluate.scores import METRICS, SchemeScores
from distrlcc.evaluate.sim_to_real import compare, render
from distrlcc.net.tcp_flow import send, sink
from distrlcc.sim.scenario import Flow, Link, Scenario

LINK = """
name = "twelve"
duration_s = 3.0
link = { rate_mbps = 12.032, delay_ms = 10.0, queue_packets = 40 }
"""


def _scores(scheme: str, mbps: float, p95: float) -> SchemeScores:
    values = {metric.key: np.full((1, 2), 1.0) for metric in METRICS}
    values |= {
        "base_rtt_ms": np.ones((1, 2)),
        "throughput_mbps": np.array([[mbps - 1.0, mbps + 1.0]]),
        "p95_rtt_ms": np.full((1, 2), p95),
    }
    return SchemeScores(scheme=scheme, links=("a <link>",), **values)


def test_differences_are_the_emulators_and_great_ones_are_marked() -> None:
    (near, far) = compare(
        [_scores("one", 9.8, 108.0), _scores("two", 5.0, 150.0)],
        [_scores("model", 10.0, 100.0), _scores("model", 10.0, 100.0)],
    )
    assert near.throughput_difference == pytest.approx(-0.02)
    assert near.rtt_difference == pytest.approx(0.08)
    assert not near.throughput_far
    assert not near.rtt_far
    assert far.throughput_far
    assert far.rtt_far
    page = render([near, far])
    assert page.count('class="far"') == 2
    assert "a &lt;link&gt;" in page
    assert "-50.0%" in page


def test_who_can_send() -> None:
    assert scheme_or_kernel("cubic").words == ("--scheme", "cubic")
    reno = scheme_or_kernel("kernel-reno")
    assert reno.words == ("reno",)
    assert reno.model is not None
    assert reno.is_kernel
    for name in ("oracle", "kernel-nothing", "cubik"):
        with pytest.raises(ConfigError, match="unknown scheme of the emulated world"):
            scheme_or_kernel(name)
    shared = Scenario("shared", Link(rate_mbps=1.0), (Flow("agent"), Flow("cubic")))
    with pytest.raises(ConfigError, match="shared has 2 flows"):
        check_emulated([shared])


def test_the_kernels_tcp_uses_the_control_that_was_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    thread = threading.Thread(target=sink, args=("127.0.0.1", port), daemon=True)
    thread.start()
    told = send("127.0.0.1", port, "reno", 0.3)
    thread.join(10.0)
    assert told["control"] == "reno"
    assert told["acked_bytes"] > 1_000_000  # type: ignore[operator]
    assert len(told["rtt_ms"]) > 5  # type: ignore[arg-type]
    thread = threading.Thread(target=sink, args=("127.0.0.1", port), daemon=True)
    thread.start()
    with pytest.raises(LinkError, match=r"cannot use nothing .*; it has .*reno"):
        send("127.0.0.1", port, "nothing", 0.3)
    thread.join(10.0)


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.timeout(120)
@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="needs root and /dev/net/tun"
)
def test_real_packets_do_what_the_simulator_says(tmp_path: Path) -> None:
    (tmp_path / "link.toml").write_text(LINK)
    done = subprocess.run(
        [
            sys.executable, "-m", "distrlcc", "evaluate", "--world", "emulated", "--suite",
            "link.toml", "--against", "fixed,kernel-reno", "--out", "report", "--json", "-",
        ],
        capture_output=True, text=True, timeout=100.0, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    schemes = json.loads(done.stdout)["schemes"]
    assert set(schemes) == {"fixed", "kernel-reno"}
    fixed = schemes["fixed"]["overall"]
    # A window of 10 on a path of 21 ms: half of the link, and no queue, on a busy machine or not.
    assert 4.0 < fixed["throughput_mbps"]["mean"] < 6.5
    assert fixed["excess_loss"]["mean"] == 0.0
    assert schemes["kernel-reno"]["overall"]["utilisation"]["mean"] > 0.7
    assert re.search(r"twelve, fixed: [\d.]+ Mbit/s, simulated 5\.\d\d", done.stderr)
    assert (tmp_path / "report" / "report.html").exists()
    assert "twelve" in (tmp_path / "report" / "sim-to-real.html").read_text()
