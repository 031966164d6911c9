"""Paired differences per link, with intervals and a test: is one better on the same links?

The mean difference has a percentile-bootstrap interval over links. The p-value is Wilcoxon's
signed-rank test (1945) that differences are as often above as below 0, corrected for the number of
comparisons of a metric (Holm 1979). A tie is a link where both differ by less than `TIE` of the
other's value.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from distrlcc.errors import ConfigError, counted
from distrlcc.evaluation.bootstrap import mean_intervals
from distrlcc.evaluation.scores import metric, shown
from distrlcc.evaluation.summary import MeanInterval, figure

KEYS = ("power", "utilisation", "queueing_delay_rtt", "excess_loss")
"""Metrics that are compared; the sentence speaks of the first."""
TIE = 0.01
SURE = 0.05  # a p-value below which a difference is told as one
_MOST_LINKS = 5
_LEAST_LINKS = 6  # with fewer the test cannot say anything with certainty

Values = Mapping[str, Mapping[str, MeanInterval]]  # each link's mean by metric


@dataclass(frozen=True)
class Difference:
    """The first less another, in one metric, over L links that both have."""

    other: str
    key: str
    links: int
    mean: MeanInterval
    p: float  # NaN: fewer than six links, or all are equal
    ahead: int  # links on which the first is better
    behind: int
    best: tuple[str, ...]  # links on which it is most ahead, the most first
    worst: tuple[str, ...]  # and most behind


@dataclass(frozen=True)
class Comparison:
    """The first of several, beside each other one."""

    first: str
    rows: tuple[Difference, ...]

    def sentence(self) -> str:
        """Return the answer: is it better?"""
        said = []
        for row in (row for row in self.rows if row.key == KEYS[0]):
            other, up = shown(row.other), row.mean.mean > 0
            if not row.p < SURE:
                text = f"not shown to differ from {other} in power"
            elif (row.behind > row.ahead) if up else (row.ahead > row.behind):
                # A few links have the mean, and most the test.
                text = f"neither better nor worse than {other} in power: mean and links disagree"
            else:
                text = f"{'better' if up else 'worse'} than {other} in power"
            p = f", p {'< 0.001' if row.p < 1e-3 else f'= {row.p:.3f}'}"
            if np.isnan(row.p):
                p = ", too few for a test" if row.links < _LEAST_LINKS else ""
            ahead = f"ahead on {row.ahead} of {counted(row.links)}"
            said.append(f"{text} ({row.mean.mean:+z.3f}, {ahead}{p})")
        return f"{shown(self.first)} is {'; '.join(said)}."

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        rows = [asdict(row) | {"mean": row.mean.to_json(), "p": figure(row.p)} for row in self.rows]
        head = {"format": "distrlcc-comparison", "version": 1, "first": self.first}
        return {**head, "rows": rows, "sentence": self.sentence()}


def compare_links(values: Mapping[str, Values]) -> Comparison:
    """Compare the first with each other one, on links that both have; raises ConfigError."""
    first, *others = values
    rows = []
    for key in KEYS:
        found = [_difference(first, other, values[first], values[other], key) for other in others]
        # Holm's correction: the smallest p-value counts most often.
        order = sorted(range(len(found)), key=lambda k: (np.isnan(found[k].p), found[k].p))
        least = 0.0
        for place, k in enumerate(order):
            p = found[k].p
            if p == p:  # max would make 0 of NaN
                p = least = min(max(least, p * (len(found) - place)), 1.0)
            rows.append(Difference(**{**vars(found[k]), "p": p}))
    rows.sort(key=lambda row: (others.index(row.other), KEYS.index(row.key)))
    return Comparison(first, tuple(rows))


def _difference(first: str, other: str, own: Values, theirs: Values, key: str) -> Difference:
    links = [link for link in own if link in theirs]
    # A scheme that delivers nothing has no delay.
    lacking = MeanInterval(math.nan, math.nan, math.nan)
    found = [[values[link].get(key, lacking).mean for values in (own, theirs)] for link in links]
    pairs = np.array(found, float).reshape(-1, 2)
    both = np.isfinite(pairs).all(axis=1)
    if key == KEYS[0] and not both.any():
        why = " on which runs of both count" if links else "; compare what ran on one suite"
        raise ConfigError(f"{first} and {other} have no link in common{why}")
    links = [link for link, has in zip(links, both, strict=True) if has]
    a, b = pairs[both].T
    difference = a - b
    sign = -1.0 if metric(key).better == "lower" else 1.0
    better = np.where(np.abs(difference) <= TIE * np.abs(b), 0.0, sign * difference)
    mean = MeanInterval(*mean_intervals(difference[None, :, None])[0]) if links else lacking
    enough = len(links) >= _LEAST_LINKS and (difference != 0).any()
    p = float(wilcoxon(difference).pvalue) if enough else math.nan
    order = np.argsort(-better, kind="stable")
    best = tuple(links[k] for k in order[:_MOST_LINKS] if better[k] > 0)
    worst = tuple(links[k] for k in order[::-1][:_MOST_LINKS] if better[k] < 0)
    counts = int((better > 0).sum()), int((better < 0).sum())
    return Difference(other, key, len(links), mean, p, *counts, best, worst)
