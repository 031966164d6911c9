"""How a learner's batches and rates follow the number of ranks, and how many would still pay."""

from dataclasses import dataclass

from distrlcc.learn.config import LRRule
from distrlcc.learn.learner import Reducer, Spread

_DECAY = 0.995  # of what was seen in earlier minibatches


class Scale:
    """Factors of batches and rates, if each rank brings a batch of its own.

    The learning rate follows the square root of the batch, which is Adam's rule (Malladi et al.,
    https://arxiv.org/abs/2205.10287), or the batch (SGD's: Goyal et al.,
    https://arxiv.org/abs/1706.02677). As there it warms up: it rises over some updates, from the
    start and whenever ranks join, and falls at once where they leave.
    """

    def __init__(
        self, reducer: Reducer, *, own: bool = False, rule: LRRule = "sqrt", warm_up: int = 1
    ) -> None:
        """Take what knows the ranks; ``own`` batches multiply, over ``warm_up`` updates."""
        self._reducer, self._own, self._rule, self._warm_up = reducer, own, rule, warm_up
        self.ranks = 1.0  # ranks that the learning rate is for

    @property
    def batches(self) -> int:
        """How many times its configured size all ranks' batch has."""
        return self._reducer.size if self._own else 1

    def begin(self) -> float:
        """Begin an update with the ranks that there are; return the learning rate's factor."""
        self.ranks = min(float(self.batches), self.ranks + (self.batches - 1) / self._warm_up)
        return self.factor

    @property
    def factor(self) -> float:
        """The learning rate's factor in this update."""
        exponents = {"sqrt": 0.5, "linear": 1.0, "none": 0.0}
        return float(self.ranks ** exponents[self._rule])


@dataclass
class NoiseScale:
    """How many samples it takes until a mean gradient is as much signal as noise.

    B_simple of McCandlish et al. (https://arxiv.org/abs/1812.06162, appendix A.1): each rank's
    gradient is one of few samples, their mean one of many, and both parts are averaged over
    minibatches. A batch of so many samples takes twice the least number of steps, and twice the
    least number of samples; beyond it more samples save few steps.
    """

    signal: float = 0.0  # squared norm of the true gradient
    noise: float = 0.0  # trace of the covariance of one sample's gradient
    samples: float = 0.0  # samples in the newest minibatch of all ranks; 0: one rank tells nothing

    def add(self, spread: Spread | None, square: float) -> None:
        """Take a minibatch in, whose mean gradient has a norm with this square."""
        if spread is None or spread.ranks < 2:
            self.samples = 0.0
            return
        few, many = spread.samples / spread.ranks, spread.samples
        noise = (spread.square - square) / (1.0 / few - 1.0 / many)
        signal = (many * square - few * spread.square) / (many - few)
        self.noise = _DECAY * self.noise + (1.0 - _DECAY) * noise
        self.signal = _DECAY * self.signal + (1.0 - _DECAY) * signal
        self.samples = many

    @property
    def value(self) -> float:
        """The noise scale in samples; 0 where it is not known, as of one rank or noise alone."""
        return max(self.noise, 0.0) / self.signal if self.signal > 0.0 else 0.0

    def metrics(self) -> dict[str, float]:
        """Return it as a metric, if it is known."""
        return {"noise_scale": self.value} if self.value and self.samples else {}

    def advice(self, own: int) -> str:
        """Say how many processes with minibatches of ``own`` samples would pay, if known."""
        if not self.metrics():
            return ""
        most = self.value / own
        line = f"gradient noise scale {self.value:,.0f} samples, minibatches of {self.samples:,.0f}"
        if most < 2.0:
            return f"{line}: more samples in each would hardly save steps"
        return (
            f"{line}: up to {most:,.0f} processes with batches of their own "
            "(distributed.batch=per-process) pay"
        )
