"""What the commands refuse: one line, exit code 2, nothing written."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.config import override
from distrlcc.data.manifest import Spaces
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.errors import ConfigError
from distrlcc.learn.config import PPOConfig
from distrlcc.learn.ppo import PPO
from distrlcc.parallel.interface import tunnel_towards
from distrlcc.policy.policy_file import PolicyFile, save_policy
from distrlcc.policy.spec import PolicySpec
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_directory import RunDirectory
from tests.learn.toys import store

SHORT = {
    "TRAIN": "train quickstart --set",
    "RUN": "train quickstart --out r --set",
    "SUITES": "train quickstart --out r --set env.suite_weights=[1.0]",
    "COLLECT": "collect --out d",
    "IMITATE": "imitate good",
    "NODE": "node --topology decentralized --node-num 2",
    "LOCAL": "node --topology decentralized --node-num 2 --node-index 0 --ip 127.0.0.1",
    "ONE": "node indigo --node-index 0 --node-num 1 --ip 127.0.0.1",
    "TWO": "node indigo --node-num 2 --ip 127.0.0.1",
    "RAY": "train quickstart --engine ray",
    "PBT": "tune pbt quickstart --mutate ppo.lr=loguniform:1e-5:1e-2",
}
PAIR = """[[scenarios]]
name = "a"
link = {rate_mbps = 1.0}
[[scenarios]]
name = "b"
link = {rate_mbps = 1.0}
flows = [{scheme = "agent"}, {scheme = "agent"}]
"""
SCHEME = """name = "z"
flows = [{scheme = "agent"}, {scheme = "cubix"}]
link = {rate_mbps = 1.0}
"""
FILES = {
    "empty.trace": "",
    "up.toml": 'recipe = "../up"\n[ppo]\n',
    "empty.toml": 'name = "none"\nscenarios = []\n',
    "pair.toml": PAIR,
    "seed.toml": f'name = "z"\nseed = {2**62}\nlink = {{rate_mbps = 1.0}}\n',
    "tiny.toml": 'name = "z"\n[link]\nrate_mbps = 1.0\nchanges = [{at_s = 1, rate_mbps = 1e-7}]\n',
    "zero.toml": 'name = "z"\nlink = {rate_mbps = 0.0}\n',
    "key.toml": 'name = "z"\nlink = {rate = 1.0}\n',
    "scheme.toml": SCHEME,
    "sized.toml": 'name = "z"\nflows = [{packets = 9}]\nlink = {rate_mbps = 1.0}\n',
    "policed.toml": 'name = "z"\n[link]\nrate_mbps = 9.0\npolicer_mbps = 5.0\n'
    "policer_packets = 9\nchanges = [{at_s = 1, rate_mbps = 4.0}]\n",
    "run/config.toml": 'recipe = "quickstart"',
    "1.toml": "nodes = [[0]]",
    "2.toml": "nodes = [[0, 1], [2]]",
    "idle.toml": "nodes = [[0], []]",
}
REFUSED = [
    # of all commands
    ("", "no command"),
    ("trian", "did you mean train"),
    ("train", "no recipe"),
    ("TRAIN ppo.learning_rate=1", "ppo.learning_rate"),
    ("TRAIN ppo.lr=-1", "lr is -1"),
    ("TRAIN dagger.lr=1", "dagger"),
    ("RAY --address nowhere:x", "expected HOST:PORT"),
    ("RAY --address 127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"),
    ("RAY --workers 2", "--workers needs --topology actor-learner"),
    ("RAY --topology actor-learner --processes 2", "has --workers"),
    ("SUITES env.suites=['randm']", "did you mean random"),
    ("SUITES env.suites=['random','random']", "suites: random is there twice; leave one out"),
    ("SUITES env.suites=['pair.toml']", "agent first"),
    ("RUN held_out.seconds=0.01", "held_out: seconds is 0.01"),
    ("RUN network.kind=lstm ppo.minibatch_size=4", "minibatch"),
    ("RUN seed=99999999999999999", "seed"),
    ("evaluate --suite empty.toml", "no scenarios"),
    ("evaluate --suite seed.toml", "seed is"),
    ("evaluate --suite tiny.toml", "changes.rate_mbps is 1e-07"),
    ("evaluate --suite random/tset/3", "did you mean test"),
    ("evaluate one --against cubic --against bbr", "twice: write --against cubic,bbr"),
    ("evaluate one --flows 1 --flows 4", "--flows is given twice: write --flows N,…"),
    ("fairness one --suite slow --suite fast", "--suite is given twice: write --suite slow,fast"),
    (
        "evaluate one --against cubic bbr reno",
        "bbr after --against: lists have commas, as in --against A,B",
    ),
    ("evaluate one --seeds 1 2", "unrecognized arguments: 2"),
    ("evaluate --policy one", "policies stand first"),
    ("evaluate --scheme cubic", "in a list: one --against cubic,bbr"),
    ("fairness --policy one", "policies stand first"),
    ("collect --expert cubic --out d", "name the expert first"),
    ("evaluate --links 1 --out=", "--out is empty; leave it out"),
    ("train quickstart --set env.reward=./mine.py:reward", "keys of its own, as env.reward.name"),
    ("evaluate --links 1 --json /proc/x", "cannot write"),
    ("train quickstart --interface lo", "--interface needs --processes"),
    ("TRAIN nothing.of.the.kind=1", "more; 'distrlcc train RECIPE --print-config' shows all)"),
    ("evaluate a\0b", "unknown policy or scheme"),
    ("train quickstart --ouut x", "did you mean --out"),
    ("send 127.0.0.1 cubic --polici x", "--polici x; see 'distrlcc send --help'"),  # it is gone
    ("train none.toml", "cannot be read"),
    ("train up.toml", "recipe is '../up': expected a name, which folders bear"),
    ("train --resume", "--resume needs --out"),
    ("train --resume --out none", "holds no run"),
    ("train quickstart --out /proc/none/run", "cannot write"),
    ("evaluate none.safetensors", "no policy file"),
    ("evaluate --against cubik", "did you mean cubic"),
    ("evaluate --against agent", "unknown scheme 'agent'"),
    ("evaluate --seeds 0", "whole number of 1 or more"),
    ("evaluate --trace none.trace", "cannot be read"),
    ("evaluate --trace empty.trace", "empty"),
    ("evaluate --suite zero.toml", "the last rate_mbps is 0"),
    ("evaluate --suite key.toml", "rate_mbps"),
    ("evaluate --suite scheme.toml", "did you mean cubic"),
    ("evaluate --against cubic --series nope --out D", "no such link"),
    ("evaluate --against cubic --series random/test/0", "--series needs --out"),
    ("evaluate --trace constant:12 --links 1", "--links is for --suite"),
    ("evaluate --suite sized.toml", "its first flow ends after some packets"),
    ("evaluate --suite ~nosuch/x.py:f", "x.py"),
    (f"send 127.0.0.1 bbr --seed {10**20}", "is not a whole number from 0 to"),
    ("doctor --interface lo", "--interface is for --address HOST:PORT"),
    (
        "emulate --up 12 --down 12 --emulator mahimahi --seed 1 true",
        "--seed and --emulator mahimahi are not allowed with each other: mahimahi's losses",
    ),
    (f"emulate --up {'1' * 5000} --down 12 true", "cannot be read"),
    (f"emulate --up 12 --down 12 --log-port {'1' * 5000} log true", "expected a port from 1"),
    ("kernel load one --swap --keep", "leave --keep out"),
    ("send 127.0.0.1 bbr --always", "bbr is a scheme: --always is for a policy"),
    ("evaluate --against cubic --always", "--always is for a policy; there is none"),
    ("recovery --suite policed.toml", "no policer"),
    ("trace cellular:x --out t", "cellular:SEED"),
    ("trace /dev/zero --out t", "not a regular file"),
    ("check link /dev/zero --trace cellular:1", "not a regular file"),
    ("trace cellular:1", "--out"),
    ("check link none --trace cellular:1", "cannot be read"),
    ("list recipe", "invalid choice"),
    ("TRAIN network.kind=mlp network.post_hidden=9", "network.post_hidden is 9: expected 0"),
    ("TRAIN network.kind=lstm network.post_hidden=99999", "expected 0 to 16384"),
    # of collect and imitate
    ("collect oracle", "--out"),
    ("collect --out d", "SCHEME"),
    ("collect --scheme oracle --out d", "name the expert first"),
    ("COLLECT cubik", "did you mean cubic"),
    ("COLLECT cubic --steps 5 --episodes 5", "not allowed with"),
    ("COLLECT cubic --num-envs 99999999", "num_envs is 99999999"),
    ("COLLECT cubic --shard-steps 100", "expected 1001 or more"),
    ("COLLECT cubic --disturb 0.1", "cubic drives the link itself"),
    ("COLLECT oracle --disturb 0.9", "from 0 to 0.5"),
    ("COLLECT cubic --suite slow --set env.suites=fast", "env.suites is given twice"),
    ("import sb3 m.zip --out m --set action=fine --set action=rate", "action is given twice"),
    ("collect oracle --out .", "not empty"),
    ("imitate", "no data set; expected a folder"),
    ("imitate none", "no data set at"),
    ("IMITATE --set data=none", "data and data_digest are of DATA: give that"),
    ("IMITATE --set imitation.lr=0", "lr is 0.0"),
    ("IMITATE --set env.action=rate", "was collected with"),
    ("imitate wide --out r", "have 31 elements, this distrlcc's have 20"),
    ("imitate foreign --out r", "collect again"),
    ("imitate nan --out r", "an observation is not finite"),
    ("imitate six --out r", "an action is not of the action space"),
    # of several processes
    ("node quickstart", "--node-index"),
    ("NODE --node-index 0 quickstart", "--ip"),
    ("NODE --ip 127.0.0.1 quickstart", "--node-index"),
    ("node --topology ring --node-index 0 --node-num 2 --ip x", "invalid choice: 'ring'"),
    ("NODE --node-index 2 --ip 127.0.0.1 --no-elastic quickstart", "index 2: expected 0 to 1"),
    ("NODE --node-index -1 --ip 127.0.0.1 quickstart", "whole number"),
    ("LOCAL --port 65536 quickstart", "from 1 to 65535"),
    ("LOCAL --join-timeout nan quickstart", "'nan' is not a number"),
    ("LOCAL", "no recipe"),
    ("LOCAL quickstart --set num_envs=1", "at least one for each of 2"),
    ("LOCAL quickstart --gpu 300", "--gpu 300: this machine has"),
    ("LOCAL quickstart --set distributed.straggler_share=2", "expected 0 to 1"),
    ("LOCAL quickstart --set distributed.timeout_s=0", "expected 0.5 to 3600"),
    ("NODE --node-index 1 --ip 127.0.0.1 --resume --out r", "--resume is for node 0 alone"),
    ("train quickstart --processes 2 --gpu 300", "--gpu 300"),
    # of actors and their trainer
    (
        "node indigo --node-index 0 --ip 127.0.0.1 --node-num 5",
        "--node-num 5: there are lists of links for 4 machines only",
    ),
    ("TWO --node-index 0 --nodes 1.toml", "for 1 machine only"),
    ("TWO --node-index 2", "--node-index 2: expected 0 to 1"),
    ("TWO --node-index 1 --nodes idle.toml", "nodes has no links for node 1"),
    ("ONE --nodes missing.toml", "missing.toml: cannot be read as TOML (No such file"),
    ("ONE --nodes idle.toml --tun --interface lo", "leave out --interface"),
    ("ONE --interface nope", "--interface nope: expected one that is up"),
    ("ONE --load", "--load: no run of indigo with a checkpoint stands in runs/"),
    ("ONE --load nope", "--load nope: no run is there"),
    ("ONE --load nope --out other", "leave out --out"),
    ("ONE --max-lag -1", "--max-lag: '-1' is not a whole number"),
    ("ONE --envs-per-worker 1048576", "environments; expected at most 1048576"),
    ("ONE --wait-workers nan", "--wait-workers: 'nan' is not a number"),
    ("ONE --set actors.nodes=[]", "nodes is empty"),
    ("ONE --set actors.segments_per_update=-1", "segments_per_update is -1"),
    # of clusters
    ("cluster start --port 80", "'80' is not a whole number from 1024"),
    ("cluster start --listen 203.0.113.9", "expected an address of this machine"),
    ("cluster start --interface nowhere0", "expected an address of this machine"),
    ("cluster start --listen 127.0.0.1 --resource CPU=3", "settings of their own"),
    ("cluster start --listen 127.0.0.1 --resource learner", "expected NAME=AMOUNT"),
    ("cluster start --autoscaling-config missing.yaml", "there is no such file"),
    ("cluster join 127.0.0.1", "is this machine itself"),
    ("cluster join 10.0.0.1:port", "expected HOST:PORT"),
    ("cluster join", "required: HOST:PORT"),
    ("cluster status", "this machine is in no cluster"),
    ("cluster stop", "nothing to stop"),
    # of tuners
    ("tune", "expected one of pbt, search"),
    ("tune pbt", "no recipe"),
    ("tune pbt quickstart", "expected --mutate"),
    ("tune search quickstart", "expected --search"),
    ("tune search quickstart --search held_out.links=int:1:9", "with --set"),
    ("PBT --set max_seconds=9", "--set max_seconds would be ignored: a member lasts for --updates"),
    ("PBT --updates 9 --set total_steps=9", "--set total_steps would be ignored"),
    ("PBT --set ppo.lr=1", "--set ppo.lr would be ignored: it is tuned; leave it out"),
    ("PBT --population 1", "population is 1: expected 2 or more"),
    ("PBT --factors 1.2", "expected two numbers, as in 1.2,0.8"),
    ("PBT --factors 1.2,-1", "expected two numbers above 0"),
    ("PBT --interval 0", "interval is 0.0: expected more than 0"),
    ("PBT --interval 2.5", "whole number of updates"),
    ("PBT --updates 10", "raise --updates or lower --report-every"),
    ("PBT --explore own", "expected ./file.py:name"),
    ("PBT --resume", "--resume needs --out"),
    ("PBT --resume --out run", "give only --out"),
    ("tune pbt --resume --out run --population 9", "give only --out"),
    ("tune search --resume --out run --no-asha", "give only --out"),
    ("tune pbt --resume --out run", "holds no tuner to resume"),
    ("PBT --storage key.toml/under --out t", "key.toml/under"),
    # of recovery
    ("recovery --suite random --links 2", "none of its links changes"),
    ("recovery --suite cellular --links 2", "constant rate"),
    # of fairness
    ("fairness --against none --suite shared-2", "nothing to evaluate"),
    ("fairness --suite ,", "nothing stands before or after a comma"),
    ("fairness --suite shared-3", "did you mean"),
    # of stress and map
    ("stress", "SENDER"),
    ("stress one --budget 0", "1 or more"),
    ("stress one --properties use,utilisation", "utilisation"),
    ("stress one --properties use,use", "use"),
    ("stress one --properties power --gates", "no bar"),
    ("stress cubic --always", "is a scheme"),
    ("stress cubic --prefer 0.5", "is a scheme"),
    ("map one --x rate --y rate", "expected two"),
    ("map one --x speed", "speed"),
    ("map one --at queue=fast", "0.01 to 16"),
    ("map one --at queue=1,queue=2", "twice"),
    ("map one --at rival=me", "me"),
    ("map one --against me", "me"),
    ("map one --property me", "me"),
    ("map one --property fair --against bbr,cubic", "beside one scheme; give that one"),
]


@pytest.fixture(autouse=True)
def _here(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.delenv("DISTRLCC_TOKEN", raising=False)


def _fails(capfd: pytest.CaptureFixture[str], words: str) -> str:
    """Return the one line that a command fails with; it must leave all files as they were."""
    first, *rest = words.split() or [""]
    before = _files()
    assert main([*SHORT.get(first, first).split(), *rest]) == 2
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("compiling")]
    assert len(lines) == 1, err
    assert lines[0].startswith("distrlcc: error: ")
    assert out == ""
    assert _files() == before
    return lines[0]


def _files() -> dict[Path, bytes]:
    return {p: p.read_bytes() if p.is_file() else b"" for p in Path().rglob("*")}


def _stored(
    folder: str, *, observation_size: int = 20, value: float = 0.0, action: int = 2, env: str = ""
) -> None:
    """Write a data set."""
    spaces = Spaces("scale-free", observation_size, "multiplicative", "discrete", 6)
    steps = np.full((9, observation_size), value), np.full(9, action)
    store(Path(folder), spaces, [steps] * 3, env=env)


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=lambda value: value[:60])
def test_bad_input_is_one_line(capfd: pytest.CaptureFixture[str], words: str, says: str) -> None:
    if (
        words.startswith(("cluster", "PBT --storage", "RAY"))
        and importlib.util.find_spec("ray") is None
    ):
        pytest.skip("needs Ray (extra 'ray')")
    Path("run").mkdir()
    for name, text in FILES.items():
        Path(name).write_text(text)
    if words.lower().startswith("imitate"):
        _stored("good")
        _stored("wide", observation_size=31)
        _stored("foreign", env='observation = "smell"')
        _stored("nan", value=np.nan)
        _stored("six", action=6)
    assert says.lower() in _fails(capfd, words).lower()


NODES = {
    "nodes = [[0": "cannot be read as TOML (Unclosed array",
    "nodes = [[0]] # \xff": "cannot be read as TOML (it is no text in UTF-8",
    "": "expected a file of nodes = [[0, 1], [2]]",
    "nodes = 3": "expected a file of nodes = [[0, 1], [2]]",
    "[nodes]\na = [[0]]": "expected a file of nodes = [[0, 1], [2]]",
    "nodes = [[0, true]]": "True is not a link; expected Indigo's link id or a name",
    "nodes = [[[0]]]": "[0] is not a link",
    "nodes = []": "nodes is empty: expected a list of links for each machine",
    "nodes = [[0, 99]]": "scenario 'indigo/99'",
    "nodes = [[-1]]": "'-1'",
    'nodes = [["nope"]]': "'nope'",
}
LITTLE = "network.hidden=[8] dagger.rollout_length=8 dagger.sequence_length=4"


@pytest.mark.parametrize("text", NODES)
def test_a_bad_file_of_nodes(capfd: pytest.CaptureFixture[str], text: str) -> None:
    Path("nodes.toml").write_text(text, encoding="latin-1")
    assert NODES[text] in _fails(capfd, f"ONE --nodes nodes.toml --set {LITTLE}")


def _policy(observation: str, size: int) -> Path:
    spec = PolicySpec(observation, size, "multiplicative", "discrete", 6, hidden=(8,))
    path = Path("p.safetensors")
    save_policy(path, PolicyFile(spec, PPO(PPOConfig(), spec).weights().arrays))
    return path


def test_a_policy_that_is_truncated_or_does_not_fit(capfd: pytest.CaptureFixture[str]) -> None:
    path = _policy("scale-free", LinkBatch(1, EnvConfig()).observation_size)
    path.write_bytes(path.read_bytes()[:-7])
    assert "truncated" in _fails(capfd, f"evaluate {path}")
    path.write_bytes(b"not a policy")
    assert "truncated or not a policy" in _fails(capfd, f"evaluate {path}")
    assert "11" in _fails(capfd, f"evaluate {_policy('scale-free', 11)} --links 1")
    line = _fails(capfd, f"evaluate {_policy('smell', 20)} --links 1")
    assert "unknown observation 'smell'" in line


def test_a_tunnel_is_needed_where_one_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    with suppress(ConfigError):
        pytest.skip(f"this machine has a tunnel: {tunnel_towards('127.0.0.1')}")
    assert "--tun: expected one tunnel interface, found none" in _fails(capfd, "ONE --tun")


@pytest.mark.parametrize("topology", ["actor-learner", "decentralized"])
def test_other_machines_are_reached_with_a_token_only(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, topology: str
) -> None:
    other = f"node --node-num 2 --topology {topology} --node-index 1 --ip 192.0.2.1"
    assert "192.0.2.1 is not on this machine alone: set DISTRLCC_TOKEN" in _fails(capfd, other)
    monkeypatch.setenv("DISTRLCC_TOKEN", "short")
    assert "DISTRLCC_TOKEN has 5 characters; expected 16 or more" in _fails(capfd, other)


def test_a_node_without_its_master_or_its_port(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        tiny = f"quickstart --set num_envs=2 ppo.rollout_length=2 --port {port}"
        line = _fails(capfd, f"LOCAL {tiny} --out taken")
        assert f"cannot listen on 127.0.0.1:{port}" in line
    line = _fails(capfd, f"NODE --node-index 1 --ip 127.0.0.1 --join-timeout 1 {tiny}")
    assert f"127.0.0.1:{port} cannot be reached over lo (127.0.0.1): Connection refused" in line


def test_processes_belong_to_torchrun_where_it_starts_them(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    line = _fails(capfd, "train quickstart --out r")
    assert "the environment sets RANK, WORLD_SIZE, MASTER_ADDR but not MASTER_PORT" in line
    monkeypatch.setenv("MASTER_PORT", "29500")
    line = _fails(capfd, "train quickstart --processes 2 --out r")
    assert "have it start more processes, such as torchrun --nproc-per-node" in line
    assert "--out DIR, the same for all ranks" in _fails(capfd, "train quickstart")


def test_a_token_that_guards_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    monkeypatch.setenv("DISTRLCC_TOKEN", "secret")
    line = _fails(capfd, "cluster start --listen 127.0.0.1")
    assert "DISTRLCC_TOKEN has 6 characters; expected 16 or more" in line


def test_another_run_is_not_gone_on_with(capfd: pytest.CaptureFixture[str]) -> None:
    Path("nodes.toml").write_text("nodes = [[0]]")
    config = override(recipe("indigo"), ["seed=4", *LITTLE.split()])
    with RunDirectory.create(Path("began"), config, tensorboard=False) as run:
        run.save({"nothing": 0})
    line = _fails(capfd, f"ONE --nodes nodes.toml --load began --seed 5 --set {LITTLE}")
    assert "began is a run of another config" in line
    assert "(its value != this one's): seed: 4 != 5" in line  # other workers are no difference


def test_ray_is_missing(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "ray is not installed (extra 'ray'): pip install " in _fails(capfd, "PBT --out t")


def test_printing_the_configuration(capfd: pytest.CaptureFixture[str]) -> None:
    _stored("d")
    assert main(["imitate", "d", "--print-config"]) == 0
    assert "[imitation]" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("variable", "words", "says"),
    [
        ("NUMBA_NUM_THREADS=-1", "evaluate cubic --links 1", "Numba cannot start (Number of"),
        (
            "NUMBA_DISABLE_JIT=1",
            "evaluate cubic --links 1",
            "Numba cannot start (NUMBA_DISABLE_JIT",
        ),
        ("MPLBACKEND=none", "plot none.json --out a.pdf", "MPLBACKEND in the environment: Key"),
    ],
)
def test_a_librarys_variable_that_it_cannot_read(variable: str, words: str, says: str) -> None:
    name, _, value = variable.partition("=")
    command = [sys.executable, "-s", "-m", "distrlcc", *words.split()]  # cold: it reads variables
    environment = os.environ | {name: value}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"distrlcc: error: {says}")
