"""The names of ``import distrlcc`` for a notebook or a program: train, evaluate, act, simulate.

Each name is found when it is first used, so that none loads torch or matplotlib for the others.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distrlcc.config import check_least, checked_seed, flat, override, to_toml, typed
from distrlcc.env.config import EnvConfig
from distrlcc.errors import ConfigError, in_python, once, reading, unknown_name
from distrlcc.evaluation.contender import Contender, contender_from_file, contender_named, distinct
from distrlcc.evaluation.runner import evaluate as run_links
from distrlcc.evaluation.runner import links_of
from distrlcc.evaluation.scores import METRICS, SchemeScores, Series, shown
from distrlcc.evaluation.summary import summarise
from distrlcc.extras import naming_extras, require
from distrlcc.plugins import having, short
from distrlcc.policy.spec import DEFAULT, PolicySpec
from distrlcc.runs.metrics_log import Follower
from distrlcc.runs.options import GroupOptions, Node, RunOptions
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.trackers import Trackers
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.sim.simulator import BROKEN, Simulator
from distrlcc.types import NANOSECONDS, PACKET_BYTES

if TYPE_CHECKING:
    import pandas
    import polars

    from distrlcc.env.vector import LinkEnv, LinkVectorEnv
    from distrlcc.runs.run_config import RunConfig


class Policy:
    """A trained policy that acts for N senders, and remembers what each of them has seen."""

    def __init__(self, contender: Contender, seed: int = 0) -> None:
        """Take a policy; `load_policy` reads one. The seed names what a sampling one draws."""
        assert contender.policy is not None
        self.contender, self._numpy, self._seed = contender, contender.policy, seed
        self._count, self._actor = 0, contender.actor(0, seed)

    @property
    def spec(self) -> PolicySpec:
        """Its inputs, outputs and network."""
        return self._numpy.spec

    @property
    def preference(self) -> float | None:
        """From 0 (throughput) to 1 (delay); None where it has none."""
        return self.contender.preference

    @property
    def path(self) -> Path:
        """Its file."""
        assert self.contender.path is not None
        return self.contender.path

    def reset(self, senders: NDArray[np.bool_] | None = None) -> None:
        """Forget what senders have seen: those that are True in ``[N]``, or all."""
        if senders is None:
            self._count = 0
            return
        senders = np.asarray(senders)
        if senders.dtype != bool or senders.shape != (self._count or senders.size,):
            raise ValueError(f"senders {senders}: expected {self._count or 'N'} booleans")
        if self._count:  # before its first action nobody has seen anything
            self._actor.reset(senders)

    def act(self, observation: Any) -> NDArray[Any]:
        """Return the actions ``[N]`` or ``[N, A]`` for observations ``[N, D]``.

        One observation ``[D]`` gives one action. Another N than before begins anew. Where the
        policy has a preference, that is read in place of the last of the D values.

        Raises:
            ValueError: D is not what the policy was trained on, or a value is masked, or no finite
                number of 32 bits.
        """
        given, size = np.asarray(observation), self.spec.observation_size
        if given.dtype.kind not in "fiu":
            raise ValueError(f"observations of type {given.dtype}; expected real numbers")
        parts = observation if isinstance(observation, list | tuple) else [observation]
        if any(map(np.ma.is_masked, parts)):  # an array would have what the mask hides
            raise ValueError("observations with masked values; a policy needs all, fill them")
        with np.errstate(over="ignore"):
            rows = np.atleast_2d(given.astype(np.float32))
        if rows.ndim != 2 or rows.shape[1] != size:
            raise ValueError(f"observations of shape {rows.shape}; expected [N, {size}]")
        if not np.isfinite(rows).all():
            raise ValueError(
                "observations with values that are not finite in 32 bits; a policy would keep them"
            )
        if len(rows) != self._count:
            self._count, self._actor = len(rows), self.contender.actor(len(rows), self._seed)
        if self.contender.preference is not None:  # the last input
            rows = np.concatenate([rows[:, :-1], np.full((len(rows), 1), self.preference)], axis=1)
            rows = rows.astype(np.float32)
        actions = np.asarray(self._actor.act(rows))
        return actions[0] if np.ndim(observation) == 1 else actions

    def __repr__(self) -> str:
        return f"Policy({self.contender.name!r}, {self.spec.observation!r}, {self.spec.kind!r})"


@in_python
@typed
def load_policy(
    name: str | Path = DEFAULT, *, prefer: float | None = None, seed: int = 0
) -> Policy:
    """Read a policy: a file, a run's folder, or the name of a shipped one.

    Args:
        name: Which; 'distrlcc policies' lists those that are shipped.
        prefer: From 0 (throughput) to 1 (delay), for a policy that has a preference.
        seed: Names the draws of a policy that samples its actions.

    Raises:
        PolicyFileError: It is no whole policy.
        ConfigError: It has no preference to set.
    """
    return Policy(contender_from_file(str(name), prefer), checked_seed(seed))


@in_python
@typed
def make_env(policy: Policy | None = None, **changes: Any) -> LinkEnv:
    """Return a `gymnasium.Env` of one link at a time, with a policy's observations and actions.

    ``changes`` are fields of `distrlcc.env.config.EnvConfig`, such as ``suites=("dynamic",)``.
    """
    with naming_extras():
        from distrlcc.env.vector import LinkEnv  # noqa: PLC0415 - Gymnasium is an extra

    return LinkEnv(_spaces(policy), **(_preferences(policy) | changes))


@in_python
@typed
def make_vec(num_envs: int = 256, policy: Policy | None = None, **changes: Any) -> LinkVectorEnv:
    """Return a `gymnasium.vector.VectorEnv` of N links, all simulated by one call.

    Args:
        num_envs: N.
        policy: Whose observations and actions it has; None: those of `EnvConfig`.
        changes: Fields of `distrlcc.env.config.EnvConfig`, or of `LinkVectorEnv`, such as
            ``split="test"``.
    """
    with naming_extras():
        from distrlcc.env.vector import make_vector_env  # noqa: PLC0415 - Gymnasium is an extra

    return make_vector_env(num_envs, _spaces(policy), **(_preferences(policy) | changes))


def _spaces(policy: Policy | None) -> EnvConfig | None:
    return None if policy is None else policy.contender.env_config()


def _preferences(policy: Policy | None) -> dict[str, Any]:
    preference = None if policy is None else policy.preference
    return {} if preference is None else {"preferences": preference}


class Callbacks(Protocol):
    """Methods that `train` calls; derive from it and write those that are wanted.

    They are called in the process that calls `train`, whichever is rank 0. An exception of theirs
    ends the training: the run is saved, and `train` raises it. If one returns False the training
    ends, too, and `train` returns its policy. `on_score` does not hear of the last scoring, at the
    end.
    """

    def on_begin(self, config: Mapping[str, Any]) -> None:
        """Take the run's configuration by key, as ``{"ppo.lr": 0.001, …}``."""
        return

    def on_update(self, metrics: Mapping[str, Any]) -> bool | None:
        """Take an update's metrics, as a line of metrics.jsonl has them; ``steps`` among them."""
        return None

    def on_score(self, scores: Mapping[str, Any]) -> bool | None:
        """Take the scores on links that are held out, after an update that was scored."""
        return None

    def on_end(self, policy: Policy) -> None:
        """Take the run's best policy."""
        return

    def on_stop(self) -> None:
        """Hear that a signal or an error ended the training; `on_end` is not called then."""
        return


