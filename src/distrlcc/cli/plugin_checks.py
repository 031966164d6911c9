"""What `distrlcc check plugin` runs: each check returns its speed, or raises ValueError."""

import inspect
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from distrlcc.control.schemes import SchemeController
from distrlcc.control.state import SCHEMES, STATE_SIZE, Scheme
from distrlcc.env.actions import ACTIONS
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.env.rewards import REWARDS, RewardConfig
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.learn.config import LEARNERS, PPOConfig
from distrlcc.plugins import Registry, is_reference, load
from distrlcc.policy.numpy_policy import NumpyNetwork
from distrlcc.policy.spec import NETWORKS, PolicySpec, expected_shapes
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_config import NetworkConfig, RunConfig
from distrlcc.sim import layout as col
from distrlcc.sim.check import compare, random_script
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.sim.simulator import Simulator
from distrlcc.sim.suites import SUITES, Suite, load_suite
from distrlcc.tune.report import Report, Segment
from distrlcc.tune.space import with_values
from distrlcc.tune.tune_config import EXPLORERS, STOPPERS
from distrlcc.types import Ack

if TYPE_CHECKING:
    from distrlcc.runs.run_state import RunState

N, _SCRIPTS, _REPEATS = 256, 20, 200
_VALUES = {"ppo.lr": 1e-3, "ppo.num_epochs": 2}
REGISTRIES: tuple[Registry[Any], ...] = (
    *(SUITES, SCHEMES, OBSERVATIONS, ACTIONS, REWARDS, NETWORKS),
    *(LEARNERS, EXPLORERS, STOPPERS),
)
"""All tables of what a user may bring."""


def kind_of(reference: str) -> str:
    """Return the kind that a name is registered as, or that a reference's thing looks like."""
    # What installed packages register; a name of ours stays ours.
    theirs = {(name, r.kind) for r in REGISTRIES for name in r.registered if name not in r}
    kinds = sorted(kind for name, kind in theirs if name == reference)
    if len(kinds) > 1:
        raise ConfigError(f"{reference} is registered as {' and '.join(kinds)}: say --contract")
    if kinds:
        return kinds[0]
    if theirs and not is_reference(reference):
        raise unknown_name("plug-in", reference, [name for name, _ in theirs])
    # What it looks like.
    found, _ = load("plugin", reference)
    marks = {"learner": "update load_weights", "observation": "observe size"}
    marks |= {"action": "apply encode", "network": "module step"}
    if isinstance(found, Suite | Scheme):
        return "suite" if isinstance(found, Suite) else "scheme"
    for kind, names in marks.items():
        if all(hasattr(found, name) for name in names.split()):
            return kind
    try:
        count = len(inspect.signature(found).parameters)
    except (TypeError, ValueError):  # no function, or none of Python's
        count = 0
    if count not in (2, 3):
        raise ConfigError(
            f"plugin {reference}: what is it? say --contract, such as --contract reward"
        )
    return "suite" if count == 2 else "reward"


def _require(fine: object, problem: str) -> None:
    if not fine:
        raise ValueError(problem)


