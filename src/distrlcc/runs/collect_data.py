"""Writes an expert's trajectories to disk: rounds of whole episodes, side by side.

All episodes of a round are taken, to their end, so short ones are not preferred. The label is the
expert's action: the oracle's, or the one that follows the scheme that drives the links. With
several schemes, each link has the one with the greatest return there.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distrlcc.config import check_fields, check_values, to_toml
from distrlcc.control.state import SCHEMES
from distrlcc.data.manifest import Manifest, Origin
from distrlcc.data.writer import DatasetWriter, Episode
from distrlcc.env.config import MAX_ENVS, EnvConfig
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError, listed
from distrlcc.runs.identity import package_versions
from distrlcc.runs.progress import Progress
from distrlcc.runs.run_config import MAX_VALUE, check_expert
from distrlcc.runs.source import spaces_of
from distrlcc.runs.stopper import Stopper
from distrlcc.seeding import stream_key, uniform


@dataclass(frozen=True)
class CollectConfig:
    """Everything that shapes a data set."""

    scheme: str
    """The expert: ``oracle``, or a scheme that drives the links; with several, parted by commas,
    each link has the one with the greatest return there."""
    steps: int = 1_000_000  # steps to collect, to an episode's end; 0: `episodes` says how much
    episodes: int = 0  # episodes to collect; 0: `steps` says how much
    num_envs: int = 256  # episodes that run side by side, at most
    seed: int = 0  # chooses the links
    split: Literal["train", "validation", "test"] = "train"  # which scenarios of the suites
    shard_steps: int = 262_144  # steps in a shard, at most; bounds the memory that collecting takes
    disturb: float = 0.0  # share of steps at which the oracle's action gives way to a random one
    env: EnvConfig = field(default_factory=EnvConfig)

    def __post_init__(self) -> None:
        check_expert(self.env, "collect")
        schemes = (SCHEMES.pinned(name, without=("agent",)) for name in self.schemes)
        object.__setattr__(self, "scheme", ",".join(schemes))
        if (self.steps == 0) == (self.episodes == 0):
            raise ConfigError("give either steps or episodes")
        check_fields(self, "steps episodes seed", 0, MAX_VALUE)
        check_fields(self, "num_envs", 1, MAX_ENVS)
        check_fields(self, "shard_steps", 1, 2**31)
        check_values(self, {"env.agents": 1}, "as data sets are of one agent on a link")
        check_fields(self, "disturb", 0, 0.5)
        if self.scheme != "oracle":
            check_values(self, {"disturb": 0}, f"as {self.scheme} drives the link itself")

    @property
    def schemes(self) -> tuple[str, ...]:
        """The experts that are asked."""
        return tuple(listed(self.scheme, "scheme") or [""])  # which is refused

    @property
    def episode_steps(self) -> int:
        """Steps of an episode, at most."""
        return int(self.env.episode_s * 1e3 / self.env.step_ms) + 1


STRETCH = 50  # steps from one disturbance to the next


def disturbed(
    actions: NDArray[Any],
    space: gymnasium.Space[Any],
    share: float,
    seed: int,
    episode: int,
    step: int,
) -> NDArray[Any]:
    """Return the actions to take ``[N]``: the expert's, or random ones at a share of the steps.

    A policy that was shown only an expert's own states has never seen what its small errors lead to
    (DART, https://arxiv.org/abs/1703.09327). So each stretch of `STRETCH` steps begins with one
    random action, taken for a random number of steps. The window ends up far off, and the rest of
    the stretch is the expert's way back. The expert's own choice is recorded at every step. Draws
    are named by seed, environment, episode and step.
    """
    if share == 0.0:
        return actions
    key, rows = stream_key(seed, "disturb"), np.arange(len(actions))
    phase = STRETCH * uniform(key, rows, episode, 0)
    stretch, age = np.divmod((step + phase).astype(np.int64), STRETCH)
    lengths = 2.0 * share * STRETCH * uniform(key, rows, episode, 1, stretch)
    draws = uniform(key, rows, episode, 2, stretch)
    if isinstance(space, gymnasium.spaces.Discrete):
        drawn: NDArray[Any] = (draws * int(space.n)).astype(actions.dtype)
    else:
        assert isinstance(space, gymnasium.spaces.Box)
        low, high = float(space.low.min()), float(space.high.max())
        drawn = (low + draws * (high - low)).astype(actions.dtype)
    return np.where(age < np.rint(lengths), drawn, actions)


class ExpertRounds:
    """Rounds of episodes in which the expert acts."""

    def __init__(self, config: CollectConfig) -> None:
        """Build the environment; raises ConfigError and TraceError."""
        if config.shard_steps < config.episode_steps:
            raise ConfigError(
                f"shard_steps is {config.shard_steps}; expected {config.episode_steps} or more, "
                "an episode's steps (env.episode_s / env.step_ms)"
            )
        wanted = config.episodes or math.ceil(config.steps / max(config.episode_steps - 1, 1))
        # A round fits in a shard, so that memory is bounded; rounds are of equal size.
        most = max(1, min(config.num_envs, config.shard_steps // config.episode_steps))
        rounds = math.ceil(wanted / most)
        self.count = math.ceil(wanted / rounds)
        self._envs = [
            LinkVectorEnv(
                self.count,
                replace(config.env, stagger=False),
                split=config.split,
                seed=config.seed,
                with_outcomes=True,
                autoreset=False,
                expert=scheme,
            )
            for scheme in config.schemes
        ]
        self.spaces = spaces_of(self._envs[0])
        self._config, self._rounds = config, 0

    def run(self) -> list[Episode]:
        """Run the next round and return its episodes, in the environments' order."""
        best = self._run(self._envs[0])
        for env in self._envs[1:]:
            both = zip(best, self._run(env), strict=True)
            best = [max(pair, key=lambda episode: episode.scores["return"]) for pair in both]
        self._rounds += 1
        return best

    def _run(self, env: LinkVectorEnv) -> list[Episode]:
        share, seed, space = self._config.disturb, self._config.seed, env.single_action_space
        steps: list[list[NDArray[Any]]] = []
        ends: dict[int, tuple[int, NDArray[np.float32], dict[str, float]]] = {}
        running = np.ones(self.count, bool)
        observation, info = env.reset()
        links = env.link_names()
        while running.any():
            # Act as the expert, or now and then at random; record what the expert would have done.
            labels = info["expert_action"]
            taken = disturbed(labels, space, share, seed, self._rounds, len(steps))
            step = [observation.copy(), taken.copy(), labels.copy()]
            observation, reward, _, truncated, info = env.step(taken)
            steps.append([*step, reward.astype(np.float32), info["outcome"].astype(np.float32)])
            # Note which episodes have ended; the others go on.
            for n in np.flatnonzero(running & truncated).tolist():
                scores = {key: float(row[n]) for key, row in info["link_episode"].items()}
                ends[n] = len(steps), info["final_obs"][n].astype(np.float32), scores
            running &= ~truncated
        columns = [np.stack(column, axis=1) for column in zip(*steps, strict=True)]  # [N, T, ...]
        episodes = []
        for n, (length, final, scores) in sorted(ends.items()):
            seen, done, asked, *rest = (column[n, :length] for column in columns)
            episodes.append(Episode(links[n], seen, done, asked, rest[0], rest[1], final, scores))
        return episodes


def collect_data(
    rounds: ExpertRounds, config: CollectConfig, out: Path, progress: Progress
) -> Manifest | int:
    """Collect a data set in rounds of the same configuration, in a new or empty folder.

    Returns its manifest, or the signal that ended it early and left nothing; raises OutputError.
    """
    origin = Origin(
        *(config.scheme, config.env.suites, config.split, config.seed, rounds.count),
        *(config.disturb, to_toml(config.env), package_versions() | {"pyarrow": pa.__version__}),
    )
    with DatasetWriter(out, rounds.spaces, origin, config.shard_steps) as writer, Stopper() as stop:

        def enough() -> bool:
            wanted = config.episodes or config.steps
            return (writer.episodes if config.episodes else writer.steps) >= wanted

        while not enough():
            # Run a round; a signal during it discards everything.
            episodes = rounds.run()
            if stop.signal:
                writer.discard()
                return stop.signal
            # Write what is still wanted of it, and show means over its links.
            for episode in episodes:
                if not enough():
                    writer.add(episode)
            scores = {key: np.mean([e.scores[key] for e in episodes]) for key in episodes[0].scores}
            progress.update({"steps": writer.steps, **scores})
        return writer.finish()
