"""The training loop of one process: collect, update, log, score, save. Read `train` top to bottom.

Left out on purpose: other processes. Every topology runs the same `Collector` and the same
`Learner`, and only moves rollouts and weights.
"""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import gymnasium

from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.learn.alarm import CollapseAlarm
from distrlcc.learn.collect import Collector
from distrlcc.learn.collect_stats import CollectStats
from distrlcc.learn.dagger import Dagger
from distrlcc.learn.learner import Learner, Weights
from distrlcc.learn.ppo import PPO
from distrlcc.learn.process import prepare_process
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.policy_file import PolicyFile, save_policy
from distrlcc.policy.spec import PolicySpec
from distrlcc.runtime.held_out import ACTINGS, Acting, HeldOut
from distrlcc.runtime.progress import Progress
from distrlcc.runtime.run_config import RunConfig
from distrlcc.runtime.run_directory import RunDirectory


def policy_spec(config: RunConfig, env: LinkVectorEnv) -> PolicySpec:
    """Return the spec of the policy that a run trains on an environment."""
    space = env.single_action_space
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    return PolicySpec(
        observation=config.env.observation,
        observation_size=env.batch.observation_size,
        action=config.env.action,
        action_kind="discrete" if discrete else "continuous",
        action_size=int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 1,
        kind=config.network.kind,
        hidden=config.network.hidden,
        activation=config.network.activation,
        step_ms=config.env.step_ms,
        interval_rtts=config.env.interval_rtts or None,
    )


def build_learner(config: RunConfig, spec: PolicySpec) -> Learner:
    """Return the learner that a run's configuration has a section for."""
    if config.ppo is not None:
        return PPO(config.ppo, spec, config.seed)
    assert config.dagger is not None
    return Dagger(config.dagger, spec, config.seed)


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
    best_queueing_delay: float = 0.0
    """In base RTTs."""


class Stopper:
    """Turns the first Ctrl-C, SIGTERM or SIGHUP into a request; a second one interrupts at once."""

    def __init__(self) -> None:
        """Take nothing; enter the context to listen."""
        self.signal = 0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Stopper:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number


class Trainer:
    """A run's parts, set up from its configuration, with one state to save and load."""

    def __init__(self, config: RunConfig) -> None:
        """Build environment, learner and collector.

        Raises:
            ConfigError: Something in the configuration does not exist or fit.
            TraceError: A trace cannot be read.
        """
        prepare_process()
        self.config = config
        self.env = LinkVectorEnv(
            config.num_envs, config.env, seed=config.seed, with_labels=config.dagger is not None
        )
        self.spec = policy_spec(config, self.env)
        self.learner = build_learner(config, self.spec)
        self.collector = Collector(self.env, self.spec, config.seed)
        self.rollout = Rollout.allocate(
            self.spec, config.rollout_length, config.num_envs, config.sequence_length
        )
        self.held_out = HeldOut(config, self.spec)
        imitates = config.dagger is not None
        self.alarm = CollapseAlarm(float("-inf")) if imitates else CollapseAlarm()
        self.counters = Counters()
        self.best: Weights | None = None

    def iterate(self) -> tuple[dict[str, float], CollectStats]:
        """Collect one rollout and learn from it."""
        begin = time.perf_counter()
        self.collector.set_weights(self.learner.weights())
        stats = self.collector.collect(self.rollout)
        collected = time.perf_counter()
        metrics = self.learner.update(self.rollout)
        seconds = time.perf_counter() - begin
        counters = self.counters
        counters.update += 1
        counters.steps += self.rollout.samples
        counters.episodes += int(stats.episodes)
        return {
            **stats.metrics(),
            **metrics,
            "steps": float(counters.steps),
            "steps_per_second": self.rollout.samples / seconds,
            "share_environment": stats.environment_seconds / seconds,
            "share_inference": stats.inference_seconds / seconds,
            "share_update": (seconds - (collected - begin)) / seconds,
        }, stats

    def score(self) -> dict[str, float]:
        """Score the present weights on held-out links, and keep them if they are the best."""
        weights = self.learner.weights()
        scores = self.held_out.score(weights)
        acting = max(ACTINGS, key=lambda a: scores[a].reward)
        if scores[acting].reward > self.counters.best_score:
            self.counters.best_score = scores[acting].reward
            self.counters.best_update = self.counters.update
            self.counters.best_acting = acting
            self.counters.best_utilisation = scores[acting].utilisation
            self.counters.best_queueing_delay = scores[acting].queueing_delay
            self.best = weights
        return {
            f"held_out_{name}_{acting}": value
            for acting, score in scores.items()
            for name, value in asdict(score).items()
        }

    def policy(self) -> PolicyFile:
        """Return the best policy so far, acting in the better way."""
        counters, weights = self.counters, self.best or self.learner.weights()
        notes = {
            "recipe": self.config.recipe,
            "seed": self.config.seed,
            "update": counters.best_update,
            "steps": counters.steps,
            "held_out_reward": counters.best_score,
        }
        return PolicyFile(self.spec, weights.arrays, counters.best_acting, notes)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a bit-identical resume needs."""
        best = None
        if self.best is not None:
            best = {"version": self.best.version, "arrays": dict(self.best.arrays)}
        return {
            "learner": self.learner.state_dict(),
            "collector": self.collector.state_dict(),
            "env": self.env.state_dict(),
            "alarm": self.alarm.state_dict(),
            "counters": asdict(self.counters),
            "best": best,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same configuration."""
        self.learner.load_state_dict(state["learner"])
        self.collector.load_state_dict(state["collector"])
        self.env.load_state_dict(state["env"])
        self.alarm.load_state_dict(state["alarm"])
        self.counters = Counters(**state["counters"])
        if state["best"] is not None:
            self.best = Weights(int(state["best"]["version"]), state["best"]["arrays"])


