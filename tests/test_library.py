"""What ``import distrlcc`` offers, used as a notebook would."""

import ast
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import distrlcc
from distrlcc import library
from distrlcc.env import vector
from distrlcc.env.config import EnvConfig
from distrlcc.env.vector import LinkEnv, LinkVectorEnv, make_vector_env
from distrlcc.errors import ConfigError, DistrlccError, PolicyFileError, in_python
from distrlcc.evaluation.contender import contender_from_scheme
from distrlcc.evaluation.scorecard import Benchmark
from distrlcc.evaluation.scores import METRICS
from distrlcc.library import Callbacks, evaluate, load_policy, make_env, make_vec, report, simulate
from distrlcc.library import train as train_recipe
from distrlcc.policy import policy_file
from distrlcc.runs.checkpoint import load_checkpoint
from distrlcc.storage import LATEST
from tests.trees import TINY


class Heard(Callbacks):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.updates: list[float] = []
        self.scores: list[Mapping[str, Any]] = []
        self.policies: list[Any] = []

    def on_update(self, metrics: Mapping[str, Any]) -> None:
        self.updates.append(metrics["steps"])

    def on_score(self, scores: Mapping[str, Any]) -> None:
        self.scores.append(dict(scores))

    def on_end(self, policy: Any) -> None:
        self.policies.append(policy)


def test_a_policy_is_trained_heard_of_resumed_and_used(tmp_path: Path) -> None:
    heard = Heard()
    policy = train_recipe("quickstart", out=tmp_path / "run", callbacks=[heard], show=False, **TINY)
    assert heard.updates == [128.0, 256.0, 384.0, 512.0]
    assert all("held_out_reward_argmax" in scores for scores in heard.scores)
    assert len(heard.scores) == 2
    assert heard.policies == [policy]
    again = Heard()
    train_recipe(out=tmp_path / "run", callbacks=[again], total_steps=640, resume=True, show=False)
    assert again.updates == [640.0]
    with pytest.raises(ConfigError, match=r"recipe is 'one', .* is of 'quickstart'; leave recipe"):
        train_recipe("one", out=tmp_path / "run", total_steps=768, resume=True)
    found = evaluate(policy, "cubic", links=2)
    assert set(found["sender"]) == {"run", "cubic"}
    page = report(found, tmp_path / "report")
    assert "cubic" in page.read_text()
    other = tmp_path / "other"
    with pytest.raises(ConfigError, match="unknown key"):
        train_recipe("quickstart", out=other, **dict[str, Any]({"ppo.none": 1}))
    for wrong, why in ((again, "not iterable"), ([print], "has no on_begin, on_update")):
        with pytest.raises(ConfigError, match=f"callbacks: expected a list of .* {why}"):
            train_recipe("quickstart", out=other, callbacks=wrong)  # type: ignore[arg-type]
    assert not other.exists()


class Raises(Callbacks):
    """Fails at the last update, or right after Ctrl-C."""

    def __init__(self, at: float, *, interrupts: bool) -> None:
        self.at, self.interrupts, self.heard = at, interrupts, list[str]()

    def on_update(self, metrics: Mapping[str, Any]) -> None:
        if metrics["steps"] == self.at:
            if self.interrupts:
                signal.raise_signal(signal.SIGINT)
                time.sleep(0.4)  # a second one soon after is the same key
            raise ArithmeticError

    def on_end(self, policy: Any) -> None:
        self.heard.append("end")

    def on_stop(self) -> None:
        self.heard.append("stop")


@pytest.mark.parametrize(("at", "interrupts"), [(512.0, False), (256.0, True)])
def test_what_a_callback_raises_is_raised_once_the_run_is_saved(
    at: float, interrupts: bool, tmp_path: Path
) -> None:
    raises, out = Raises(at, interrupts=interrupts), tmp_path / "run"
    with pytest.raises(ArithmeticError):
        train_recipe("quickstart", out=out, callbacks=[raises], show=False, **TINY)
    assert raises.heard == ["stop"]
    assert load_checkpoint(out / LATEST)["counters"]["steps"] == at
    train_recipe(out=out, resume=True, show=False, total_steps=np.int64(640))
    assert load_checkpoint(out / LATEST)["counters"]["steps"] == 640


