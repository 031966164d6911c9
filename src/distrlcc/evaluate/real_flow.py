"""A scenario's flows as commands that send real packets and take them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from distrlcc.errors import ConfigError
from distrlcc.evaluate.real_contender import RealContender, rival
from distrlcc.net.command_group import BASE, Part
from distrlcc.sim.scenario import Flow, Scenario

FIRST_PORT = 24_730
"""Of the first flow's receiver, and none that others use by default; the others' follow it."""
_DISTRLCC = (sys.executable, "-m", "distrlcc")
_TCP = (sys.executable, "-m", "distrlcc.net.tcp_flow")
_WAIT = "30"
"""How long a sender waits for a receiver that is not there yet, s."""
_SILENCE = "30"
"""How long a sender sends on into an outage, s."""
_PATIENCE_SECONDS = 60
"""How long beyond the scenario a receiver waits for a sender that says nothing."""
_MOST_PATIENCE_SECONDS = 3600


@dataclass(frozen=True)
class RealFlow:
    """One flow on an emulated link."""

    number: int
    """Among the scenario's, from 1."""
    contender: RealContender
    start_s: float
    seconds: float
    """How long it sends."""
    seed: int
    cwnd: float | None = None
    """Window of the scheme ``fixed``, packets."""

    @property
    def name(self) -> str:
        """In messages."""
        return f"flow {self.number} ({self.contender.name})"

    @property
    def port(self) -> int:
        """Its receiver's."""
        return FIRST_PORT + self.number - 1

    def figures(self, folder: Path) -> Path:
        """Return where its sender writes its figures."""
        return folder / f"sent-{self.number}.json"

    def sender(self, folder: Path) -> Part:
        """Return what runs behind the link."""
        if self.contender.is_kernel:
            (control,) = self.contender.words
            words = (
                *_TCP, "send", BASE, str(self.port), control, f"{self.seconds:g}", "hold",
                str(self.figures(folder)),
            )  # fmt: skip
            return Part(self.name, words, self.start_s)
        window = () if self.cwnd is None else ("--cwnd", f"{self.cwnd:g}")
        words = (
            *_DISTRLCC, "send", f"{BASE}:{self.port}", *self.contender.words, *window,
            "--seed", str(self.seed), "--seconds", f"{self.seconds:g}", "--wait", _WAIT, "--hold",
            "--timeout", _SILENCE,
            "--json", str(self.figures(folder)),
        )  # fmt: skip
        return Part(self.name, words, self.start_s)

    def receiver(self) -> Part:
        """Return what runs outside."""
        # It is there before the first flow begins, and hears nothing until its own does.
        patience = min(self.start_s + self.seconds + _PATIENCE_SECONDS, _MOST_PATIENCE_SECONDS)
        name = f"the receiver of {self.name}"
        if self.contender.is_kernel:
            return Part(name, (*_TCP, "sink", BASE, str(self.port), f"{patience:g}"))
        words = (
            *_DISTRLCC, "receive", "--count", "1", "--timeout", f"{patience:g}",
            "--listen", f"{BASE}:{self.port}",
        )  # fmt: skip
        return Part(name, words)


def real_flows(
    scenario: Scenario, contender: RealContender, others: str | None = None
) -> list[RealFlow]:
    """Return a scenario's flows, the contender's first; those that never send are left out.

    Args:
        scenario: The link and when its flows send.
        contender: Who sends as the first flow.
        others: Who sends as the others; see `distrlcc.evaluate.real_contender.rival`.

    Raises:
        ConfigError: A flow cannot send real packets.
    """
    found = []
    for number, flow in enumerate(scenario.flows, 1):
        stop = scenario.duration_s if flow.stop_s is None else flow.stop_s
        seconds = min(stop, scenario.duration_s) - flow.start_s
        try:
            who = contender if number == 1 else rival(flow.scheme, contender, others)
            _check(flow, who)
        except ConfigError as error:
            raise ConfigError(f"{scenario.name}, flow {number}: {error}") from None
        if seconds > 0:
            # As the simulator seeds it, so that two of one scheme do not draw the same.
            seed = scenario.seed * 64 + number - 1
            found.append(RealFlow(number, who, flow.start_s, seconds, seed, flow.cwnd))
    return found


def _check(flow: Flow, who: RealContender) -> None:
    if flow.extra_rtt_ms:
        raise ConfigError(
            "extra_rtt_ms is for the simulated world; real flows share the link's delay"
        )
    if flow.pacing_mbps is not None:
        raise ConfigError("pacing_mbps is for the simulated world; real flows find their own rate")
    if flow.cwnd is not None and who.name != "fixed":
        raise ConfigError(f"cwnd is for the simulated world; of real packets only fixed takes it, "
                          f"not {who.name}")  # fmt: skip