def train(trainer: Trainer, run: RunDirectory, progress: Progress, *, resume: bool) -> int:
    """Train until the steps, the time or the user say stop.

    Args:
        trainer: What to train.
        run: Where everything is written; closed by the caller.
        progress: Where the user looks.
        resume: Go on from the run's newest checkpoint.

    Returns:
        0, or the number of the signal that ended the run early, after everything was saved.

    Raises:
        CheckpointError: The checkpoint cannot be resumed.
        ConfigError: The steps are done already.
        OutputError: The run directory cannot be written, or another process trains it.
    """
    config, counters = trainer.config, trainer.counters
    run.lock()
    if resume:
        loaded = run.load()
        if loaded is not None:
            trainer.load_state_dict(loaded[0])
            counters = trainer.counters
        if counters.steps >= config.total_steps:
            raise ConfigError(
                f"{run.path} has done {counters.steps} of {config.total_steps} steps already; "
                "go on with --set total_steps=N"
            )
        run.rewind(counters.update)
    shown: str | None = None
    begin = time.perf_counter() - counters.seconds
    with Stopper() as stopper:
        while counters.steps < config.total_steps and not stopper.signal:
            if config.max_seconds and counters.seconds >= config.max_seconds:
                break
            metrics, stats = trainer.iterate()
            counters.seconds = metrics["seconds"] = time.perf_counter() - begin
            alarm = trainer.alarm.check(stats)
            shown = alarm or shown
            if counters.update % config.held_out.every == 0:
                best_before = counters.best_update
                metrics |= trainer.score()
                if counters.best_update != best_before:
                    run.save(trainer.state_dict(), best=True)
                    save_policy(run.policy_path, trainer.policy())
            run.log(counters.update, {**metrics, **({"alarm": alarm} if alarm else {})})
            progress.update(metrics, alarm=shown)
            if counters.update % config.checkpoint_every == 0:
                run.save(trainer.state_dict())
        # Saved before the closing score, so that stopping and resuming changes nothing.
        run.save(trainer.state_dict())
        trainer.score()
        if counters.best_update == counters.update:
            run.save(trainer.state_dict(), best=True)
        save_policy(run.policy_path, trainer.policy())
    return stopper.signal
