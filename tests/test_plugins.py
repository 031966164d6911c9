"""References to users' code: found, kept with a hash, refused in one line."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import py_compile
import re
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.config import from_toml, override, to_toml
from distrlcc.env.actions import ACTIONS
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import REWARDS, RewardConfig
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError, PolicyFileError
from distrlcc.plugins import Registry, is_reference, portable, short
from distrlcc.policy.quantise import quantise
from distrlcc.policy.spec import NETWORKS, PolicySpec
from distrlcc.runs.identity import differences, identity
from tests.policy.random_policies import make_policy

CODE = "def double(x):\n    return 2 * x\n\nFIVE = 5\n"


WRITES = """
import numpy as np
from distrlcc.env.actions import ACTIONS
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.env.rewards import REWARDS

def spoil(*given):
    for one in given:
        arrays = [one] if isinstance(one, np.ndarray) else [getattr(one, n) for n in one.__slots__]
        for array in (a for a in arrays if WRITES and a is not None):
            array[...] = 1

def reward(stats, link, config):
    paid = REWARDS["distrlcc"](stats, link, config)
    spoil(stats, link)
    return paid

class Observation(type(OBSERVATIONS["aurora"](1))):
    __init__ = lambda self, n: vars(self).update(vars(OBSERVATIONS["aurora"](n)))
    def observe(self, stats):
        seen = super().observe(stats).copy()
        spoil(stats)
        return seen

class Action(type(ACTIONS["fine"])):
    __init__ = lambda self: vars(self).update(vars(ACTIONS["fine"]))
    def apply(self, actions, cwnd, pacing):
        chosen = [each.copy() for each in super().apply(actions, cwnd, pacing)]
        spoil(actions, cwnd, pacing)
        return tuple(chosen)
    def label(self, *given):
        labels = super().label(*given).copy()
        spoil(*given)
        return labels