def test_a_policy_acts_on_the_links_that_it_was_made_for(tmp_path: Path) -> None:
    policy = load_policy("one")
    env = make_vec(3, policy, suites=("slow",), seed=1)
    observation, _ = env.reset()
    for _ in range(20):
        observation, _, _, _, info = env.step(policy.act(observation))
    assert info["throughput_mbps"].shape == (3,)
    assert (info["utilisation"] <= 1.001).all()
    # One observation has one action, and another number of senders begins anew.
    assert np.ndim(policy.act(observation[0])) == 0
    with pytest.raises(ValueError, match="expected"):
        policy.act(observation[:, 1:])
    # Who has just begun has no past, and forgetting it before the first action changes nothing.
    file = replace(
        policy_file.load_policy(policy_file.find_policy("one")), acting="argmax"
    )  # draws nothing
    policy_file.save_policy(tmp_path / "likeliest.safetensors", file)
    fresh = load_policy(tmp_path / "likeliest.safetensors")
    fresh.reset(np.ones(3, bool))
    first = fresh.act(observation)
    fresh.act(observation)
    fresh.reset(np.array([True, False, True]))
    np.testing.assert_array_equal(fresh.act(observation)[[0, 2]], first[[0, 2]])
    with pytest.raises(PolicyFileError, match="nobody"):
        load_policy("nobody")
    single = make_env(policy, suites=("slow",))
    first, _ = single.reset(seed=1)
    _, _, _, _, said = single.step(int(policy.act(first)))
    assert {"throughput_mbps", "capacity_mbps", "loss", "queueing_delay_rtt"} <= said.keys()


def test_a_preference_is_what_a_policy_sees_and_does() -> None:
    windows = []
    for prefer in (0.0, 1.0):
        policy = load_policy("preference", prefer=prefer)
        env = make_vec(8, policy, suites=("random",), seed=1)
        observation, _ = env.reset()
        assert (observation[:, -1] == prefer).all()
        for _ in range(300):
            observation, _, _, _, info = env.step(policy.act(observation))
        windows.append(info["queueing_delay_rtt"].mean())
    assert windows[0] > windows[1]
    assert load_policy("preference", prefer=np.float32(0.5)).preference == 0.5  # type: ignore[arg-type]
    for wrong in (3.0, float("nan")):
        with pytest.raises(ConfigError, match=r"prefer is .*; expected 0 \(throughput\)"):
            load_policy("preference", prefer=wrong)


def test_policies_of_one_name_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    copy = tmp_path / "a" / "one.safetensors"
    copy.write_bytes(load_policy("one").path.read_bytes())
    found = evaluate("one", copy, load_policy("one"), links=2)
    assert list(found.mean()) == ["one", "one'", "one''"]
    assert len(set(found.mean().values())) == 1


def test_scores_are_a_table_and_a_frame() -> None:
    found = evaluate("cubic", "copa", suite="random", links=3, seeds=2)
    assert {len(column) for column in found.columns.values()} == {12}
    assert list(found.columns) == ["sender", "link", "run", "counts", *(m.key for m in METRICS)]
    means = found.mean("power")
    assert means["copa"] == pytest.approx(found["power"][found["sender"] == "copa"].mean())
    frame = found.to_pandas() if _has("pandas") else None
    if frame is not None:
        assert frame.groupby("sender")["power"].mean()["cubic"] == pytest.approx(means["cubic"])
    with pytest.raises(ConfigError, match="nobody"):
        evaluate("nobody")
    with pytest.raises(ConfigError, match="links is 0"):
        evaluate("cubic", links=0)
    with pytest.raises(ConfigError, match="unknown metric 'speed'"):
        found.mean("speed")
    with pytest.raises(ConfigError, match="did you mean suites"):
        make_vec(4, suite="random")
    with pytest.raises(ConfigError, match="expected Policy or None"):
        make_vec(4, "one")  # type: ignore[arg-type]
    assert repr(found).startswith("Scores(12 runs on random; power: cubic 0.")


def test_a_metric_that_no_run_has_is_not_a_number(tmp_path: Path) -> None:
    late = tmp_path / "late.trace"
    late.write_text("5000\n5001\n")  # nothing can be sent in the first second
    found = evaluate("cubic", traces=late)
    assert np.isnan(found.mean("first_second_utilisation")["cubic"])
    scores = Benchmark(str(late), is_trace=True).means(contender_from_scheme("cubic"))
    assert np.isnan(scores["first_second_utilisation"])