_HEARS = "on_begin on_update on_score on_end on_stop"


class _Hearing:
    """Tells callbacks what is written to a run's metrics, by whichever process."""

    def __init__(self, out: Path, callbacks: Sequence[Callbacks]) -> None:
        self._follower, self._callbacks = Follower(out / "metrics.jsonl"), callbacks
        self._follower.news()  # of before a resume
        self.ends = False  # whether one has returned False
        self.raised: BaseException | None = None  # by one

    def __call__(self, stopper: Stopper) -> None:
        for row in self._follower.news():
            hears = "on_update" if "steps" in row else "on_score"
            try:
                for each in self._callbacks if not self.raised else ():
                    said: Any = getattr(each, hears)(row)
                    self.ends |= isinstance(said, bool | np.bool_) and not said
            except KeyboardInterrupt:  # Ctrl-C a second time
                raise
            except BaseException as error:
                self.raised = error
        if self.ends or self.raised:
            stopper.request(signal.SIGINT)


@in_python
@typed
def train(
    recipe: str | None = None,
    *,
    out: str | Path,
    resume: bool = False,
    callbacks: Sequence[Callbacks] = (),
    show: bool = True,
    processes: int = 1,
    engine: str = "processes",
    nodes: Sequence[Sequence[int | str]] = (),
    address: str = "",
    wandb: str = "",
    mlflow: str = "",
    **overrides: Any,
) -> Policy:
    """Train a policy and return the best one.

    Args:
        recipe: A name of 'distrlcc list recipes'; a run that goes on has its own.
        out: The run's folder; see docs/training.md.
        resume: Go on with the run there.
        callbacks: What hears of updates, scores and the end, in this process.
        show: Whether progress is shown.
        processes: Equal ones that share the environments; 1 without Ray: this one alone.
        engine: What runs them, ``processes`` of this machine or ``ray``.
        nodes: Workers act for a trainer, over torch RPC or on Ray: their links, a list for each
            machine, as ``[[0, 1], [2]]``; without Ray there is one.
        address: Of a Ray cluster, ``auto`` or HOST:PORT; default: Ray is started for this run.
        wandb: Project of Weights & Biases to log to; ``auto``: its variables name it.
        mlflow: URI of MLflow's server or store to log to; ``auto``: its variables name it.
        overrides: Keys of the configuration; those with a dot as ``**{"ppo.lr": 1e-3}``.

    Raises:
        DistrlccError: Something does not fit, cannot be written, or other processes are gone.
        KeyboardInterrupt: A signal ended it; it is saved, and ``resume`` goes on.
    """
    with naming_extras():
        from distrlcc.recipes.registry import recipe as named  # noqa: PLC0415 - torch is an extra
        from distrlcc.runs.run_config import RunConfig  # noqa: PLC0415
        from distrlcc.runs.run_directory import RunDirectory, resumed  # noqa: PLC0415
        from distrlcc.storage import say  # noqa: PLC0415

    # Values as --set takes them; JSON's are TOML's. A run that goes on has its own configuration.
    place = Path(out)
    began = (
        RunDirectory.read_config(place, RunConfig, say) if resume else named(recipe or "quickstart")
    )
    if recipe is not None and (own := named(recipe).recipe) != began.recipe:
        raise ConfigError(f"recipe is {own!r}, {place} is of {began.recipe!r}; leave recipe out")
    if nodes:
        overrides["actors.nodes"] = nodes
    texts = {
        k: "none" if v is None else json.dumps(v, default=_plain, ensure_ascii=False)
        for k, v in overrides.items()
    }
    config = override(began, [f"{key}={text}" for key, text in texts.items()])
    config = resumed(config, place) if resume else config
    # What does not fit together.
    if engine not in ("processes", "ray"):
        raise unknown_name("engine", engine, ("processes", "ray"))
    check_least(1, processes=processes)
    if nodes and processes > 1:
        raise ConfigError("processes with nodes: one worker is started for each of nodes")
    if address and engine != "ray":
        raise ConfigError("address needs engine='ray'")
    with reading(ConfigError, "callbacks: expected a list of distrlcc.Callbacks"):
        callbacks = [having(_HEARS)(each) for each in callbacks]
    hearing, trackers = _Hearing(place, callbacks), Trackers(wandb, mlflow)
    options = RunOptions(place, resume, False, "", trackers, show, hearing)
    try:
        for each in callbacks:
            each.on_begin(flat(to_toml(config)))
        code = _start(config, options, processes, engine == "ray", address, bool(nodes))
        hearing(Stopper())  # what came last
        if hearing.raised or (code and not hearing.ends):
            raise hearing.raised or KeyboardInterrupt
        policy = load_policy(place)
    except BaseException:
        for each in callbacks:
            each.on_stop()
        raise
    for each in callbacks:
        each.on_end(policy)
    return policy