"""


@pytest.mark.parametrize("what", ["reward.name=reward", "observation=Observation", "action=Action"])
def test_code_that_writes_to_what_it_is_given_changes_no_run(what: str, file: Path) -> None:
    found = []
    for writes in (False, True):
        (file.parent / f"code{writes}.py").write_text(WRITES.replace("WRITES", str(writes)))
        key, _, name = what.partition("=")
        usual = ["guard=0.1", "action_delay_steps=2", "jitter_ms=2", "suites=['beside-cubic']"]
        config = override(EnvConfig(), [*usual, f"{key}=./code{writes}.py:{name}"])
        env = LinkVectorEnv(4, config, seed=1, with_parts=True)
        rows, (_, info) = [], env.reset()
        for _ in range(60):
            actions = info["expert_action"].copy()
            observation, paid, _, _, info = env.step(actions)
            assert (actions == actions).all()
            rows.append([observation, paid, actions, *(info[k] for k in ("cwnd", "utilisation"))])
        found.append(rows)
    for one, other in zip(*found, strict=True):
        assert all(map(np.array_equal, one, other))


@pytest.mark.parametrize("given", ["1j * stats.acked", "stats.acked.astype(object)", "None", "0.0"])
def test_what_are_no_numbers_is_refused_in_a_line(given: str, file: Path) -> None:
    file.write_text(f"def paid(stats, link, config):\n    return {given}\n")
    env = LinkVectorEnv(2, EnvConfig(reward=RewardConfig("./mine.py:paid")))
    env.reset()
    with pytest.raises(ConfigError, match="expected an array of shape \\(2,\\) of numbers"):
        env.step(np.zeros(2, int))


@pytest.fixture
def registry() -> Registry[object]:
    return Registry("thing", {"ours": object()})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize("name", ["./mine.py:FIVE", "mine.py:FIVE", "mine:FIVE"])
def test_a_file_and_a_module_are_found_and_kept_with_a_hash(
    name: str, file: Path, registry: Registry[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert registry[name] == 5
    pinned = registry.pinned(name)
    assert pinned.startswith(f"{file}:FIVE@" if ".py" in name else "mine:FIVE@")
    assert registry.pinned(pinned) == pinned
    assert registry[pinned] == 5
    assert short(pinned) == name.removeprefix("./")
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def test_nothing_of_a_changed_module_runs(file: Path, registry: Registry[object]) -> None:
    package = file.parent / "pack_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    (package / "part.py").write_text(CODE)
    with pytest.raises(ConfigError, match="has changed since"):
        registry.pinned("pack_of_mine.part:FIVE@0123456789abcdef")
    assert not Path("ran").exists()
    assert registry["pack_of_mine.part:FIVE"] == 5


def test_what_was_hashed_is_what_runs(file: Path, registry: Registry[object]) -> None:
    # A compiled file beside the source, which Python would take without a look at the source.
    other = file.parent / "other.py"
    other.write_text("FIVE = 666\n")
    cache = importlib.util.cache_from_source(str(file))
    py_compile.compile(
        str(other), cache, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    assert registry["mine:FIVE"] == 5
    # An edit within a process.
    before = registry.pinned("mine:FIVE")
    file.write_text(CODE.replace("5", "6"))
    assert (registry["mine:FIVE"], registry[before]) == (6, 5)


def test_ours_are_as_they_were(registry: Registry[object]) -> None:
    assert registry.pinned("ours") == "ours"
    assert list(registry) == ["ours"]
    with pytest.raises(ConfigError, match=r"unknown thing 'our': did you mean ours\?"):
        registry.pinned("our")
    with pytest.raises(ConfigError, match=r"unknown thing 'ours' \(valid: other\)"):
        Registry[object]("thing", {"ours": 1, "other": 2}).pinned("ours", without=("ours",))
    with pytest.raises(ConfigError, match=r"expected \./file\.py:name"):
        Registry[object]("thing", {}).pinned("own")


def test_other_files_are_no_references(file: Path) -> None:
    (file.parent / "a:b").mkdir()
    names = ("random", "cellular:2000", "indigo/4", "suite.toml", "a:b", "kernel-cubic")
    assert [name for name in names if is_reference(name)] == []


@pytest.mark.parametrize(
    ("code", "name", "says"),
    [
        (CODE, "tripel", "unknown name in"),
        (CODE, "double.five", "unknown name in"),
        ("def double(x)\n", "double", "cannot be imported"),
        ("1 / 0\n", "double", "division by zero"),
        ("import no_such_module\n", "double", "no_such_module"),
        ("import sys\nsys.exit(3)\n", "double", "it ends the process"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_a_line(
    code: str, name: str, says: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(code)
    for command in (
        ["train", "quickstart", "--print-config", "--set", f"env.reward.name=./mine.py:{name}"],
        ["check", "plugin", f"./mine.py:{name}"],
    ):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert says in error


def test_what_is_missing_is_refused(file: Path, registry: Registry[object]) -> None:
    for name, says in (
        ("/:double", "there is no module / here"),
        ("./other.py:double", "there is no file"),
        ("no_such_module:double", "there is no module"),
        ("no_such.module:double", "no_such"),
        ("sys:path", "there is no module sys"),
    ):
        with pytest.raises(ConfigError, match=says):
            registry.pinned(name)


def test_what_does_not_fit_its_kind_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="expected a function"):
        REWARDS.pinned("./mine.py:FIVE")
    with pytest.raises(ConfigError, match="it has no size"):
        EnvConfig(observation="./mine.py:double")


@pytest.mark.parametrize(
    "line", ["s[0] = np.nan", "s[0] = np.inf", "s[1] = -5.0", "raise ValueError('x')"]
)
def test_a_scheme_that_fails_sends_no_more_and_is_found_by_its_check(
    line: str, file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file.write_text(
        "import numpy as np\nfrom distrlcc.control.state import Scheme\n"
        "def initialise(s, now, seed): s[0] = 10.0\n"
        "def on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior, rate, marked):\n"
        f"    {line}\n"
        "def on_timeout(s, sent): s[0] = 2.0\n"
        "f = Scheme(initialise, on_ack, on_timeout)\n"
    )
    words = ["--against", "./mine.py:f", "--links", "1", "--seeds", "1", "--json", "-"]
    assert main(["evaluate", *words]) == 1
    out = capfd.readouterr()
    (void,) = json.loads(out.out)["void_runs"]
    assert (void["scheme"], void["figures"]["utilisation"] < 0.05) == ("mine.py:f", True)
    assert "ignored" not in out.err
    assert main(["check", "plugin", "./mine.py:f"]) == 1
    assert "it raised, or set a window or rate that is none" in capfd.readouterr().err


def test_a_suite_gives_scenarios(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("def links(split, index): return None\n")
    assert main(["evaluate", "--against", "cubic", "--suite", "./mine.py:links"]) == 2
    assert "expected a Scenario, it returned None" in capsys.readouterr().err


def test_a_scheme_that_numba_cannot_compile_is_refused_in_a_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(
        "from distrlcc.control.state import Scheme\n"
        "def initialise(s, now, seed): pass\n"
        "def on_ack(s, now, rtt): pass\n"
        "def on_timeout(s, sent): print([object()])\n"
        "f = Scheme(initialise, on_ack, on_timeout)\n"
    )
    for scheme, says in (("f", "Cannot bind"), ("on_ack", "does not fit")):
        assert main(["evaluate", "--against", f"./mine.py:{scheme}", "--links", "1"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert says in error


def test_a_changed_source_is_refused_and_one_that_was_put_back_is_not(
    file: Path, registry: Registry[object]
) -> None:
    pinned = registry.pinned("./mine.py:FIVE")
    file.write_text(CODE.replace("5", "6"))
    assert registry[pinned] == 5  # this process goes on with what it has loaded
    another: Registry[object] = Registry("thing", {})
    with pytest.raises(ConfigError, match=r"has changed since .* put it back, or begin anew"):
        another.pinned(pinned)
    assert another["./mine.py:FIVE"] == 6
    file.write_text(CODE)
    assert another[pinned] == 5


def test_a_file_is_found_elsewhere_by_its_hash(
    file: Path, registry: Registry[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = registry.pinned("./mine.py:FIVE")
    folder = file.parent / "elsewhere"
    folder.mkdir()
    (folder / "mine.py").write_bytes(file.read_bytes())
    file.write_text("")  # another file of that name is in the way
    with pytest.raises(ConfigError, match="has changed"):
        Registry[object]("thing", {}).pinned(pinned)
    monkeypatch.setenv("DISTRLCC_PLUGINS", f"/no/such/folder:{folder}")
    assert Registry[object]("thing", {})[pinned] == 5
    monkeypatch.delenv("DISTRLCC_PLUGINS")
    # A worker that was started with its own copy takes the trainer's reference for it.
    assert registry[f"/another/machine{pinned}"] == 5
    file.unlink()
    monkeypatch.chdir(folder)
    assert Registry[object]("thing", {})[pinned] == 5


def _install(folder: Path, code: str, entries: str) -> None:
    """Let a folder hold an installed package with entry points."""
    (folder / "their_package.py").write_text(code)
    (info := folder / "their_package-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)


def test_an_installed_package_registers_names(
    tmp_path: Path, registry: Registry[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path, CODE, "[distrlcc.things]\nfive = their_package:FIVE\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry["five"] == 5
    assert registry.pinned("five").startswith("their_package:FIVE@")
    with pytest.raises(ConfigError, match=r"valid: ours, five"):
        registry.pinned("six")


def test_the_commands_know_what_a_package_registers(tmp_path: Path) -> None:
    example = Path(__file__).parents[1] / "examples" / "plugins" / "scheme.py"
    _install(
        tmp_path,
        f"{example.read_text()}\n{CODE}",
        "[distrlcc.schemes]\ntheirs = their_package:near\nboth = their_package:near\n"
        "cubic = their_package:near\n"
        "[distrlcc.rewards]\ntwice = their_package:double\nboth = their_package:double\n",
    )
    expected = {
        "list rewards": "of an installed package: their_package:double",
        "train quickstart --print-config --set env.reward.name=twice": "their_package:double@",
        "evaluate --against theirs --links 1 --seeds 1": "their_package:near",
        "check plugin twice": "reward twice",
        "check plugin their": "unknown plug-in 'their': did you mean theirs",
        "check plugin cubic": "unknown plug-in 'cubic'",
        "check plugin both": "both is registered as reward and scheme: say --contract",
    }
    calls = "".join(f"print({words!r}, main({words.split()}))\n" for words in expected)
    command = [sys.executable, "-c", f"from distrlcc.cli.main import main\n{calls}"]
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=True)
    assert not [words for words, says in expected.items() if says not in done.stdout + done.stderr]


RAISING = """import sys