def _has(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def test_schemes_are_simulated_in_one_call() -> None:
    link = distrlcc.Link(rate_mbps=12.0, delay_ms=20.0, queue_packets=100)
    first, late = simulate(link, "cubic", distrlcc.Flow("bbr", start_s=2.0), seconds=6.0)
    assert (first.scheme, late.scheme) == ("cubic", "bbr")
    assert first.time_s[-1] == pytest.approx(6.0)
    total = first.throughput_mbps + late.throughput_mbps
    assert total[-20:].mean() == pytest.approx(12.0, rel=0.1)
    assert np.isnan(late.rtt_ms[0])
    assert late.throughput_mbps[:19].sum() == 0.0
    for step_ms, ends in ((400.0, [0.4, 0.8, 1.0]), (7000.0, [1.0]), (1000.0, [1.0])):
        (flow,) = simulate(link, seconds=1.0, step_ms=step_ms)
        assert flow.time_s == pytest.approx(ends)
    with pytest.raises(ConfigError, match="evaluate"):
        simulate(link, "agent")
    for wrong in (0.0, -5.0, float("nan")):
        with pytest.raises(ConfigError, match="step_ms is"):
            simulate(link, step_ms=wrong)
    for outside in (0.05, 2e5):
        with pytest.raises(ConfigError, match=r"seconds is .* from 0\.1 to 100000"):
            simulate(link, seconds=outside)
    with pytest.raises(ConfigError, match="are more than 1000000 steps"):
        simulate(link, step_ms=1e-4)
    with pytest.raises(ConfigError, match="expected Link"):
        simulate("cubic")  # type: ignore[arg-type]


def test_importing_loads_nothing_that_is_not_used() -> None:
    code = (
        "import sys, distrlcc; assert 'numpy' not in sys.modules; distrlcc.simulate; "
        "assert not {'torch', 'matplotlib', 'ray'} & set(sys.modules); "
        "assert set(distrlcc.__all__) <= set(dir(distrlcc)); "
        "[getattr(distrlcc, name) for name in distrlcc.__all__]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="nothing"):
        distrlcc.nothing  # type: ignore[attr-defined]  # noqa: B018


def _trained(out: Path) -> None:
    train_recipe("quickstart", out=out, show=False, **TINY)


def test_errors_name_what_python_users_can_do(tmp_path: Path) -> None:
    run, file, full = (tmp_path / name for name in ("run", "file", "full"))
    _trained(run)
    file.write_text("")
    full.mkdir()
    (full / "other").write_text("")
    gone = tmp_path / "gone"
    _trained(gone)
    for path in (gone / "checkpoints").iterdir():
        path.write_bytes(b"")
    policy = load_policy(run)
    start = {"start_from": str(policy.path), "network.hidden": [9]}
    calls: dict[str, tuple[str, Any]] = {
        "a run is there": ("add resume=True to go on with it, or give another out", (run, {})),
        "a file is there": ("give a folder as out", (file, {})),
        "something is there": ("give an empty or new folder as out", (full, {})),
        "no run": ("leave out resume=True to begin one there", (full, {"resume": True})),
        "done": ("go on with total_steps=N", (run, {"resume": True})),
        "damaged": (f"as with start_from='{gone}'", (gone, {"resume": True, "total_steps": 999})),
        "another": ("ppo.lr: ", (run, {"resume": True, "ppo.lr": 0.5})),
        "a key": ("docs/keys.md has all", (tmp_path / "x", {"nothing.of.the.kind": 1})),
        "weights": ("change its keys, or take another", (tmp_path / "x", start)),
        "gail": ("docs/imitation.md", (tmp_path / "x", {"recipe": "gail"})),
    }
    for name, (expected, (out, more)) in calls.items():
        recipe = {} if "recipe" in more else {"recipe": "quickstart"}
        with pytest.raises(DistrlccError) as caught:
            train_recipe(**{"out": out, "show": False, **recipe, **more})
        line = str(caught.value)
        assert expected in line, (name, line)
        assert "--" not in line
        assert "\n" not in line
    for call in (
        lambda: load_policy("one", prefer=0.5),
        lambda: evaluate("cmd:./a {host} {port}"),
        lambda: evaluate("none.safetensors"),
        lambda: evaluate("kernel-cubic"),
        lambda: evaluate("cubic", suite="none"),
        lambda: evaluate("cubic", traces="none.up"),
        lambda: simulate(distrlcc.Link(12.0), "agent"),
        lambda: simulate(distrlcc.Link(12.0), 3),  # type: ignore[arg-type]
        lambda: make_env(suites=("none",)),
        lambda: make_vec(2, observation="none"),
        lambda: report(evaluate("cubic", suite="slow", links=1), file / "page"),
    ):
        with pytest.raises(DistrlccError) as caught:
            call()
        assert "--" not in str(caught.value)


_WRONG: dict[Any, tuple[Any, ...]] = {
    bool: ("no", 1, None, [True]),
    int: ("2", True, 2.5, [2], b"2"),
    float: ("2", True, [2.0]),
    str: (3, True, ["random"], None, b"one"),
    Path: (3, True, ["x"]),
    distrlcc.Policy: ("one", 3),
    distrlcc.Link: ("12", {"rate_mbps": 12}),
    distrlcc.Flow: (3, ["cubic"], {"scheme": "cubic"}),
    distrlcc.Scores: ("x", {}),
    EnvConfig: ("random", {"suites": ("random",)}),
}
"""Values of other types than these."""
PUBLIC: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    (distrlcc.load_policy, ()),
    (distrlcc.make_env, ()),
    (distrlcc.make_vec, ()),
    (distrlcc.train, ()),
    (distrlcc.evaluate, ()),
    (distrlcc.report, (distrlcc.Scores({}, (), ()), "y")),
    (distrlcc.simulate, (distrlcc.Link(12.0),)),
    (LinkVectorEnv, ()),
    (make_vector_env, ()),
    (LinkEnv, ()),
)


@pytest.mark.parametrize(("function", "given"), PUBLIC)
def test_each_argument_refuses_values_of_other_types(
    function: Any, given: tuple[Any, ...], tmp_path: Path
) -> None:
    """As a file does: no name is taken for a truth, and no list for a name."""
    made = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    hints, tried = get_type_hints(made, vars(library) | vars(vector)), 0
    for parameter in signature(made).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD or parameter.name == "self":
            continue
        hint = hints[parameter.name]
        kinds = set(get_args(hint)) or {hint}
        wrong = [set(map(repr, _WRONG[kind])) for kind in kinds if kind in _WRONG]
        for value in (v for kind in kinds & set(_WRONG) for v in _WRONG[kind]):
            if not all(repr(value) in each for each in wrong) or type(value) in kinds:
                continue
            if any(get_origin(kind) is Sequence for kind in kinds) and isinstance(value, list):
                continue
            several = parameter.kind is parameter.VAR_POSITIONAL
            arguments = [*given, "cubic", value] if several else given
            more = {} if several else {parameter.name: value}
            bound = signature(made).bind_partial(*([None] * (made is not function)), *given)
            if parameter.name in bound.arguments and not several:
                arguments = [more.pop(n) if n in more else v for n, v in bound.arguments.items()]
                arguments = arguments[made is not function :]
            if made is distrlcc.train:
                more = {"out": tmp_path / "run"} | more
            with pytest.raises(ConfigError, match=parameter.name) as caught:
                function(*arguments, **more)
            assert "expected" in str(caught.value)
            assert "\n" not in str(caught.value)
            tried += 1
    assert tried > 1
    assert not (tmp_path / "run").exists()


def test_numbers_that_are_too_small_are_refused() -> None:
    policy = load_policy("preference")
    for call, name in (
        (lambda: make_vec(0), "num_envs"),
        (lambda: make_vec(-2), "num_envs"),
        (lambda: make_vec(2, first_index=-1), "first_index"),
        (lambda: make_vec(2, policy, preferences=[0.1, 0.2, 0.3]), "preferences"),
        (lambda: make_vec(2, policy, preferences=2.0), "preferences"),
        (lambda: evaluate("cubic", links=0), "links"),
        (lambda: evaluate("cubic", seeds=0), "seeds"),
        (lambda: load_policy("one", seed=-1), "seed"),
        (lambda: simulate(distrlcc.Link(12.0), seconds=0), "seconds"),
    ):
        with pytest.raises(ConfigError, match=name):
            call()
    assert make_vec(np.int64(2), policy, preferences=np.array([0.1, 0.2])).num_envs == 2  # type: ignore[arg-type]
    assert make_vec(2, policy).num_envs == 2


def test_a_policy_acts_on_real_numbers() -> None:
    policy = load_policy("aurora")
    size = policy.spec.observation_size
    for each in (1 + 1j, "1", b"1", True, None, np.timedelta64(1, "s")):
        with pytest.raises(ValueError, match=r"observations of type .*; expected real numbers"):
            policy.act([each] * size)
    assert policy.act([1] * size) == policy.act(np.ones(size, np.float16))
    hidden = np.ma.masked_equal(np.arange(float(size)), 1.0)
    for given in (hidden, [hidden], (hidden.data, hidden)):
        with pytest.raises(ValueError, match="masked"):
            policy.act(given)
    assert policy.act(np.ma.array(np.ones(size))) == policy.act(np.ones(size))
    with warnings.catch_warnings(action="error"), pytest.raises(ValueError, match="in 32 bits"):
        policy.act(np.full(size, 1e300))


def test_what_is_measured_is_named_once_and_measured_as_told(tmp_path: Path) -> None:
    trace = tmp_path / "a.up"
    trace.write_text("1\n1000\n")
    with pytest.raises(ConfigError, match="cubic is there twice"):
        evaluate("cubic", "cubic")
    # Links of one name, which a function of a user's may give, stay apart.
    (tmp_path / "mine.py").write_text(
        "from distrlcc import Link, Scenario\n"
        "def links(split, k):\n"
        "    return Scenario('mine', Link(rate_mbps=5.0 + k), duration_s=0.5)\n"
    )
    with pytest.warns(UserWarning, match=r"links has 512 links, fewer than the 600 asked for"):
        evaluate("cubic", suite=f"{tmp_path}/mine.py:links", links=600)
    found = evaluate("cubic", suite=f"{tmp_path}/mine.py:links", links=2)
    assert found["link"].tolist() == ["mine", "mine (2)"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"traces": [trace, str(trace)]}, "a.up is there twice"),
        ({"traces": trace, "suite": tmp_path}, "trace/a.up is there twice"),
        ({"traces": trace, "links": 1}, "links is for suite; each named trace runs"),
    ]
    for words, why in wrong:
        with pytest.raises(ConfigError, match=why):
            evaluate("cubic", **words)


