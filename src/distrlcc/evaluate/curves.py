"""Whether two ways of training have the same learning curves."""

from __future__ import annotations

from dataclasses import dataclass

from distrlcc.evaluate.bootstrap import mean_intervals
from distrlcc.types import FloatArray


@dataclass(frozen=True)
class Curves:
    """Learning curves of two ways from the same seeds, ``[S, Q]`` each: S seeds, Q parts."""

    one: FloatArray
    other: FloatArray

    def intervals(self) -> tuple[FloatArray, FloatArray]:
        """Return mean, low and high over seeds of each part, ``[Q, 3]``, of one and the other."""
        one, other = (mean_intervals(curve.T[:, None, :]) for curve in (self.one, self.other))
        return one, other

    @property
    def agree(self) -> bool:
        """Whether each one's mean lies within the other's interval, in every part."""
        one, other = self.intervals()
        return bool(
            ((other[:, 1] <= one[:, 0]) & (one[:, 0] <= other[:, 2])).all()
            and ((one[:, 1] <= other[:, 0]) & (other[:, 0] <= one[:, 2])).all()
        )
