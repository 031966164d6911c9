"""The same senders in the simulator and on emulated links: how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import jinja2
import numpy as np

from distrlcc.evaluate.scores import SchemeScores

THROUGHPUT_BOUND, RTT_BOUND = 0.05, 0.10
"""Differences beyond these are marked."""


@dataclass(frozen=True)
class Row:
    """One sender on one link; means over seeds."""

    link: str
    sender: str
    simulated_mbps: float
    emulated_mbps: float
    simulated_p95_ms: float
    emulated_p95_ms: float

    @property
    def throughput_difference(self) -> float:
        """The emulator's throughput over the simulator's, less 1."""
        return self.emulated_mbps / self.simulated_mbps - 1.0

    @property
    def rtt_difference(self) -> float:
        """The emulator's p95 RTT over the simulator's, less 1."""
        return self.emulated_p95_ms / self.simulated_p95_ms - 1.0

    @property
    def throughput_far(self) -> bool:
        """Whether the throughputs differ by more than `THROUGHPUT_BOUND`."""
        return abs(self.throughput_difference) > THROUGHPUT_BOUND

    @property
    def rtt_far(self) -> bool:
        """Whether the p95 RTTs differ by more than `RTT_BOUND`."""
        return abs(self.rtt_difference) > RTT_BOUND


def compare(emulated: Sequence[SchemeScores], simulated: Sequence[SchemeScores]) -> list[Row]:
    """Return a row for each link and sender.

    Args:
        emulated: What was measured on emulated links.
        simulated: The same senders in the simulator, in the same order, on the same links.
    """
    rows = []
    for real, model in zip(emulated, simulated, strict=True):
        for place, link in enumerate(real.links):
            rows.append(
                Row(
                    link,
                    real.scheme,
                    float(np.mean(model.throughput_mbps[place])),
                    float(np.mean(real.throughput_mbps[place])),
                    float(np.mean(model.p95_rtt_ms[place])),
                    float(np.mean(real.p95_rtt_ms[place])),
                )
            )
    return sorted(rows, key=lambda row: row.link)


def render(rows: Sequence[Row]) -> str:
    """Return the page's HTML."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    text = resources.files("distrlcc.evaluate").joinpath("sim_to_real.html.jinja")
    return environment.from_string(text.read_text("utf-8")).render(
        rows=rows, throughput_bound=THROUGHPUT_BOUND, rtt_bound=RTT_BOUND
    )