def test_a_policys_memory_is_cleared_by_booleans_of_its_senders() -> None:
    policy = load_policy("one")
    policy.act(np.zeros((2, policy.spec.observation_size)))
    for bad in ([0, 1], [True], [True] * 3, [[True, False]], "xy", 1):
        with pytest.raises(ValueError, match="expected 2 booleans"):
            policy.reset(bad)  # type: ignore[arg-type]
    policy.reset(np.array([True, False]))


def _raised(path: Path) -> Iterator[str]:
    """Yield the texts of what a module raises."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise):
            texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
            yield "".join(text if isinstance(text, str) else "" for text in texts)


def test_no_flag_is_named_where_no_function_of_the_library_stands_between() -> None:
    source = Path(distrlcc.__file__).parent
    folders = ("env", "sim", "learn", "data", "control", "runs", "policy", "evaluation")
    flags = re.compile(r"(?<![\w-])--[a-z]")
    named = {
        f"{path.parent.name}/{path.name}": text
        for folder in folders
        for path in sorted((source / folder).glob("*.py"))
        for text in _raised(path)
        if flags.search(text)
    }
    assert named
    # Environments, scenarios and learners are made without it: they name none. (Only the command
    # trace reads logs.)
    logs = ("sim/csv_log.py", "sim/throughput_log.py")
    inner = [place for place in named if place.split("/")[0] in ("env", "sim", "learn")]
    assert not set(inner).difference(logs)
    for place, text in named.items():

        @in_python
        def fail(text: str = text) -> None:
            raise ConfigError(text)

        with pytest.raises(ConfigError) as caught:
            fail()
        left = re.sub("'distrlcc [^']*'", "", str(caught.value))  # a command stays one
        assert not flags.search(left), (place, left)