def _start(
    config: RunConfig, options: RunOptions, processes: int, ray: bool, address: str, acts: bool
) -> int:
    """Train as the commands do; return 0, or 128 and the number of the signal that ended it."""
    with naming_extras():
        from distrlcc.actors.start import start_actors  # noqa: PLC0415 - torch is an extra
        from distrlcc.cluster import training  # noqa: PLC0415
        from distrlcc.parallel.start import start_node  # noqa: PLC0415
        from distrlcc.runs.run_state import env_run  # noqa: PLC0415
        from distrlcc.runs.start import train_alone  # noqa: PLC0415

    group = GroupOptions()
    if ray and acts:
        return training.train_actors_on_ray(config, options, address)
    if ray:
        return training.train_ranks_on_ray(config, options, group, address, processes=processes)
    if acts:
        return start_actors(config, options, group, Node())
    if processes > 1:
        return start_node(config, options, group, processes=processes)
    return train_alone(env_run(config), options)


def _plain(value: object) -> Any:
    """Return what JSON can hold of a value; of NumPy's as they are."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


@dataclass(frozen=True, repr=False)
class Scores:
    """Scores of senders: a column for each metric, a row for each sender, link and run."""

    columns: dict[str, NDArray[Any]]
    """``sender``, ``link``, ``run``, ``counts`` and the keys of docs/metrics.md, each ``[R]``."""
    raw: tuple[SchemeScores, ...]
    series: tuple[Series, ...]
    links: str = ""

    @property
    def void(self) -> list[str]:
        """A sentence on each run that does not count: the column ``counts`` is False there."""
        return [str(run) for one in self.raw for run in one.void()]

    def __getitem__(self, column: str) -> NDArray[Any]:
        if column not in self.columns:
            raise unknown_name("column", column, self.columns)
        return self.columns[column]

    def __repr__(self) -> str:
        used = self.mean("utilisation")
        power = ", ".join(
            f"{shown(name)} {value:.3f} with {used[name]:.0%} of the link"
            for name, value in self.mean().items()
        )
        void = f"; {len(self.void)} do not count: {self.void[0]}" if self.void else ""
        return f"Scores({len(self['link'])} runs on {self.links}; power: {power}{void})"

    def mean(self, metric: str = "power") -> dict[str, float]:
        """Return each sender's mean over the links on which all count; NaN without such runs."""
        keys = [each.key for each in METRICS]
        if metric not in keys:
            raise unknown_name("metric", metric, keys)
        found = {s.scheme: s.overall for s in summarise(self.raw).schemes}
        return {one.scheme: found[one.scheme][metric].mean for one in self.raw}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas frame."""
        require("pandas")
        import pandas  # noqa: PLC0415 - not required

        return pandas.DataFrame(self.columns)

    def to_polars(self) -> polars.DataFrame:
        """Return a polars frame."""
        require("polars")
        import polars  # noqa: PLC0415 - not required

        return polars.DataFrame(self.columns)


@in_python
@typed
def evaluate(
    *senders: str | Path | Policy,
    suite: str = "",
    traces: str | Path | Sequence[str | Path] = (),
    links: int | None = None,
    seeds: int = 1,
) -> Scores:
    """Measure policies and schemes in the simulator.

    Args:
        senders: Policies, their names or files, and names of schemes; none: the policy `DEFAULT`
            beside CUBIC, BBRv1, Vegas and Copa.
        suite: Links, as 'distrlcc list suites' names them, their split ``test``; a TOML file, or a
            folder of traces; default: ``random``, unless there are traces.
        traces: mahimahi's trace files, run with 20 ms one way and a queue of 100 packets.
        links: At most so many of the suite.
        seeds: Runs of each link.

    Raises:
        DistrlccError: There is no such sender, suite or trace, or one is there twice.
    """
    check_least(1, links=links, seeds=seeds)
    named = [one if isinstance(one, Policy) else str(one) for one in senders]
    contenders = distinct(
        one.contender if isinstance(one, Policy) else contender_named(one)
        for one in once(named) or (DEFAULT, "cubic", "bbr", "vegas", "copa")
    )
    paths = [str(one) for one in ([traces] if isinstance(traces, str | Path) else traces)]
    suite = suite or ("" if paths else "random")
    scenarios = links_of(suite, paths, links)
    drawn = tuple(range(min(2, len(scenarios))))
    found = [run_links(c, scenarios, seeds=seeds, series_links=drawn) for c in contenders]
    raw = tuple(scores for scores, _ in found)
    series = tuple(one for _, several in found for one in several)
    # A row for each sender, link and run.
    shape = len(raw), len(scenarios), seeds
    who, where, run = (axis.ravel() for axis in np.indices(shape))
    columns: dict[str, NDArray[Any]] = {
        "sender": np.array([one.scheme for one in raw])[who],
        "link": np.array([scenario.name for scenario in scenarios])[where],
        "run": run,
    }
    columns["counts"] = np.stack([one.ran for one in raw]).ravel()
    columns |= {m.key: np.stack([s.figures[m.key] for s in raw]).ravel() for m in METRICS}
    scores = Scores(columns, raw, series, ", ".join([suite, *paths]).strip(", "))
    if scores.void:
        warnings.warn(f"{len(scores.void)} runs do not count: {scores.void[0]}", stacklevel=2)
    return scores


@in_python
@typed
def report(scores: Scores, folder: str | Path) -> Path:
    """Write an evaluation's report into a folder, and return its page; raises OutputError."""
    with naming_extras():
        from distrlcc.evaluation.report import ReportInfo, write_report  # noqa: PLC0415 - an extra
    from distrlcc.runs.identity import package_versions  # noqa: PLC0415

    info = ReportInfo(scores.links, shlex.join(["python", *sys.argv]), package_versions())
    return write_report(Path(folder), scores.raw, scores.series, info)


