"""The examples of users' code train, resume, are evaluated and send; each keeps its contract."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.__main__ import COMMANDS
from distrlcc.cli.main import main
from distrlcc.plugins import short
from distrlcc.policy.policy_file import load_policy
from tests.parallel.commands import saved, settings, updates
from tests.trees import CLOCK, same

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
UPDATE = 16 * 16
SMALL = f"""num_envs=16 checkpoint_every=2 held_out.every=25 held_out.links=4 held_out.seconds=0.3
    env.episode_s=0.5 network.hidden=[16] ppo.rollout_length=16 ppo.minibatch_size=64
    total_steps={3 * UPDATE}""".split()
CASES = {
    "reward": "env.reward.name={}/reward.py:reward",
    "observation": "env.observation={}/observation.py:Small",
    "action": "env.action={}/action.py:Doubling",
    "suite": 'env.suite_weights=[] env.suites=["{}/suite.py:house"]',
    "learner": "learner={}/learner.py:Reinforce",
    "network": "network.kind={}/network.py:Gated",
    "all": "env.observation={0}/observation.py:Small network.kind={0}/network.py:Gated "
    "env.reward.name={0}/reward.py:reward learner={0}/learner.py:Reinforce env.action=fast-rate",
    "modules": "env.observation=observation:Small network.kind=network:Gated "
    "env.reward.name=reward:reward learner=learner:Reinforce",
}
OFTEN = ("action", "suite", "modules")
"""Cases that differ: what others use, these and the test of several processes use, too."""
RAY = (
    "train quickstart --engine ray --processes 2",
    "train quickstart --engine ray --topology actor-learner --workers 2",
    "tune pbt quickstart --population 2 --interval 1 --mutate ppo.lr=loguniform:1e-4:1e-2 "
    "--explore {0}/tuning.py:explore --stop {0}/tuning.py:stop",
)


def test_an_example_has_at_most_30_lines() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) >= 8
    assert {name: length for name, length in lengths.items() if length > 30} == {}


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """Return a copy of the examples in a folder of its own."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "plugins"))


def _train(out: Path, *words: str, call: Callable[[list[str]], int] = main) -> int:
    return call(["train", "--out", str(out), "--no-tensorboard", *words])


def _finding(folder: Path) -> dict[str, str]:
    """Return the environment of a process that finds a folder's modules."""
    before = filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *before])}


def _sent(
    receiver: str, *words: str, place: Path, env: dict[str, str] | None = None
) -> dict[str, float]:
    sender = [sys.executable, "-m", "distrlcc", "send", receiver, "--seconds", "0.5"]
    words = (*sender, "--json", str(place), *words)
    ran = subprocess.run(words, check=False, timeout=60, env=env)
    assert ran.returncode in (0, 1)  # 1: on a busy machine
    found: dict[str, float] = json.loads(place.read_text())
    return found


