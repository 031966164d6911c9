"""Runs contenders as real packets on emulated links, one link after another in real time.

A policy or one of our schemes sends over UDP as ``distrlcc send`` does; ``kernel-cubic`` and the
like are the kernel's own TCP. All are scored by the emulated link's log, so that they differ in
what they put on the link alone.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from distrlcc.config import to_toml
from distrlcc.control.schemes import SCHEMES
from distrlcc.errors import ConfigError, LinkError, unknown_name
from distrlcc.evaluate.contender import Contender, contender_from_file
from distrlcc.evaluate.link_scores import LinkScores, score_log
from distrlcc.evaluate.runner import reseed
from distrlcc.evaluate.scores import SchemeScores
from distrlcc.net.kernel_calls import die_with_parent
from distrlcc.sim.scenario import Flow, Link, Scenario

KERNEL = "kernel-"
_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_PORT = 4730
_SPARE_SECONDS = 60.0
_DISTRLCC = (sys.executable, "-m", "distrlcc")
_TCP = (sys.executable, "-m", "distrlcc.net.tcp_flow")


@dataclass(frozen=True)
class RealContender:
    """Who sends real packets."""

    name: str
    words: tuple[str, ...]
    """Of ``distrlcc send``; for the kernel's TCP the name of its control."""
    model: Contender | None
    """The same in the simulator; None where that has no such scheme."""

    @property
    def learned(self) -> bool:
        """Whether it is a policy."""
        return self.model is not None and self.model.policy is not None

    @property
    def is_kernel(self) -> bool:
        """Whether it is the kernel's TCP."""
        return self.name.startswith(KERNEL)


def scheme_or_kernel(name: str) -> RealContender:
    """Return a scheme of ours by its name, or one of the kernel's as ``kernel-NAME``.

    Raises:
        ConfigError: There is no such scheme, or the kernel does not have it.
    """
    ours = [scheme for scheme in SCHEMES if scheme not in ("agent", "oracle")]
    kernels = [KERNEL + control for control in _CONTROLS.read_text().split()]
    if name in kernels:
        control = name.removeprefix(KERNEL)
        return RealContender(name, (control,), Contender(control) if control in ours else None)
    if name not in ours:
        raise unknown_name("scheme of the emulated world", name, [*kernels, *ours])
    return RealContender(name, ("--scheme", name), Contender(name))


def policy_from_file(path: str, taken: set[str]) -> RealContender:
    """Return a policy file, or a run's folder; see `contender_from_file`."""
    model = contender_from_file(path, taken)
    return RealContender(model.name, ("--policy", str(Path(path).resolve())), model)


def check_emulated(scenarios: Sequence[Scenario]) -> None:
    """Refuse links that are not emulated.

    Raises:
        ConfigError: One has several flows.
    """
    for scenario in scenarios:
        if len(scenario.flows) > 1:
            raise ConfigError(
                f"{scenario.name} has {len(scenario.flows)} flows; --world emulated runs links "
                "with one: choose another suite"
            )


def evaluate_emulated(
    contender: RealContender,
    scenarios: Sequence[Scenario],
    *,
    seeds: int = 1,
    show: Callable[[str], None] = lambda _: None,
) -> tuple[SchemeScores, float]:
    """Measure a contender on every link, once per seed, in real time.

    Args:
        contender: Who sends.
        scenarios: L links with one flow each.
        seeds: Runs of each link, S, as `distrlcc.evaluate.runner.evaluate` has them.
        show: Told of each run.

    Returns:
        Scores ``[L, S]``, and the largest share of late steps of a run; 0 for the kernel's.

    Raises:
        LinkError: A run failed.
        OutputError: Nothing crossed a link.
    """
    found: list[list[LinkScores]] = []
    late = 0.0
    for scenario in scenarios:
        row = []
        for seed in range(seeds):
            show(f"{contender.name} on {scenario.name}, {scenario.duration_s:g} s")
            scores, run_late = _run(contender, reseed(scenario, seed))
            row.append(scores)
            late = max(late, run_late)
        found.append(row)
    columns = {
        field.name: np.array([[getattr(one, field.name) for one in row] for row in found])
        for field in fields(LinkScores)
    }
    links = tuple(scenario.name for scenario in scenarios)
    return SchemeScores(
        scheme=contender.name, links=links, learned=contender.learned, **columns
    ), late


def _run(contender: RealContender, scenario: Scenario) -> tuple[LinkScores, float]:
    """Emulate one link, send over it, and score its log."""
    seconds = scenario.duration_s
    with TemporaryDirectory(prefix="distrlcc-") as folder:
        place = Path(folder)
        plain = replace(scenario, link=_placed(scenario.link), flows=(Flow("agent"),))
        (place / "link.toml").write_text(to_toml(plain), encoding="utf-8")
        log, figures = place / "up.log", place / "sent.json"
        inside, outside = _commands(contender, seconds, figures)
        words = [
            *_DISTRLCC, "emulate", "--scenario", str(place / "link.toml"), "--begin", "data",
            "--log", str(log), "--outside", f"sh -c {shlex.quote('exec ' + outside)}", "--",
            "sh", "-c", f"exec {inside}",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                timeout=seconds + _SPARE_SECONDS, check=False,
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise LinkError(
                f"{contender.name} on {scenario.name} did not end within "
                f"{seconds + _SPARE_SECONDS:.0f} s"
            ) from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error: " in line]
            why = (lines or done.stderr.splitlines() or ["no reason given"])[-1]
            why = why.removeprefix("distrlcc: error: ")
            raise LinkError(f"{contender.name} on {scenario.name}: {why}")
        late = 0.0
        if not contender.is_kernel:
            late = float(json.loads(figures.read_text())["late_share"])
        return score_log(log, scenario.link, seconds), late


def _placed(link: Link) -> Link:
    """Return the link with its trace's file by its whole path."""
    if link.trace is not None and Path(link.trace).is_file():
        return replace(link, trace=str(Path(link.trace).resolve()))
    return link


def _commands(contender: RealContender, seconds: float, figures: Path) -> tuple[str, str]:
    """Return what runs behind the link and what runs outside."""
    if contender.is_kernel:
        (control,) = contender.words
        inside = shlex.join([*_TCP, "send"]) + f' "$MAHIMAHI_BASE" {_PORT} {control} {seconds:g}'
        return inside, shlex.join([*_TCP, "sink"]) + f' "$MAHIMAHI_BASE" {_PORT}'
    send = [*contender.words, "--seconds", f"{seconds:g}", "--json", str(figures), "--wait", "20"]
    inside = shlex.join([*_DISTRLCC, "send"]) + f' "$MAHIMAHI_BASE:{_PORT}" ' + shlex.join(send)
    outside = shlex.join([*_DISTRLCC, "receive", "--count", "1", "--listen"])
    return inside, f'{outside} "$MAHIMAHI_BASE:{_PORT}"'
