"""The links over which schemes are compared: those on which each of them has a run.

A scheme that failed on the hard links would else be ranked by the easy ones alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distrlcc.evaluate.scores import SchemeScores

_MOST_NAMES = 10
"""Links that a sentence names."""


@dataclass(frozen=True)
class LeftOut:
    """A link on which not every scheme has a run."""

    link: str
    schemes: tuple[str, ...]
    """Those whose runs there all failed."""

    def __str__(self) -> str:
        return f"{self.link} ({', '.join(self.schemes)})"


@dataclass(frozen=True)
class CommonLinks:
    """Which of L links are common to all schemes that have a run at all."""

    taken: NDArray[np.bool_]
    """``[L]``; False throughout: none is common, and each scheme's means are over its own."""
    left_out: tuple[LeftOut, ...]
    """The others."""
    without_runs: tuple[str, ...]
    """Schemes of which every run failed: they are not ranked, and leave no link out."""

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.taken.sum())

    def of(self, scores: SchemeScores) -> NDArray[np.bool_]:
        """Return the links that a scheme's means are over, ``[L]``."""
        return self.taken if self.count else scores.has_run

    def notes(self) -> tuple[str, ...]:
        """Return sentences that say what is left out of the means, and because of whom."""
        found = []
        if self.left_out and not self.count:
            found.append(
                "No link has a run of every scheme: each one's means over links are over those "
                "that it has, so the ranking compares different links."
            )
        elif self.left_out:
            names = ", ".join(map(str, self.left_out[:_MOST_NAMES]))
            more = len(self.left_out) - _MOST_NAMES
            if more > 0:
                names += f" and {more} more, which JSON names"
            found.append(
                f"Means over links, and so the ranking, leave out {len(self.left_out)} of "
                f"{len(self.taken)} links, on which not every scheme has a run: {names}."
            )
        if self.without_runs:
            several = len(self.without_runs) > 1
            found.append(
                f"{', '.join(self.without_runs)} {'have' if several else 'has'} no run and "
                f"{'are' if several else 'is'} not ranked; no link is left out because of "
                f"{'them' if several else 'it'}."
            )
        return tuple(found)


def common_links(scores: Sequence[SchemeScores], links: Sequence[str]) -> CommonLinks:
    """Find the links on which every scheme has a run, of those schemes that have any.

    Args:
        scores: Of all schemes, on the same L links.
        links: The links' names, each once.
    """
    entered = [one for one in scores if one.has_run.any()]
    runs = np.array([one.has_run for one in entered], bool).reshape(-1, len(links))
    left_out = [
        LeftOut(
            link, tuple(one.scheme for one, ran in zip(entered, runs[:, k], strict=True) if not ran)
        )
        for k, link in enumerate(links)
        if not runs[:, k].all()
    ]
    without = tuple(one.scheme for one in scores if not one.has_run.any())
    return CommonLinks(np.asarray(runs.all(axis=0)), tuple(left_out), without)
