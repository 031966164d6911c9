"""Real packets beside the simulator."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.errors import ConfigError, KernelError, LinkError, OutputError
from distrlcc.evaluation import contender, emulated
from distrlcc.evaluation.both_worlds import compare
from distrlcc.evaluation.contender import Contender, contender_from_scheme, rival
from distrlcc.evaluation.emulated import (
    FIRST_PORT,
    LEAST_PACKETS,
    RETRIES,
    RealFlow,
    RealRun,
    emulation,
    evaluate_emulated,
    link_from,
    real_flows,
    run_link,
)
from distrlcc.evaluation.report import comparison_page
from distrlcc.evaluation.scores import METRICS, SENDER_METRICS, SchemeScores, Series
from distrlcc.net.kernel.tcp_flow import send, sink
from distrlcc.sim.link import read_log
from distrlcc.sim.scenario import Change, Flow, Link, Scenario

LINK = """
name = "twelve"
duration_s = 3.0
link = { rate_mbps = 12.032, delay_ms = 10.0, queue_packets = 40 }
"""


def _scores(scheme: str, mbps: float, p95: float) -> SchemeScores:
    throughput = np.array([[mbps - 1.0, mbps + 1.0]])
    figures = {"throughput_mbps": throughput, "p95_rtt_ms": np.full((1, 2), p95)}
    return SchemeScores(scheme, ("a <link>",), figures)


def test_differences_are_the_emulators_and_great_ones_are_marked() -> None:
    model = _scores("model", 10.0, 100.0)
    near, far = compare([(_scores("a", 9.8, 108.0), model), (_scores("b", 5.0, 150.0), model)])
    assert near.mbps.difference == pytest.approx(-0.02)
    assert near.p95_ms.difference == pytest.approx(0.08)
    fars = [each for row in (near, far) for each in (row.mbps.far, row.p95_ms.far)]
    assert fars == [False, False, True, True]
    page = comparison_page([near, far])
    assert page.count('class="failed"') == 2
    assert "a &lt;link&gt;" in page
    assert "-50.0%" in page


def test_runs_that_failed_are_dashes_and_said() -> None:
    half, none, starved = (_scores(name, 10.0, 100.0) for name in ("half", "none", "starved"))
    for key in ("throughput_mbps", "p95_rtt_ms"):
        half.figures[key][0, 1:] = none.figures[key][0] = np.nan
    models = [_scores("model", mbps, 100.0) for mbps in (10.0, 10.0, 1.0)]
    models[2].figures["throughput_mbps"][:] = 0.0
    rows = {
        row.sender: row for row in compare(list(zip([half, none, starved], models, strict=True)))
    }
    assert (rows["half"].runs, rows["half"].failed) == (2, 1)
    assert rows["half"].mbps.emulated == rows["half"].mbps.simulated == 9.0  # of the first seed
    page = comparison_page(list(rows.values()), ["a note & more"])
    assert "half (1 of 2 runs void)" in page
    assert '<tr class="void"><th scope="row">' in page
    assert "none (2 of 2 runs void)</td>" in page
    assert "nan" not in page
    assert page.count("<td>-</td>") > 1
    assert '<p class="note">a note &amp; more</p>' in page


def _real(name: str) -> Contender:
    return contender_from_scheme(name, real=True)


def test_schemes_that_can_send() -> None:
    assert _real("cubic").words() == ("cubic",)
    reno = _real("kernel-reno")
    assert (reno.scheme, reno.simulated(), reno.is_kernel) == ("reno", Contender("reno"), True)
    for name in ("oracle", "kernel-nothing", "cubik"):
        with pytest.raises(ConfigError, match="unknown scheme of the emulated world"):
            _real(name)


def test_a_program_takes_host_and_port_and_is_for_real_packets() -> None:
    with pytest.raises(ConfigError, match=r"expected cmd:COMMAND with \{host\} and \{port\}"):
        _real("cmd:iperf3 -c {host}")
    for name, program in (
        ("cmd:a.sh", "./a.sh {host} {port}"),
        ("cmd:b c", "X=1 '/d/b c' {host} {port}::1"),
    ):
        assert _real(f"cmd:{program} :: r {{port}}").program == (program, "r {port}")
        assert _real(f"cmd:{program}").name == name
    with pytest.raises(ConfigError, match="expected cmd:COMMAND"):
        _real("cmd:'no end {host} {port}")
    with pytest.raises(ConfigError, match="is for distrlcc evaluate --world emulated"):
        contender_from_scheme("cmd:iperf3 -c {host} -p {port}")


def test_others_are_ours_or_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contender, "kernel_controls", lambda: ["reno", "cubic", "htcp"])
    ours, kernels = _real("vegas"), _real("kernel-htcp")
    cases = [(ours, None, "cubic"), (ours, "kernel", "kernel-cubic"), (ours, "ours", "cubic")]
    cases += [(kernels, None, "kernel-cubic"), (kernels, "ours", "cubic")]
    for beside, others, expected in cases:
        assert rival("cubic", beside, others).name == expected
    assert rival("copa", kernels, None).name == "copa"  # which the kernel does not have
    with pytest.raises(ConfigError, match=r"no copa \(it has reno, cubic, htcp\)"):
        rival("copa", ours, "kernel")


def test_flows_are_commands_with_ports_and_moments(tmp_path: Path) -> None:
    late = (Flow("reno", start_s=6.0), Flow("vegas", start_s=7.95))
    flows = (Flow(start_s=1.5), Flow("fixed", cwnd=7.0, stop_s=4.0), *late)
    scenario = Scenario("s", Link(rate_mbps=12.0), flows, duration_s=8.0, seed=2)
    first, second, third = real_flows(scenario, _real("kernel-reno"))
    assert [flow.port - FIRST_PORT for flow in (first, second, third)] == [0, 1, 2]
    sender = first.sender(tmp_path)
    assert (sender.name, sender.start_s) == ("flow 1 (kernel-reno)", 1.5)
    where, how = ("$MAHIMAHI_BASE", str(FIRST_PORT)), ("reno", "6.5", "1")
    assert sender.words[-6:] == (*where, *how, str(tmp_path / "sent-1.json"))
    words = " ".join(second.sender(tmp_path).words)
    assert "send $MAHIMAHI_BASE:24731 fixed --cwnd 7 --seed 129 --seconds 4 " in words
    assert third.contender.is_kernel
    assert third.seconds == 2.0


@pytest.mark.parametrize(
    ("flows", "says"),
    [
        ((Flow(), Flow("cubic", extra_rtt_ms=5.0)), "s, flow 2: extra_rtt_ms is for the simulated"),
        ((Flow(pacing_mbps=5.0),), "s, flow 1: pacing_mbps is for the simulated"),
        ((Flow(), Flow("cubic", ecn=True)), "s, flow 2: ecn is for the simulated"),
        ((Flow(cwnd=5.0),), "of real packets only fixed takes it, not cubic"),
        ((Flow(start_s=9.95),), "s: its first flow sends for less than 0.1 s"),
        ((Flow(), Flow("oracle")), "s, flow 2: unknown scheme of the emulated world 'oracle'"),
    ],
)
def test_flows_that_cannot_be_real_are_refused(flows: tuple[Flow, ...], says: str) -> None:
    scenario = Scenario("s", Link(rate_mbps=12.0), flows)
    with pytest.raises(ConfigError, match=says):
        real_flows(scenario, _real("cubic"))


def test_a_links_time_begins_with_the_flow_that_starts_first() -> None:
    first = (Change(1.0, rate_mbps=4.0, delay_ms=5.0), Change(2.0, rate_mbps=0.0))
    link = Link(12.0, changes=(*first, Change(3.0, rate_mbps=8.0), Change(4.0, loss=0.5)))
    assert link_from(link, 0.0) == link
    past = Change(1e-6, rate_mbps=0.0, delay_ms=5.0)
    later = (Change(0.5, rate_mbps=8.0), Change(1.5, loss=0.5))
    assert link_from(link, 2.5).changes == (past, *later)
    trace = Link(trace="cellular:1", trace_start_s=3.0)
    assert link_from(trace, 2.5).trace_start_s == 5.5


def _measured(scenario: Scenario, flow: RealFlow, mbps: float, late: float = 0.0) -> RealRun:
    edges, flat = np.arange(3.0), np.full(2, mbps)
    said = {metric.key: np.ones(2) for metric in SENDER_METRICS}
    series = Series(flow.contender.name, scenario.name, edges, flat, flat, flat, flat, sender=said)
    figures = {metric.key: 1.0 for metric in (*METRICS, *SENDER_METRICS)}
    figures |= {"throughput_mbps": mbps, "mean_smoothed_rtt_ms": 25.0}
    return RealRun(figures, series, late)


Outcome = Exception | dict[str, float]
COUNTS: Outcome = {}
VOID: dict[str, tuple[Outcome, str]] = {
    "refused": (LinkError("no room"), "it failed: no room"),
    "nothing crossed": (OutputError("nothing"), "it failed: nothing"),
    "the kernel refused": (KernelError("no program"), "it failed: no program"),
    "no log": (FileNotFoundError("sent-1.json"), "it failed: sent-1.json"),
    "a torn log": (json.JSONDecodeError("torn", "", 0), "it failed: torn"),
    "a log without a column": (KeyError("cwnd"), "it failed: 'cwnd'"),
    "late": ({"late": 0.52}, "52.0% of a flow's steps were more than 1 ms late"),
    "no ACK": ({"throughput_mbps": 0.0}, "0 packets arrived after the first second; expected"),
    "few packets": (
        {"throughput_mbps": 0.011},
        f"8 packets arrived after the first second; expected {LEAST_PACKETS}",
    ),
    "NaN": ({"power": np.nan}, "a score is not a number"),
}
"""What a run of 9 s may end with for which it does not count, and what is said of it."""


def _run(scenario: Scenario, flow: RealFlow, outcome: Outcome) -> RealRun:
    if isinstance(outcome, Exception):
        raise outcome
    figures = {"late": 0.01, "throughput_mbps": 10.0, **outcome}
    done = _measured(scenario, flow, figures["throughput_mbps"], figures.pop("late"))
    return replace(done, figures=done.figures | figures)


@pytest.mark.parametrize("kind", VOID)
def test_a_run_that_does_not_count_is_run_again_and_then_struck(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    void, why = VOID[kind]
    outcomes = [void, COUNTS, *[void] * 3, COUNTS, void]  # links a, b, c, and d without retries
    runs: list[str] = []

    def run_link(scenario: Scenario, flows: list[RealFlow]) -> RealRun:
        runs.append(scenario.name)
        return _run(scenario, flows[0], outcomes.pop(0))

    monkeypatch.setattr(emulated, "run_link", run_link)
    scenarios = [Scenario(name, Link(rate_mbps=12.0), duration_s=10.0) for name in "abcd"]
    said: dict[str, float] = {}
    scores, series = evaluate_emulated(
        _real("cubic"), scenarios[:3], series_links=(0, 1), show=said.__setitem__
    )
    assert "".join(runs) == f"aa{'b' * (1 + RETRIES)}c"
    assert scores.ran.ravel().tolist() == [True, False, True]
    (run,) = scores.void()
    assert (run.scenario, run.run) == ("b", 0)
    assert why in run.reason
    assert bool(run.figures) == (not isinstance(void, Exception))  # kept, to be struck through
    assert any(line.startswith("cubic on a, once more (") for line in said)
    assert set(said.values()) == {10.0}
    assert [one.link for one in series] == ["a"]  # b does not count, c was not asked for
    scores, _ = evaluate_emulated(_real("cubic"), scenarios[3:], retries=0)
    assert [run.scenario for run in scores.void()] == ["d"]


def test_the_command_ends_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_link(scenario: Scenario, flows: list[RealFlow]) -> RealRun:
        if (scenario.name, flows[0].contender.name) in (("fast", "reno"), ("slow", "vegas")):
            raise LinkError("no room")
        return _measured(scenario, flows[0], 90.0 if scenario.name == "fast" else 10.0)

    monkeypatch.setattr(emulated, "run_link", run_link)
    monkeypatch.chdir(tmp_path)
    links = [
        f'[[scenarios]]\nname = "{name}"\nduration_s = 2.0\nlink = {{ rate_mbps = {rate} }}\n'
        for name, rate in (("slow", 12.0), ("fast", 100.0))
    ]
    Path("links.toml").write_text("\n".join(links))
    words = ["evaluate", "--world", "emulated", "--suite", "links.toml"]
    wanted = ["--series", "fast", "--out", "report", "--json", "figures.json"]
    assert main([*words, "--against", "cubic,reno", *wanted]) == 1
    out, err = capsys.readouterr()
    said = (
        "Means over links, and so the ranking, leave out 1 of 2 links, on which not every scheme "
        "has a run that counts: fast (reno)."
    )
    assert said in re.sub(r"\s+", " ", out)
    assert "fast, reno (1 of 1 run void)" in out
    assert err.count("distrlcc: reno on fast does not count: it failed: no room\n") == 1
    assert re.findall(r", about (\d+) s left", err) == ["8", "6", "4", "2", "2", "2"]
    for page, row in (
        ("report", "reno: 1 of 2 runs does not"),
        ("sim-to-real", "reno (1 of 1 run"),
    ):
        text = Path("report", f"{page}.html").read_text()
        assert said in text
        assert row in text
    assert Path("report/series-fast.png").exists()
    figures = json.loads(Path("figures.json").read_text())
    assert figures["left_out_scenarios"] == [{"scenario": "fast", "schemes": ["reno"]}]
    assert figures["common_scenarios"] == 1
    (void,) = figures["void_runs"]
    assert (void["scheme"], void["scenario"], void["run"]) == ("reno", "fast", 0)
    assert void["figures"] == {}
    for scheme in figures["schemes"].values():  # the 90 Mbit/s that cubic alone has do not count
        assert scheme["overall"]["throughput_mbps"]["mean"] == 10.0
    for more, refusal in (
        (["--against", "vegas", "--links", "1"], "no run succeeded: vegas on slow does not count"),
        (
            ["--against", "cubic", "--series", "nowhere", "--out", "r"],
            "--series nowhere: no such link",
        ),
        (["--against", "cubic", "--flows", "4"], "--flows: no sender is in the kernel's TCP"),
        (["--against", "cubic", "--suite", "jitter/7"], "acknowledges as it likes: take a link"),
        (["--flows", "4,99"], "argument --flows: '99' is not a whole number from 1 to 32"),
    ):
        given = {"--world": "emulated", "--suite": "links.toml"}
        given |= dict(zip(more[::2], more[1::2], strict=True))
        assert main(["evaluate", *chain.from_iterable(given.items())]) == 2
        assert refusal in capsys.readouterr().err


def _start_sink() -> int:
    """Let a sink listen in a thread; return its port, another one each time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    threading.Thread(target=sink, args=("127.0.0.1", port, 60.0), daemon=True).start()
    return port


