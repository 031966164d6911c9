"""One run of real packets: an emulated link, its flows' processes, and what its log says."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from distrlcc.config import to_toml
from distrlcc.errors import LinkError
from distrlcc.evaluate.flow_log import read_flow_log
from distrlcc.evaluate.link_scores import LinkScores, score_log
from distrlcc.evaluate.link_series import link_series
from distrlcc.evaluate.real_flow import FIRST_PORT, RealFlow
from distrlcc.evaluate.scores import SenderSeries, Series
from distrlcc.evaluate.sender_log import read_sender_log
from distrlcc.net.command import ENDED
from distrlcc.net.command_group import write_parts
from distrlcc.net.kernel_calls import die_with_parent
from distrlcc.sim.scenario import Change, Flow, Link, Scenario

_SPARE_SECONDS = 90.0
_AT_ONCE_S = 1e-6
_GRAIN_S = 1e-3
"""The emulator knows whole milliseconds."""
_EMULATE = (sys.executable, "-m", "distrlcc", "emulate")
_TOGETHER = (sys.executable, "-m", "distrlcc.net.command_group")
_ERROR = "error: "


@dataclass(frozen=True)
class RealRun:
    """What a run of real packets gave; all but the lateness is of the first flow."""

    scores: LinkScores
    """By the link's log, from the first second's end on."""
    sender: SenderSeries
    """What it says of itself, in one bucket of the same time."""
    series: Series
    late_share: float
    """Of the steps that were more than 1 ms late, of the flow that had most; 0 for the kernel's."""


def run_link(scenario: Scenario, flows: Sequence[RealFlow]) -> RealRun:
    """Emulate a link, send over it, and score the first flow by its log.

    Args:
        scenario: The link.
        flows: Its flows.

    Raises:
        LinkError: A sender or the emulator failed.
        OutputError: Nothing crossed the link.
        TraceError: The log cannot be read.
    """
    with TemporaryDirectory(prefix="distrlcc-") as folder:
        place = Path(folder)
        whole, own = place / "up.log", place / "own.log"
        shared = len(scenario.flows) > 1
        port_log = ("--log-port", str(FIRST_PORT), str(own)) if shared else ()
        words = [
            *_EMULATE, "--scenario", str(_link_file(scenario, flows, place)), "--begin", "data",
            "--log", str(whole), *port_log, *_commands(flows, place),
        ]  # fmt: skip
        _run(words, scenario.duration_s + _SPARE_SECONDS)
        late = [
            float(json.loads(flow.figures(place).read_text())["late_share"] or 0.0)
            for flow in flows
            if not flow.contender.is_kernel
        ]
        log = read_flow_log(whole, scenario, own=own if shared else None)
        first = flows[0]
        sender = read_sender_log(first.figures(place), kernel=first.contender.is_kernel)
        scored_s = np.array([log.warm_ms - log.begin_ms, log.end_ms - log.begin_ms]) / 1e3
        return RealRun(
            scores=score_log(log),
            sender=sender.over(scored_s),
            series=link_series(log, sender, first.contender),
            late_share=max(late, default=0.0),
        )


def _link_file(scenario: Scenario, flows: Sequence[RealFlow], place: Path) -> Path:
    """Write the link as it is when the first flow starts, which is when its time begins."""
    link = _from(scenario.link, min(flow.start_s for flow in flows))
    if link.trace is not None and Path(link.trace).is_file():
        link = replace(link, trace=str(Path(link.trace).resolve()))
    path = place / "link.toml"
    plain = Scenario(scenario.name, link, (Flow("agent"),), scenario.duration_s, scenario.seed)
    path.write_text(to_toml(plain), encoding="utf-8")
    return path


def _from(link: Link, seconds: float) -> Link:
    """Return a link as it goes on from a time."""
    if link.trace is not None:
        link = replace(link, trace_start_s=link.trace_start_s + seconds)
    past = Change(_AT_ONCE_S)
    changes = []
    for change in link.changes:
        if change.at_s > seconds + _GRAIN_S:
            changes.append(replace(change, at_s=change.at_s - seconds))
        else:
            past = Change(
                _AT_ONCE_S,
                past.rate_mbps if change.rate_mbps is None else change.rate_mbps,
                past.delay_ms if change.delay_ms is None else change.delay_ms,
                past.loss if change.loss is None else change.loss,
            )
    if past != Change(_AT_ONCE_S):
        changes.insert(0, past)
    return replace(link, changes=tuple(changes))


def _commands(flows: Sequence[RealFlow], place: Path) -> list[str]:
    """Return the emulator's words for what runs outside and behind the link."""
    senders, receivers = place / "senders.json", place / "receivers.json"
    first = min(flow.start_s for flow in flows)
    parts = [flow.sender(place) for flow in flows]
    write_parts(senders, [replace(part, start_s=(part.start_s or 0.0) - first) for part in parts])
    write_parts(receivers, [flow.receiver() for flow in flows])
    outside = shlex.join([*_TOGETHER, str(receivers)])
    return ["--outside", outside, "--", *_TOGETHER, str(senders)]


def _run(words: Sequence[str], seconds: float) -> None:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=seconds,
            check=False, preexec_fn=partial(die_with_parent, signal.SIGTERM),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LinkError(f"it did not end within {seconds:.0f} s") from None
    if done.returncode or ENDED in done.stderr:
        lines = done.stderr.splitlines()
        reasons = [line.partition(_ERROR)[2] for line in lines if _ERROR in line]
        raise LinkError((reasons or lines[-1:] or [f"exit code {done.returncode}"])[0])