@dataclass(frozen=True)
class FlowResult:
    """A simulated flow in K steps; arrays ``[K]``."""

    scheme: str
    time_s: NDArray[np.float64]
    """Ends of the steps."""
    throughput_mbps: NDArray[np.float64]
    """Throughput of acknowledged packets."""
    rtt_ms: NDArray[np.float64]
    """Mean over the packets that the step acknowledged; NaN: none."""
    lost: NDArray[np.float64]
    """Packets found lost, less those of before that came after all."""
    cwnd: NDArray[np.float64]
    """Window at the step's end, packets."""


_MOST_STEPS = 1_000_000


@in_python
@typed
def simulate(
    link: Link, *schemes: str | Flow, seconds: float = 10.0, step_ms: float = 100.0, seed: int = 0
) -> list[FlowResult]:
    """Run schemes' flows over a link and return what each did.

    Args:
        link: The link.
        schemes: Flows, or the names of their schemes; 'distrlcc list schemes' has them.
        seconds: For how long.
        step_ms: Length of a step of the result; the last one may be shorter.
        seed: Of random losses.

    Raises:
        ConfigError: A flow has no scheme of its own, or an argument does not fit.
    """
    flows = tuple(Flow(one) if isinstance(one, str) else one for one in schemes or ("cubic",))
    for name, value, low, high in (("seconds", seconds, 0.1, 1e5), ("step_ms", step_ms, 1e-6, 1e6)):
        if not low <= value <= high:
            raise ConfigError(f"{name} is {value!r}; expected a number from {low:g} to {high:g}")
    if 1e3 * seconds / step_ms > _MOST_STEPS:
        raise ConfigError(f"{seconds} s are more than {_MOST_STEPS} steps of {step_ms} ms")
    if any(flow.scheme == "agent" for flow in flows):
        raise ConfigError("simulate has schemes alone; evaluate runs policies")
    ends = np.append(np.arange(step_ms, 1e3 * seconds * (1 - 1e-9), step_ms), 1e3 * seconds)
    simulator = Simulator(1, len(flows))
    simulator.load(0, Scenario("simulate", link, flows, duration_s=seconds, seed=seed))
    rows = []
    for step in np.diff(np.rint(1e6 * ends), prepend=0.0).astype(int).tolist():
        simulator.advance(step)
        for k in simulator.broken():
            raise ConfigError(f"flow {k}, {short(flows[k].scheme)}: {BROKEN}; mend it")
        stats = simulator.stats()
        rtt = 1e3 * stats.rtt_sum / np.where(stats.acked > 0, stats.acked, np.nan)
        rate = stats.acked / stats.duration * 8e-6 * PACKET_BYTES
        now = np.full(len(flows), simulator.links[0, col.NOW] / NANOSECONDS)
        rows.append((now, rate, rtt, stats.net_lost, stats.cwnd))
    columns = np.array(rows)  # [K, 5, flows]
    return [FlowResult(flow.scheme, *columns[:, :, k].T) for k, flow in enumerate(flows)]