def _same(some: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return all(np.array_equal(some[name], others[name]) for name in some)


def _speed(what: str, *works: Callable[[], Any]) -> str:
    times = []
    for work in works:
        work()
        begin = time.perf_counter()
        for _ in range(_REPEATS):
            work()
        times.append(f"{(time.perf_counter() - begin) / _REPEATS * 1e6:.0f} µs")
    return f"{times[0]} for {what}" + "".join(f" (ours: {each})" for each in times[1:])


def _in_env(config: EnvConfig) -> LinkBatch:
    """Check the environment with what a configuration names; return links after some steps."""
    from distrlcc.env.contract import check  # not of a sender's installation

    problem = check(replace(config, episode_s=0.3))
    _require(problem is None, str(problem))
    suite = load_suite(config.suites[0])
    batch = LinkBatch(N, config, n_flows=suite.most_flows)
    for n in range(N):
        batch.load(n, suite.scenario("train", n))
    for _ in range(10):
        batch.step(batch.labels())
    cwnd, pacing = batch.held()
    _require((cwnd >= 1).all() and (pacing >= 0).all(), "a window is below 1, or a rate below 0")
    return batch


def _reward(reference: str) -> str:
    paid, usual = RewardConfig(reference), RewardConfig()
    batch = _in_env(EnvConfig(reward=paid))
    theirs, ours = (partial(REWARDS[c.name], batch.newest, batch.view(), c) for c in (paid, usual))
    return _speed(f"a step of {N} senders", theirs, ours)


def _observation(reference: str) -> str:
    config = EnvConfig(observation=reference)
    batch = _in_env(config)
    theirs, again = batch.observations, OBSERVATIONS[config.observation](N)
    again.load_state_dict(theirs.state_dict())
    seen = batch.newest
    same = np.array_equal(theirs.observe(seen), again.observe(seen))
    _require(same, "load_state_dict does not go on where state_dict was taken")
    ours = OBSERVATIONS["scale-free"](N)
    return _speed(f"a step of {N} senders", *(partial(o.observe, seen) for o in (theirs, ours)))


def _action(reference: str) -> str:
    batch = _in_env(EnvConfig(action=reference))
    return _speed(f"the expert's labels of {N} senders", batch.labels)


def _suite(reference: str) -> str:
    suite = load_suite(reference)
    drawn, again = (
        {split: [suite.scenario(split, k) for k in range(8)] for split in ("train", "test")}
        for _ in range(2)
    )
    _require(drawn == again, "the same split and index gave another link")
    links = [[scenario.link for scenario in each] for each in drawn.values()]
    _require(links[0] != links[1], "train and test have the same links")
    agents = max(sum(f.scheme == "agent" for f in s.flows) for s in drawn["train"])
    if agents == 1:
        _in_env(EnvConfig(suites=(reference,)))
    return _speed("a link", partial(suite.scenario, "train", 7))


def _scheme(reference: str) -> str:
    pinned = SCHEMES.pinned(reference)
    _check_bounds(pinned)  # first, as the simulator's memory is at its mercy
    # The simulator's kernel beside the sender of real packets.
    for number in range(_SCRIPTS):
        script = random_script(0, number)
        first, *others = script.scenario.flows
        flows = replace(first, scheme=pinned, cwnd=None, pacing_mbps=None), *others
        problem = compare(replace(script, scenario=replace(script.scenario, flows=flows)))
        _require(problem is None, f"simulator and sender differ: {problem}")
    took, usual = (_nanoseconds(scheme) for scheme in (pinned, "cubic"))
    return f"{took:.0f} ns for a packet on a full link (cubic: {usual:.0f} ns)"


def _check_bounds(scheme: str) -> None:
    """Feed a scheme losses and silence, between rows that are not its own."""
    rows = np.full((3, STATE_SIZE), 7.0)
    controller: Any = SchemeController(scheme)
    controller.state = rows[1]
    controller.begin(now=0)
    rng, now, sent = np.random.default_rng(0), 0, 10
    for seq in range(5000):
        now += int(rng.integers(1, 10_000_000))
        rtt, lost = int(rng.integers(1, 10**9)), int(rng.random() < 0.01)
        rate = float(rng.uniform(1.0, 1e4))
        ack = Ack(rtt, seq, sent, lost, sent - seq - 1, seq + 1, 0, rate)
        controller.on_ack(ack, now=now)
        if rng.random() < 0.001:
            controller.on_timeout(now=now, sent=sent)
        cwnd, pacing = controller.cwnd, controller.pacing_rate
        fits = 1.0 <= cwnd < 1e9 and 0.0 <= pacing < 1e12
        what = "it raised, or set a window or rate that is none (0 to 1e12), within"
        _require(fits, f"s[CWND] is {cwnd}, s[PACING] {pacing}: {what} {seq + 1} ACKs")
        sent = max(sent, seq + 2 + int(cwnd))
    _require((rows[[0, 2]] == 7.0).all(), "it wrote beyond its row")


def _nanoseconds(scheme: str) -> float:
    link = Link(rate_mbps=100.0, delay_ms=10.0, queue_packets=200)
    simulator = Simulator(16)
    for n in range(16):
        simulator.load(n, Scenario("speed", link, (Flow(scheme),)))
    simulator.advance(500_000_000)
    begin, before = time.perf_counter(), simulator.flows[:, col.SENT].sum()
    simulator.advance(3_000_000_000)
    packets = max(simulator.flows[:, col.SENT].sum() - before, 1)
    return float((time.perf_counter() - begin) / packets * 1e9)


def _small_run(learner: str, updates: int = 0) -> "RunState":
    from distrlcc.runs.run_state import env_run
    from distrlcc.runs.train import iterate

    config = RunConfig(
        "check",
        num_envs=16,
        learner=learner,
        env=EnvConfig(episode_s=0.5),
        network=NetworkConfig(hidden=(16,)),
        ppo=PPOConfig(rollout_length=16, minibatch_size=128),
    )
    state = env_run(config)
    for _ in range(updates):
        figures, _ = iterate(state)
        _require(np.isfinite([*figures.values()]).all(), f"a metric is not finite: {figures}")
    return state


def _learner(reference: str) -> str:
    from distrlcc.runs.train import iterate

    pinned = LEARNERS.pinned(reference)
    fresh, state, again = (_small_run(pinned, updates) for updates in (0, 2, 2))
    before, weights, others = (s.learner.weights().arrays for s in (fresh, state, again))
    version = state.learner.version
    _require(version == 2, f"version is {version} after 2 updates: call pass_over in each")
    _require(not _same(before, weights), "two updates changed no weight")
    _require(_same(weights, others), "the same seed gave other weights")
    # A third one, of a run that was resumed as well.
    fresh.load_state_dict(state.state_dict())
    for each in (state, fresh):
        iterate(each)
    weights, others = (s.learner.weights().arrays for s in (state, fresh))
    _require(_same(weights, others), "it does not resume bit for bit: see state_dict")
    runs = state, _small_run("", 1)
    found: list[Any] = [s.source.next(s.learner.weights(), None) for s in runs]
    works = (partial(s.learner.update, batch[0]) for s, batch in zip(runs, found, strict=True))
    return _speed("an update", *works)


def _network(reference: str) -> str:
    usual = PolicySpec("scale-free", 20, "multiplicative", "discrete", 6, hidden=(32, 32))
    theirs = replace(usual, kind=NETWORKS.pinned(reference))
    _check_network(theirs)
    _check_network(replace(theirs, action="rate", action_kind="continuous", action_size=1))
    acting = [NumpyNetwork(spec, _arrays(spec)) for spec in (theirs, usual)]
    obs = np.zeros((1, 20), np.float32)
    return _speed("a sender", *(partial(n.step, obs, n.initial_state(1)) for n in acting))


def _arrays(spec: PolicySpec) -> dict[str, Any]:
    from distrlcc.policy.network import build_network

    network, size = build_network(spec, 3), spec.observation_size
    arrays = {name: p.detach().numpy().copy() for name, p in network.named_parameters()}
    arrays["normalizer.mean"] = np.zeros(size, np.float32)
    return arrays | {"normalizer.std": np.ones(size, np.float32)}


def _check_network(spec: PolicySpec) -> None:
    import torch

    from distrlcc.policy.network import build_network

    # The arrays of a policy file.
    length, count = 5, 3
    network, arrays, expected = build_network(spec, 3), _arrays(spec), expected_shapes(spec)
    shapes = {name: array.shape for name, array in arrays.items()}
    _require(shapes == expected, f"shapes says {expected}, the module has {shapes}")
    _require(_same(arrays, _arrays(spec)), "the same seed gave other weights")
    # Torch over a sequence, with an episode that begins in its midst.
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(length, count, spec.observation_size)).astype(np.float32)
    starts = np.zeros((length, count), bool)
    starts[0], starts[3, 1] = True, True
    state = torch.zeros(spec.state_shape(count))
    head, values, _ = network(torch.from_numpy(obs), torch.from_numpy(starts), state)
    sizes = tuple(head.shape), tuple(values.shape)
    _require(
        sizes == ((length, count, spec.action_size), (length, count)),
        f"the module's head and values are {sizes}",
    )
    (head.square().sum() + values.square().sum()).backward()
    idle = [n for n, p in network.named_parameters() if p.grad is None and n != "log_std"]
    _require(not idle, f"no gradient reaches {', '.join(idle)}")
    # NumPy, step by step.
    acting = NumpyNetwork(spec, arrays)
    memory = acting.initial_state(count)
    for t in range(length):
        memory[:, starts[t]] = 0.0
        acted, value, after = acting.step(obs[t], memory)
        memory = after.copy()
        for got, want in ((acted, head[t]), (value, values[t])):
            wanted = want.detach().numpy()
            same = got.shape == wanted.shape and np.allclose(got, wanted, atol=1e-4)
            _require(same, f"in step {t} NumPy has {got!r:.80}, torch {wanted!r:.80}")


