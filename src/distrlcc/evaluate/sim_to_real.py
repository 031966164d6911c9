"""The same senders in the simulator and on emulated links: how far apart they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import jinja2
import numpy as np

from distrlcc.evaluate.scores import SchemeScores
from distrlcc.types import FloatArray

THROUGHPUT_BOUND, RTT_BOUND = 0.05, 0.10
"""Differences beyond these are marked."""


@dataclass(frozen=True)
class Row:
    """One sender on one link; means over the seeds whose run did not fail, NaN if all did."""

    link: str
    sender: str
    simulated_mbps: float
    emulated_mbps: float
    simulated_p95_ms: float
    emulated_p95_ms: float
    runs: int = 1
    failed: int = 0
    """Of these, which are left out of both worlds' figures."""

    @property
    def throughput_difference(self) -> float:
        """The emulator's throughput over the simulator's, less 1."""
        return _difference(self.emulated_mbps, self.simulated_mbps)

    @property
    def rtt_difference(self) -> float:
        """The emulator's p95 RTT over the simulator's, less 1."""
        return _difference(self.emulated_p95_ms, self.simulated_p95_ms)

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
            ran = np.isfinite(real.throughput_mbps[place])
            rows.append(
                Row(
                    link,
                    real.scheme,
                    _mean(model.throughput_mbps[place], ran),
                    _mean(real.throughput_mbps[place], ran),
                    _mean(model.p95_rtt_ms[place], ran),
                    _mean(real.p95_rtt_ms[place], ran),
                    runs=len(ran),
                    failed=int((~ran).sum()),
                )
            )
    return sorted(rows, key=lambda row: row.link)


def render(rows: Sequence[Row], notes: Sequence[str] = ()) -> str:
    """Return the page's HTML.

    Args:
        rows: The table.
        notes: Sentences under it.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"figure": figure, "percent": percent}
    text = resources.files("distrlcc.evaluate").joinpath("sim_to_real.html.jinja")
    return environment.from_string(text.read_text("utf-8")).render(
        rows=rows, notes=notes, throughput_bound=THROUGHPUT_BOUND, rtt_bound=RTT_BOUND
    )


def figure(value: float, digits: int) -> str:
    """Return a figure as it is shown; a dash where there is none."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def percent(difference: float) -> str:
    """Return a difference as it is shown; a dash where there is none."""
    return f"{difference:+.1%}" if math.isfinite(difference) else "-"


def _difference(emulated: float, simulated: float) -> float:
    return emulated / simulated - 1.0 if simulated else math.nan


def _mean(values: FloatArray, ran: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    """Return the mean over runs; NaN where none is defined."""
    defined = values[ran & np.isfinite(values)]
    return float(defined.mean()) if len(defined) else math.nan
