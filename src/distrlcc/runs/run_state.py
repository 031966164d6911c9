"""A run's state: learner, scores and counters, with the source of its batches."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import convert, json

from distrlcc.config import from_dict
from distrlcc.data.reader import StoredData
from distrlcc.env.config import EnvConfig
from distrlcc.errors import CheckpointError, ConfigError, DatasetError, PolicyFileError, reading
from distrlcc.learn.collapse import CollapseAlarm, Restorer
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.config import LEARNERS
from distrlcc.learn.dagger import Dagger
from distrlcc.learn.gail import Gail
from distrlcc.learn.learner import Reducer, Weights
from distrlcc.learn.model import Learner, limit_threads
from distrlcc.learn.ppo import PPO
from distrlcc.learn.scaling import Scale
from distrlcc.plugins import short
from distrlcc.policy.policy_file import Acting, PolicyFile, find_policy, load_policy
from distrlcc.policy.spec import PolicySpec
from distrlcc.runs.held_out import ACTINGS, HeldOut
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.runs.source import EnvSource, Share, Source, check_data
from distrlcc.sim.suites import written
from distrlcc.storage import say

if TYPE_CHECKING:
    from distrlcc.runs.run_directory import RunDirectory


def build_learner(
    config: RunConfig, spec: PolicySpec, reducer: Reducer | None = None, device: str = "cpu"
) -> Learner:
    """Return the learner of a run; ConfigError, DatasetError, PolicyFileError: it cannot start."""
    limit_threads()
    learner: Learner
    if config.gail is not None:
        assert config.ppo is not None
        if config.gail.demonstrations:
            _check_demonstrations(config.env, Path(config.gail.demonstrations))
        learner = Gail(config.gail, config.ppo, spec, config.seed, reducer, device)
    elif config.ppo is not None:
        kind = LEARNERS[config.learner] if config.learner else PPO
        learner = kind(config.ppo, spec, config.seed, reducer, device)
    else:
        assert config.dagger is not None
        learner = Dagger(config.dagger, spec, config.seed, reducer, device)
    together = config.distributed
    own = together.batch == "per-process"
    learner.scale = Scale(learner.reducer, own=own, rule=together.lr_rule, warm_up=together.warm_up)
    if config.start_from:
        learner.load_weights(_starting_weights(config.start_from, spec))
    return learner


def _check_demonstrations(env: EnvConfig, folder: Path) -> None:
    data = StoredData(folder)
    check_data(env, data)
    if share := data.manifest.origin.disturb:
        raise DatasetError(
            f"{folder}: {share:.0%} of its steps took a random action, so that they do not show "
            "the results of the expert's own; collect it undisturbed (docs/imitation.md)"
        )


_MOST_REFUSED = 4  # updates in a row whose numbers may be not finite; the last of them ends the run
_SHAPE = (
    "observation observation_size action action_kind action_size kind hidden post_hidden activation"
)
"""Parts of a spec that must be the same for weights to fit."""


def _starting_weights(path: str, spec: PolicySpec) -> Weights:
    policy = load_policy(find_policy(path))
    given, wanted = (json.decode(json.encode(each)) for each in (policy.spec, spec))
    for each in given, wanted:  # a user's code may have changed: its shape counts
        each |= {name: short(each[name]) for name in ("observation", "action", "kind")}
    if names := [name for name in _SHAPE.split() if given[name] != wanted[name]]:
        has, expected = (", ".join(f"{n} {s[n]}" for n in names) for s in (given, wanted))
        raise PolicyFileError(
            f"{path}: its policy has {has}; expected {expected}, as this configuration says: "
            "change its keys, or take another file"
        )
    return Weights(0, policy.arrays)


@dataclass
class Counters:
    """How far a run is, and its best policy so far."""

    update: int = 0
    steps: int = 0
    episodes: int = 0
    seconds: float = 0.0
    """Time since the start, s, scoring and saving included, time between resumes not."""
    best_score: float = -1e30
    best_update: int = 0
    best_acting: Acting = "sample"
    best_utilisation: float = 0.0
    best_queueing_delay: float = 0.0  # in base RTTs
    not_finite: int = 0  # updates in a row that were refused, as what they gave was not finite


class RunState:
    """A learner with its scores and counters, and the source of its batches."""

    def __init__(
        self,
        config: RunConfig | ImitateConfig,
        source: Source,
        learner: Learner,
        *,
        total_steps: int,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Put a run together; it ends at ``total_steps``, and its policy file has the notes."""
        self.config, self.source, self.learner = config, source, learner
        self.spec, self._notes, self.total_steps = source.spec, dict(notes or {}), total_steps
        self.held_out = HeldOut(config, self.spec)
        self.alarm: CollapseAlarm | None = None
        self.restorer: Restorer | None = None
        if isinstance(config, RunConfig) and config.dagger is None:
            # A density's entropy falls below 0 without harm.
            free = self.spec.action_kind == "continuous"
            least_entropy = float("-inf") if free else config.alarm.entropy_bound
            self.alarm = CollapseAlarm(least_entropy, config.alarm.silent_share_bound)
            if config.alarm.act and isinstance(learner, PPO | Gail):
                self.restorer = Restorer(config.alarm, learner)
        self.links = written(config.env.suites)
        """Digests of files of links, by what `written` calls them; workers tell of theirs."""
        self.rang: str | None = None  # what the alarm said of the newest update
        self.restored: str | None = None  # what was done about it
        self.counters = Counters()
        self.best: Weights | None = None
        self._average: Weights | None = None
        self.scored_update = -1  # the newest update that this process has scored
        self._clock = time.perf_counter()

    @property
    def over(self) -> str:
        """Why there is nothing left to do; empty while there is."""
        return self.config.over(self.counters.update, self.counters.steps)

    def start_clock(self) -> None:
        """Count time from now on."""
        self._clock = time.perf_counter() - self.counters.seconds

    def count_time(self) -> None:
        """Note the time so far in the counters."""
        self.counters.seconds = time.perf_counter() - self._clock

    @property
    def time_is_up(self) -> bool:
        """Whether the run has had its time."""
        return bool(self.config.max_seconds) and self.counters.seconds >= self.config.max_seconds

    def commit(self, stats: CollectStats, *, learned: bool = True, finite: bool = True) -> None:
        """Count an update with these statistics; ConfigError: diverged, and not restored.

        A refused update ``learned`` nothing, for instance since numbers were not ``finite``.
        """
        if not learned:
            self.learner.pass_over(int(stats.steps))
        self.counters.not_finite = 0 if finite else self.counters.not_finite + 1
        self.counters.update += 1
        self.counters.steps += int(stats.steps)
        self.counters.episodes += int(stats.episodes)
        weights = self.learner.weights()
        finite = self.counters.not_finite < _MOST_REFUSED
        finite = finite and all(np.isfinite(array).all() for array in weights.arrays.values())
        self.rang = self.restored = None
        if self.alarm is not None:
            self.rang = self.alarm.check(stats, finite=finite)
            if self.restorer is not None:
                self.restored = self.restorer.watch(self.alarm, self.counters.update)
            if self.restored:
                self.alarm.reset()
        if self.restored:
            self.counters.not_finite, self._average = 0, None
        elif finite:
            self._take_into_average(weights, stats.steps)
        else:
            raise ConfigError(
                "training diverged: the weights, or what they learn from, are not finite any more, "
                "and nothing of it was saved; lower lr, or mend a reward or observation of yours, "
                "and begin again, or go on from the last checkpoint with --resume"
            )

    def _take_into_average(self, newest: Weights, steps: float) -> None:
        """Move the average towards the newest weights, by these steps' part of its length."""
        length = min(self.config.held_out.average_steps, self.counters.steps)
        if length == 0:
            return
        part = np.float32(min(steps / length, 1.0))
        before = newest.arrays if self._average is None else self._average.arrays
        arrays = {n: before[n] + part * (array - before[n]) for n, array in newest.arrays.items()}
        self._average = Weights(newest.version, arrays)

    def weights_to_keep(self) -> Weights:
        """Return the newest weights, or where so configured their average."""
        return self._average or self.learner.weights()

    def score(self) -> dict[str, float]:
        """Score the present weights on held-out links, and keep them if they are the best."""
        weights, counters = self.weights_to_keep(), self.counters
        scores = self.held_out.score(weights)
        self.scored_update = counters.update
        newest = self.config.held_out.keep == "newest"
        acting = "sample" if newest else max(ACTINGS, key=lambda a: scores[a].reward)
        if newest or scores[acting].reward > counters.best_score:
            best, self.best = scores[acting], weights
            counters.best_score, counters.best_update = best.reward, counters.update
            counters.best_acting, counters.best_utilisation = acting, best.utilisation
            counters.best_queueing_delay = best.queueing_delay
        return {
            f"held_out_{name}_{acting}": value
            for acting, score in scores.items()
            for name, value in asdict(score).items()
        }

    def paused(self) -> bool:
        """Say whether rank 0 scores alone after the newest update."""
        return self.counters.update > 0 and self.config.scores_at(self.counters.update)

    def policy(self) -> PolicyFile:
        """Return the best policy so far, acting in the better way."""
        counters, weights = self.counters, self.best or self.weights_to_keep()
        notes = {"recipe": self.config.recipe, **self._notes, "seed": self.config.seed}
        notes |= {self.config.unit: counters.best_update, "steps": counters.steps}
        notes["held_out_reward"] = counters.best_score
        return PolicyFile(self.spec, weights.arrays, counters.best_acting, notes)

    def summary(self) -> str:
        """Return a line about the best policy, and one about the processes that pay if known."""
        counters, unit = self.counters, self.config.unit
        if self.best is None:
            line = "held-out links: not scored yet"
        else:
            which = "newest" if self.config.held_out.keep == "newest" else "best"
            line = (
                f"held-out links: utilisation {counters.best_utilisation:.3f}, queueing delay "
                f"{counters.best_queueing_delay:.3f} RTT ({which} at {unit} {counters.best_update} "
                f"of {counters.update})"
            )
        if isinstance(self.config, RunConfig) and isinstance(self.learner, Learner):
            line = "\n".join(filter(None, [line, self.learner.advice()]))
        return line

    def shared_state(self) -> dict[str, Any]:
        """Return the part that all ranks share: all except the source and DAgger's data."""
        return {
            "learner": self.learner.shared_state(),
            "alarm": None if self.alarm is None else self.alarm.state_dict(),
            "recovery": None if self.restorer is None else self.restorer.state_dict(),
            "counters": asdict(self.counters),
            "links": dict(self.links),
            "best": _plain(self.best),
            "average": _plain(self._average),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resume needs."""
        own = {"learner": self.learner.state_dict()}
        return self.shared_state() | own | self.source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, of any topology; raises CheckpointError if it is of another shape."""
        with reading(CheckpointError, _MISFIT, _REMEDY):
            if not self.source.load_state_dict(state):
                state = state | {"learner": state["learner"] | {"dataset": None}}
            begins = isinstance(self.learner, Dagger) and not self.counters.update
            if begins and state["counters"]["update"] and not state["learner"].get("dataset"):
                line = "the data set fills anew: it was of several processes, or of another number"
                warnings.warn(f"{line} of workers or environments", stacklevel=2)
        self.load_shared_state(state)

    def load_shared_state(self, state: dict[str, Any]) -> None:
        """Take over what all ranks share, not source and data; raises CheckpointError."""
        check_links(self.links, state.get("links", {}))
        with reading(CheckpointError, _MISFIT, _REMEDY):
            self.learner.load_state_dict(state["learner"])
            if self.alarm is not None:
                self.alarm.load_state_dict(state["alarm"])
            if self.restorer is not None:
                self.restorer.load_state_dict(state["recovery"])
            self.counters = from_dict(Counters, state["counters"], source="counters")
            self.best, self._average = _weights(state["best"]), _weights(state.get("average"))

    def load(self, run: "RunDirectory", note: Callable[[str], None] = say) -> None:
        """Load a run's newest checkpoint, if any; `RunDirectory.rewind` follows."""
        if (loaded := run.load(note)) is not None:
            self.load_state_dict(loaded)


def done(config: RunConfig | ImitateConfig, run: "RunDirectory") -> str:
    """Say what a run has done if nothing is left, not even to score it; raises CheckpointError."""
    loaded = run.load(lambda line: None)
    if loaded is None or not run.policy_path.exists():
        return ""
    with reading(CheckpointError, _MISFIT, _REMEDY):
        update, steps, seconds = (loaded["counters"][k] for k in ("update", "steps", "seconds"))
    check_links(written(config.env.suites), loaded.get("links", {}))
    over, notes = config.over(update, steps), load_policy(run.policy_path).notes
    if config.max_seconds and seconds >= config.max_seconds:
        over = f"{seconds:.1f} of {config.max_seconds:g} s already; go on with --set max_seconds=S"
    # The policy is of this state, and was scored.
    return over if notes.get("steps") == steps and notes.get(config.unit) else ""


def check_links(known: dict[str, str], others: Mapping[str, str]) -> None:
    """Add others' digests of links to those known; CheckpointError: files of a name differ."""
    with reading(CheckpointError, _MISFIT, _REMEDY):
        digests = convert(others, dict[str, str])
    for links, digest in digests.items():
        if known.setdefault(links, digest) != digest:
            raise CheckpointError(
                f"the {links} have changed since the run began, or differ between machines; "
                "put them back"
            )


def _plain(weights: Weights | None) -> dict[str, Any] | None:
    return None if weights is None else {"version": weights.version, "arrays": dict(weights.arrays)}


def _weights(plain: dict[str, Any] | None) -> Weights | None:
    return None if plain is None else Weights(int(plain["version"]), dict(plain["arrays"]))


_MISFIT = "the checkpoint does not fit this learner"
_REMEDY = (
    ": another version of distrlcc wrote it, as versions.json says; go on with that, or begin a "
    "new run"
)


def env_run(
    config: RunConfig,
    share: Share | None = None,
    reducer: Reducer | None = None,
    device: str = "cpu",
) -> RunState:
    """Return a run whose environments, all or a share, are in this process; acting is NumPy's."""
    source = EnvSource(config, share)
    learner = build_learner(config, source.spec, reducer, device)
    return RunState(config, source, learner, total_steps=config.total_steps)


def rehearse(config: RunConfig, first: int = 0) -> None:
    """Collect once from a link whose agents begin with ``first``: misfits show, and it compiles."""
    state = env_run(config, Share(first, config.env.unit))
    state.source.next(state.learner.weights(), None)