def raises(stats, env, config):
    raise RuntimeError("boom")

def ends(stats, env, config):
    sys.exit(0)

def endless(stats, env, config):
    return stats.acked * float("nan")
"""
SMALL = "num_envs=8 total_steps=4096 ppo.rollout_length=64 held_out.links=2 held_out.every=1"


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", r"mine\.py, line 4: RuntimeError: boom$"),
        ("ends", r"mine\.py, line 7: it ends the process$"),
        ("endless", r"reward.name is .*:endless.*: what it pays on held-out links is not finite$"),
    ],
)
def test_code_that_fails_while_it_trains_is_one_line_and_leaves_no_run(
    file: Path, capfd: pytest.CaptureFixture[str], name: str, says: str, processes: int
) -> None:
    file.write_text(RAISING)
    words = ["train", "quickstart", "--out", "run", f"--processes={processes}"]
    words += ["--set", *SMALL.split(), f"env.reward.name=./mine.py:{name}"]
    assert main(words) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert re.search(says, line), line
    assert Path("run").exists() == (name == "endless")
    if name == "ends":
        assert main(["check", "plugin", "./mine.py:ends", "--contract", "reward"]) == 1


def test_a_package_that_fails_is_named_and_our_own_faults_are_not_theirs(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    package = file.parent / f"package_{file.parent.name.replace('-', '_')}"
    package.mkdir()
    (package / "__init__.py").write_text("from .rewards import ends, reads, lends\n")
    (package / "rewards.py").write_text(
        "def ends(*_):\n    raise SystemExit(0)\n\n"
        "def reads(*_):\n    return open('table.csv')\n\n"
        "def lends(*_):\n    from distrlcc.plugins import having\n    return having('x')(3)\n"
    )
    words = ["train", "quickstart", "--out", "run", "--set", *SMALL.split()]
    for name, line in (("ends", 2), ("reads", 5)):
        assert main([*words, f"env.reward.name={package.name}:{name}"]) == 2
        said = capfd.readouterr().err.splitlines()[-1]
        assert f"{package.name}/rewards.py, line {line}: " in said
        assert not Path("run").exists()
    with pytest.raises(TypeError, match="it has no x"):
        main([*words, f"env.reward.name={package.name}:lends"])


def test_a_configuration_holds_the_hash_and_members_compare_it(file: Path) -> None:
    config = RewardConfig("./mine.py:double")
    assert config.name.startswith(f"{file}:double@")
    assert from_toml(RewardConfig, to_toml(config)) == config
    # The same source elsewhere is the same; another is not.
    folder = file.parent / "other machine"
    folder.mkdir()
    there = folder / "mine.py"
    there.write_text(CODE)
    same = identity(RewardConfig(f"{there}:double"))
    assert differences(identity(config), same) == ""
    assert portable(to_toml(config)).startswith('name = "mine.py:double@')
    there.write_text(CODE + "\n")
    other = identity(RewardConfig(f"{there}:double"))
    assert "mine.py:double@" in differences(identity(config), other)


def test_a_policy_names_no_code_without_its_hash(file: Path) -> None:
    with pytest.raises(ConfigError, match="lacks the hash of its source"):
        PolicySpec(f"{file}:double", 4, "multiplicative", "discrete", 6)


def test_the_kernel_has_no_network_of_a_users() -> None:
    reference = f"{Path(__file__).parents[1]}/examples/plugins/network.py:Gated"
    policy = make_policy(kind=NETWORKS.pinned(reference), observation="scale-free")
    with pytest.raises(PolicyFileError, match="runs no plug-in network"):
        quantise(policy, ACTIONS["multiplicative"])


def test_the_page_shows_a_protocol_of_each_kind_with_its_contract() -> None:
    page = (Path(__file__).parents[1] / "docs" / "plugins.md").read_text()
    shown = [path.rpartition(".") for path in re.findall(r"^::: (\S+)$", page, re.M)]
    names = ["Reward", "Observations", "Actions", "Network", "OnAck", "Explorer", "StopRule"]
    assert [name for _, _, name in shown] == names
    for module, _, name in shown:
        protocol = getattr(importlib.import_module(module), name)
        assert Protocol in protocol.__bases__
        own = [each for each in vars(protocol).values() if inspect.isfunction(each)]
        methods = [each for each in own if each.__module__ == module]
        assert methods
        assert [each for each in methods if not each.__doc__] == []
