"""The Ray actor that is a rank of a decentralized run."""

from __future__ import annotations

from distrlcc.parallel.place import Place
from distrlcc.parallel.train_job import TrainJob, train_rank
from distrlcc.runs.feed import Feed, News
from distrlcc.runs.stopper import Stopper


class RayRank:
    """Trains in one thread and answers in others."""

    def __init__(self) -> None:
        """Do nothing yet."""
        self._feed = Feed()
        self._stopper = Stopper(launched=True)

    def train(self, place: Place, job: TrainJob) -> int:
        """Train as this rank; return 0 or the signal that ended it.

        Raises:
            DistrlccError: See `train_rank`.
        """
        self._feed.take_warnings(f"rank {place.slot}: " if place.slot else "")
        return train_rank(place, job, self._feed, self._stopper)

    def news(self) -> News:
        """Return what is to be shown."""
        return self._feed.news()

    def stop(self, number: int) -> None:
        """Save and end, as if this signal had come."""
        self._stopper.request(number)