def _explorer(reference: str) -> str:
    explored, again = (_seeded(EXPLORERS[reference], dict(_VALUES)) for _ in range(2))
    fits = isinstance(explored, dict) and explored.keys() == _VALUES.keys()
    _require(fits, f"of {_VALUES} it made {explored!r}: expected the same keys")
    try:
        with_values(recipe("quickstart"), explored)
    except ConfigError as error:
        raise ValueError(f"of {_VALUES} it made {explored}: {error}") from None
    _require(explored == again, f"of {_VALUES} it made {explored}, then {again}")
    return f"{_VALUES} became {explored}"


def _seeded(function: Callable[[Any], Any], given: Any) -> Any:
    """Call a function as the tuner does, which seeds Python's generator."""
    random.seed(0)
    return function(given)


def _stopper(reference: str) -> str:
    schedule = (Segment(0, 0, dict(_VALUES)),)
    report = Report(0, 20, 20_000, 0.5, 0.5, 0.9, 0.1, 0.0, "argmax", 10.0, schedule)
    said, again = (_seeded(STOPPERS[reference], report) for _ in range(2))
    _require(isinstance(said, bool | np.bool_), f"it said {said!r}: expected True or False")
    _require(said == again, f"of the same report it said {said}, then {again}")
    return f"it said {said}"


_ALL = (_reward, _observation, _action, _suite, _scheme, _learner, _network, _explorer, _stopper)
CHECKS: dict[str, Callable[[str], str]] = {each.__name__[1:]: each for each in _ALL}
"""Each kind's check."""