def test_the_kernels_tcp_uses_the_control_that_was_named() -> None:
    (sent,) = send("127.0.0.1", _start_sink(), "reno", 0.3)
    assert sent["control"] == "reno"
    columns = sent["samples_columns"]
    for name in ("time_s", "acked_bytes", "sent_packets"):
        assert columns[name] == sorted(columns[name])
    last = {name: column[-1] for name, column in columns.items()}
    assert last["time_s"] == pytest.approx(sent["seconds"])
    assert last["acked_bytes"] == sent["acked_bytes"] > 0
    assert last["smoothed_rtt_ms"] > 0.0
    assert last["cwnd_packets"] >= 10  # the least that it begins with
    assert last["retransmitted_packets"] <= last["sent_packets"]
    with pytest.raises(LinkError, match=r"cannot use nothing .*; it has .*reno"):
        send("127.0.0.1", _start_sink(), "nothing", 0.3)


def _real_packets(test: Callable[..., None]) -> Any:
    """Mark a test that emulates links, for which it needs root."""
    needed = os.geteuid() == 0 and Path("/dev/net/tun").exists()
    skip = pytest.mark.skipif(not needed, reason="needs root and /dev/net/tun")
    return pytest.mark.net(pytest.mark.timeout(300)(skip(test)))


def _evaluate(folder: Path, suite: str, against: str) -> subprocess.CompletedProcess[str]:
    words = ["--suite", suite, "--against", against, "--out", "report", "--json", "-"]
    command = [sys.executable, "-m", "distrlcc", "evaluate", "--world", "emulated", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


@_real_packets
def test_a_receiver_that_fails_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not the port of tests that run beside: this server holds it on all addresses.
    monkeypatch.setattr(emulated, "FIRST_PORT", FIRST_PORT + 200)
    scenario = Scenario("s", Link(rate_mbps=12.0, queue_packets=40), duration_s=20.0)
    flows = real_flows(scenario, _real("kernel-reno"))
    with (
        socket.create_server(("0.0.0.0", FIRST_PORT + 200)),  # never reads
        pytest.raises(LinkError, match=f"cannot listen on .*:{FIRST_PORT + 200}"),
    ):
        run_link(scenario, flows)


@_real_packets
def test_real_packets_do_what_the_simulator_says(tmp_path: Path) -> None:
    (tmp_path / "link.toml").write_text(LINK)
    done = _evaluate(tmp_path, "link.toml", "fixed,kernel-reno")
    # On a busy machine our sender is late, and its run does not count; what it measured is kept.
    found = json.loads(done.stdout)
    late = {run["scheme"]: run["figures"] for run in found["void_runs"]}
    assert done.returncode == len(late), done.stderr
    assert all("1 ms late" in run["reason"] for run in found["void_runs"])
    fixed, reno = (
        late.get(name) or {k: v["mean"] for k, v in found["schemes"][name]["overall"].items()}
        for name in ("fixed", "kernel-reno")
    )
    # A window of 10 on a path of 21 ms: half of the link, and no queue, on a busy machine or not.
    assert 2.0 < fixed["throughput_mbps"] < 6.5
    assert fixed["excess_loss"] == 0.0
    assert reno["utilisation"] > 0.3
    said = r" \(1 of 1 run void\)" if late else r": [\d.]+ Mbit/s, simulated 5\.\d\d"
    assert re.search(f"twelve, fixed{said}", done.stderr)
    # What senders report agrees with what the link has seen of them.
    assert fixed["mean_cwnd_packets"] == 10.0
    assert fixed.get("retransmitted_share") is None
    assert reno["mean_smoothed_rtt_ms"] > 21.0
    assert reno["mean_cwnd_packets"] > 5.0
    assert reno["retransmitted_share"] == pytest.approx(reno["loss"], abs=0.02)
    assert "kernel-NAME is the TCP of this machine's kernel" in done.stderr
    assert (tmp_path / "report" / "series-twelve.png").exists()
    for page in ("report.html", "sim-to-real.html"):
        assert "twelve" in (tmp_path / "report" / page).read_text()


SENDS = """
import socket, sys, time
kind, host, port, seconds = sys.argv[1:]
for _ in range(200):  # on a busy machine the receiver is not there at once
    link = socket.socket(type=getattr(socket, kind))
    try:
        link.connect((host, int(port)))
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
end = time.monotonic() + float(seconds)
while time.monotonic() < end:
    link.send(bytes(1400))
    if kind == "SOCK_DGRAM":
        time.sleep(0.002)
"""
HEARS = """
import socket, sys
link = socket.socket(type=socket.SOCK_DGRAM)
link.bind(("", int(sys.argv[1])))
while True:
    link.recv(2000)
"""


@pytest.mark.long
@_real_packets
def test_programs_of_others_are_scored_by_the_links_log(tmp_path: Path) -> None:
    (tmp_path / "link.toml").write_text(LINK)
    (tmp_path / "sends.py").write_text(SENDS)
    (tmp_path / "hears.py").write_text(HEARS)
    send = f"cmd:{sys.executable} sends.py KIND {{host}} {{port}} {{seconds}}"
    tcp = send.replace("KIND", "SOCK_STREAM")  # to our own sink
    udp = send.replace("KIND", "SOCK_DGRAM") + f" :: {sys.executable} hears.py {{port}}"
    done = _evaluate(tmp_path, "link.toml", f"{tcp},{udp},cmd:false {{host}} {{port}}")
    assert done.returncode == 1, done.stderr  # one failed
    schemes = json.loads(done.stdout)["schemes"]
    name = f"cmd:{Path(sys.executable).name}"
    assert set(schemes) == {name, name + "'", "cmd:false"}
    first, second = (schemes[each]["overall"] for each in (name, name + "'"))
    assert first["utilisation"]["mean"] > 0.5
    # A packet of 1,400 bytes and headers each 2 ms or somewhat later, and no queue.
    assert 2.0 < second["throughput_mbps"]["mean"] < 5.9
    assert second["mean_queueing_delay_ms"]["mean"] < 5.0
    assert second["mean_cwnd_packets"]["mean"] is None
    assert re.search(r"'false [\d.]+ 24730' ended with exit code 1: no output", done.stderr)


@pytest.mark.long
@_real_packets
def test_flows_share_a_link_from_their_start_times_on(tmp_path: Path) -> None:
    link = Link(rate_mbps=12.032, delay_ms=10.0, queue_packets=40)
    flows = (Flow(start_s=1.0), Flow("fixed", stop_s=1.8, cwnd=40.0), Flow("reno", start_s=0.5))
    scenario = Scenario("three", link, flows, duration_s=2.2)
    real = real_flows(scenario, _real("kernel-reno"))
    logs = {flow.port: tmp_path / str(flow.port) for flow in real}
    words = emulation(scenario, real, tmp_path, log=tmp_path / "up", port_logs=logs)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    arrived = {
        name: [t for t, kind, size, _ in read_log(path).events if kind == "+" and size > 1000]
        for name, path in {0: tmp_path / "up", **logs}.items()
    }
    zero = arrived[0][0]
    assert len(arrived[0]) == sum(len(arrived[port]) for port in logs)
    # A busy machine is late by tens of ms; half a second too early or late would be a fault.
    for place, begin, end in ((0, 1000, 2200), (1, 0, 1800), (2, 500, 2200)):
        times = arrived[FIRST_PORT + place]
        assert times[0] - zero == pytest.approx(begin, abs=400)
        assert times[-1] - zero < end + 390


@pytest.mark.long
@_real_packets
def test_a_link_with_codel_is_scored() -> None:
    link = Link(rate_mbps=12.032, delay_ms=10.0, aqm="codel:packets=50")
    scenario = Scenario("codel", link, (Flow(cwnd=60.0),), duration_s=2.4)
    figures = run_link(scenario, real_flows(scenario, _real("fixed"))).figures
    assert figures["utilisation"] > 0.5
    assert figures["loss"] > 0.0  # 60 packets on a path of 21 stay too long in its queue


@pytest.mark.long
@_real_packets
def test_a_shared_link_is_scored() -> None:
    flows = (Flow(cwnd=10.0), Flow("fixed", cwnd=20.0, start_s=0.2))
    link = Link(rate_mbps=12.032, delay_ms=10.0, queue_packets=40)
    scenario = Scenario("shared", link, flows, duration_s=2.4)
    figures = run_link(scenario, real_flows(scenario, _real("fixed"))).figures
    # Windows of 10 and 20 packets on a path of 21 fill the link, and a third is the first's.
    assert figures["utilisation"] > 0.5
    assert 1.5 < figures["throughput_mbps"] < 6.5
    assert figures["excess_loss"] == 0.0