@pytest.mark.parametrize(
    "case", [c if c in OFTEN else pytest.param(c, marks=pytest.mark.long) for c in CASES]
)
def test_an_example_trains_resumes_is_evaluated_and_sends(
    case: str, plugins: Path, receiver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Train from the folder of the files; resume, evaluate and send from another.
    monkeypatch.chdir(plugins)
    modules, environment = case == "modules", _finding(plugins)

    def call(words: list[str]) -> int:
        if not modules:
            return main(words)
        command = [sys.executable, "-m", "distrlcc", *words]  # this process does not find them
        return subprocess.run(command, env=environment, timeout=120, check=False).returncode

    words = ["quickstart", "--set", *SMALL, *CASES[case].format(".").split()]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert _train(cut, *words, call=call) == 0
    assert _train(whole, *settings(*words, f"total_steps={5 * UPDATE}"), call=call) == 0
    monkeypatch.chdir(tmp_path)
    assert _train(cut, "--resume", "--set", f"total_steps={5 * UPDATE}", call=call) == 0
    assert updates(cut) == [1, 2, 3, 4, 5]
    same(saved(whole), saved(cut), skip=(*CLOCK, "best", "best_update", "best_score", "counters"))
    policy = str(cut / "policy.safetensors")
    assert call(["evaluate", policy, "--against", "none", "--links", "2", "--seeds", "1"]) == 0
    assert _sent(receiver, policy, place=tmp_path / "sent.json", env=environment)["acked"] > 0
    # Where it lies and its hash stand in config.toml.
    place = r"\w+" if modules else rf"{plugins}/\w+.py"
    assert re.search(rf'"{place}:\w+@[0-9a-f]{{16}}"', (cut / "config.toml").read_text())


def test_a_resume_with_a_changed_source_is_refused_and_a_load_begins_anew(
    plugins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "run", plugins / "reward.py"
    words = ["quickstart", "--set", *SMALL, CASES["reward"].format(plugins)]
    assert _train(out, *words) == 0
    kept = file.read_text()
    file.write_text(kept.replace("1e-3", "1e-2"))
    capsys.readouterr()
    # Another process would have nothing of it in its memory.
    resume = [sys.executable, "-m", "distrlcc", "train", "--resume", "--out", str(out)]
    resume += ["--set", f"total_steps={4 * UPDATE}"]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert re.search("reward.py has changed since .*put it back.*--start-from", done.stderr)
    assert updates(out) == [1, 2, 3]
    assert _train(tmp_path / "anew", *words, f'start_from="{out}"') == 0
    file.write_text(kept)
    done = subprocess.run(resume, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert updates(out) == [1, 2, 3, 4]


def test_a_policy_with_a_changed_observation_is_refused(plugins: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["quickstart", "--set", *SMALL, CASES["observation"].format(plugins)]
    assert _train(out, *words) == 0
    with (plugins / "observation.py").open("a") as file:
        file.write("\n")
    for command in (["evaluate", str(out)], ["send", "127.0.0.1", str(out)]):
        words = [sys.executable, "-m", "distrlcc", *command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2
        assert "observation.py has changed" in done.stderr.splitlines()[-1]


def test_several_processes_train_with_users_code(plugins: Path, tmp_path: Path) -> None:
    words = ["quickstart", "--processes", "2", "--set", *SMALL, "distributed.straggler_share=0"]
    assert _train(tmp_path / "run", *words, *CASES["all"].format(plugins).split()) == 0
    assert updates(tmp_path / "run") == [1, 2, 3]


def test_a_learner_learns_the_same_on_two_ranks(plugins: Path) -> None:
    learner = CASES["learner"].format(plugins)
    words = ["parity", "quickstart", "--seeds", "0", "--set", learner, "num_envs=32"]
    assert main(words, "bench", COMMANDS, "benchmarks.bench_") == 0


@pytest.mark.parametrize(
    "topology", [pytest.param("decentralized", marks=pytest.mark.long), "actor-learner"]
)
def test_machines_have_the_same_files_in_different_folders(topology: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (tmp_path / "nodes.toml").write_text('nodes = [["random"], ["random"]]\n')
    own = {"actor-learner": ["--nodes", "../nodes.toml", "--envs-per-worker", "4"]}
    nodes = []
    for index, folder in enumerate(("here", "there/deep")):
        shutil.copytree(EXAMPLES, tmp_path / str(index) / folder)
        words = [sys.executable, "-m", "distrlcc", "node", "quickstart", "--out", "run"]
        words += ["--topology", topology, *own.get(topology, []), "--port", port]
        words += ["--ip", "127.0.0.1", "--node-num", "2", "--node-index", str(index), "--set"]
        words += [*SMALL, *CASES["all"].format(folder).split(), "ppo.use_vtrace=true"]
        place = tmp_path / str(index)
        with (place / "log").open("wb") as log:
            nodes.append(subprocess.Popen(words, stdout=log, stderr=log, cwd=place))
    try:
        assert [node.wait(120) for node in nodes] == [0, 0], (tmp_path / "0" / "log").read_text()
    finally:
        for node in nodes:
            node.kill()
            node.wait(10)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("words", RAY, ids=RAY)
def test_ray_trains_and_tunes_with_users_code(words: str, plugins: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    run = [sys.executable, "-m", "distrlcc", *words.format(plugins).split(), "--out", "run"]
    run += ["--set", *SMALL, *CASES["all"].format(plugins).split(), "ppo.use_vtrace=true"]
    subprocess.run(run, check=True, timeout=200, cwd=tmp_path)
    assert (tmp_path / "run" / "policy.safetensors").exists()


def test_a_scheme_is_evaluated_and_sends(
    plugins: Path, receiver: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheme = f"{plugins}/scheme.py:near"
    assert main(["evaluate", "--against", f"{scheme},reno", "--links", "3", "--seeds", "1"]) == 0
    assert "evaluating scheme.py:near on 3 links" in capsys.readouterr().err
    assert _sent(receiver, scheme, place=tmp_path / "sent.json")["acked"] > 0


def test_training_beside_a_scheme_resumes_bit_for_bit_and_it_can_be_imitated(
    plugins: Path, tmp_path: Path
) -> None:
    # A link with the scheme beside the agent, in a suite's file.
    suite = tmp_path / "beside.toml"
    suite.write_text(
        'name = "beside"\n[link]\nrate_mbps = 20.0\ndelay_ms = 10.0\nqueue_packets = 60\n'
        '[[flows]]\nscheme = "agent"\n'
        f'[[flows]]\nscheme = "{plugins}/scheme.py:near"\n'
    )
    words = ["quickstart", "--set", *SMALL, "env.suite_weights=[]", f'env.suites=["{suite}"]']
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert _train(whole, *settings(*words, f"total_steps={4 * UPDATE}")) == 0
    assert _train(cut, *settings(*words, f"total_steps={2 * UPDATE}")) == 0
    # In another process the scheme's code has another address.
    resume = [sys.executable, "-m", "distrlcc", "train", "--resume", "--out", str(cut)]
    resume += ["--no-tensorboard", "--set", f"total_steps={4 * UPDATE}"]
    subprocess.run(resume, check=True, timeout=120)
    same(saved(whole), saved(cut), skip=(*CLOCK, "best", "counters"))
    data = tmp_path / "data"
    collect = ["collect", f"{plugins}/scheme.py:near", "--episodes", "4"]
    seen = CASES["observation"].format(plugins)
    assert main([*collect, "--out", str(data), "--set", "env.episode_s=0.5", seen]) == 0
    imitate = ["imitate", str(data), "--out", str(tmp_path / "imitated"), "--epochs", "1"]
    network = CASES["network"].format(plugins)
    assert main([*imitate, "--no-tensorboard", "--set", "held_out.seconds=0.3", network]) == 0
    policy = load_policy(tmp_path / "imitated" / "policy.safetensors")
    assert [short(policy.spec.observation), short(policy.spec.kind)] == [
        "observation.py:Small",
        "network.py:Gated",
    ]


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ("reward.py:reward", "reward"),
        ("observation.py:Small", "observation"),
        ("scheme.py:near", "scheme"),
        ("action.py:Doubling", "action"),
        ("suite.py:house", "suite"),
        ("learner.py:Reinforce", "learner"),
        ("network.py:Gated", "network"),
        ("tuning.py:explore", "explorer"),
        ("tuning.py:stop", "stopper"),
    ],
)
def test_an_example_keeps_its_contract(
    reference: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", "plugin", f"{EXAMPLES}/{reference}"]
    assert main([*words, *(("--contract", kind) if "tuning" in reference else ())]) == 0
    assert capsys.readouterr().out.startswith(f"{kind} {EXAMPLES}/{reference}: ok; ")


MEMORY = """
import numpy as np
from distrlcc.policy.spec import Network

class Leaky(Network):
    def state_size(self, spec):
        return spec.hidden[-1]

    def shapes(self, spec):
        H = spec.hidden[-1]
        return {"inner": (spec.observation_size, H), "outer": (H, spec.action_size + 1)}

    def module(self, spec):
        import torch

        class Layers(torch.nn.Module):
            def forward(self, obs, starts, state):
                state, kept, all_states = state[0], ~starts.unsqueeze(-1), []
                for row, keep in zip(obs @ self.inner, kept):
                    state = 0.9 * state * keep + row.tanh()
                    all_states.append(state)
                heads = torch.stack(all_states) @ self.outer
                return heads[..., :-1], heads[..., -1], state[None]

        layers = Layers()
        for name, shape in self.shapes(spec).items():
            layers.register_parameter(name, torch.nn.Parameter(torch.randn(shape) * 0.1))
        return layers

    def step(self, arrays, obs, state):
        state = 0.9 * state + np.tanh(obs @ arrays["inner"])
        heads = state[0] @ arrays["outer"]
        return heads[:, :-1], heads[:, -1], state
"""


def test_a_network_with_memory_keeps_its_contract_and_trains(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(MEMORY)
    network = f"{tmp_path}/leaky.py:Leaky"
    assert main(["check", "plugin", network]) == 0
    words = ["quickstart", "--set", *SMALL, f"network.kind={network}", "ppo.sequence_length=8"]
    assert _train(tmp_path / "whole", *settings(*words, f"total_steps={4 * UPDATE}")) == 0
    assert _train(tmp_path / "cut", *settings(*words, f"total_steps={2 * UPDATE}")) == 0
    longer = f"total_steps={4 * UPDATE}"
    assert _train(tmp_path / "cut", "--resume", "--set", longer) == 0
    same(saved(tmp_path / "whole"), saved(tmp_path / "cut"), skip=(*CLOCK, "best", "counters"))


SCHEME = """
from distrlcc.control.state import Scheme
def initialise(s, now, seed): pass
def on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate, marked): pass
def on_timeout(s, sent): pass
f = Scheme(initialise, on_ack, on_timeout)"""
SUITE = """
import random
from distrlcc.sim.scenario import *
def f(split, index): return Scenario("x", Link(rate_mbps=random.uniform(1, 10)))"""
EXPLORER = "def f(values):\n    return values | {{{}}}"
LEARNER = """
from distrlcc.learn.ppo import PPO
class f(PPO):
    def update(self, rollout):"""


def _broken(name: str, old: str, new: str) -> str:
    """Return an example with a fault; what it defines is f."""
    text = (EXAMPLES / name).read_text()
    (defined,) = re.findall(r"^class (\w+)", text, re.M)
    assert old in text
    return f"{text.replace(old, new)}\nf = {defined}"


BAD: dict[str, tuple[str, ...]] = {
    "a sum": (
        "def f(stats, link, config):\n    return stats.acked.sum()",
        r"returned an array of shape \(\); expected",
    ),
    "no numbers": (
        "def f(stats, link, config):\n    return 0 * stats.acked / 0",
        "a reward is not finite",
    ),
    "no window": (
        SCHEME.replace("prior_delivered, rate, marked): pass", "*_): s[0] = 0.0"),
        "CWND",
    ),
    "others' memory": (SCHEME.replace("sent): pass", "sent): s[48] = 1.0"), "beyond its row"),
    "no version": (f"{LEARNER}\n        return {{}}", "version is 0"),
    "no learning": (f"{LEARNER}\n        return self.pass_over(1) or {{}}", "changed no weight"),
    "chance": (SUITE, "gave another link"),
    "one split": (SUITE.replace("random.uniform(1, 10)", "5.0"), "the same links"),
    "another size": (
        _broken("observation.py", "size = 4", "size = 5"),
        r"returned an array of shape \(8, 4\); expected",
    ),
    "a hidden average": (
        _broken(
            "observation.py", 'self.values["slow"]', 'vars(self).setdefault("mine", 0 * delay)'
        ),
        "load_state_dict does not go on",
    ),
    "windows of none": (
        _broken("action.py", ", MIN_CWND, MAX_CWND), pacing", ", 0.1, 0.5), pacing"),
        "a window is below 1",
    ),
    "torch and NumPy": (_broken("network.py", "(np.tanh(units)", "(units"), "step 0 NumPy has"),
    "no gradient": (
        _broken("network.py", "self[0](obs)", "self[0](obs).detach()"),
        "no gradient reaches",
    ),
    "a key less": ("def f(values):\n    return {}", "expected the same keys", "explorer"),
    "a chance value": (
        "COUNT = []\ndef f(values):\n    COUNT.append(0)\n"
        "    return values | {'ppo.lr': 1e-3 / len(COUNT)}",
        "it made .*0.001.*, then .*0.0005",
        "explorer",
    ),
    "no number": (EXPLORER.format("'ppo.lr': float('nan')"), "lr is nan", "explorer"),
    "a negative value": (EXPLORER.format("'ppo.lr': -1.0"), "lr is -1", "explorer"),
    "a value of another type": (
        EXPLORER.format("'ppo.num_epochs': 'two'"),
        "num_epochs",
        "explorer",
    ),
    "another answer": (
        "COUNT = []\ndef f(report):\n    COUNT.append(0)\n    return len(COUNT) > 1",
        "it said False, then True",
        "stopper",
    ),
    "no answer": ("def f(report):\n    pass", "it said None: expected True", "stopper"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_breaks_its_contract_is_found(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, problem, *kind = BAD[case]
    (tmp_path / "bad.py").write_text(source)
    words = ["check", "plugin", f"{tmp_path}/bad.py:f", *(f"--contract={k}" for k in kind)]
    # An array of another shape is what training refuses, too.
    assert main(words) == (2 if "array of shape" in problem else 1)
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert re.search(problem, said.err)


def test_a_continuous_action_of_several_numbers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.py").write_text(_broken("action.py", '"continuous", 1', '"continuous", 2'))
    assert main(["check", "plugin", f"{tmp_path}/two.py:f"]) == 2
    assert "expected a size of 1 where continuous" in capsys.readouterr().err
