"""Who acts where: wrong flags and files of actor-learner runs are one line, exit code 2."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from distrlcc.cli.main import find, main
from distrlcc.cli.node import newest_run, read_nodes, with_actors
from distrlcc.config import override
from distrlcc.errors import ConfigError
from distrlcc.parallel.interface import _is_tunnel, interfaces
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory

ADDRESS = ("--ip", "127.0.0.1")
ONE = ("node", "indigo", "--node-index", "0", "--node-num", "1", *ADDRESS)
TWO = ("node", "indigo", "--node-num", "2", *ADDRESS)
EQUAL = ("node", "quickstart", "--topology", "decentralized", "--node-index", "0", "--node-num",
         "1", *ADDRESS)  # fmt: skip
SMALL = ("network.hidden=[8]", "dagger.rollout_length=8", "dagger.sequence_length=4")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without --out would be written to the present folder."""
    monkeypatch.chdir(tmp_path)


def _fails(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line that a command fails with; it must leave all files as they were."""
    before = _files()
    assert main(words) == 2
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("compiling")]
    assert len(lines) == 1, err
    assert lines[0].startswith("distrlcc: error: ")
    assert out == ""
    assert _files() == before
    return lines[0]


def _files() -> dict[Path, bytes]:
    return {p: p.read_bytes() if p.is_file() else b"" for p in Path().rglob("*")}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodes = [[0", "cannot be read as TOML (Unclosed array"),
        ("nodes = [[0]]\nnodes = [[1]]", "cannot be read as TOML (Cannot overwrite a value"),
        ("", "expected nodes = [[0, 1], [2]]"),
        ("links = [[0]]", "expected nodes = [[0, 1], [2]]"),
        ("nodes = [[0]]\nworkers = 1", "expected nodes = [[0, 1], [2]]"),
        ("nodes = 3", "expected nodes = [[0, 1], [2]]"),
        ("nodes = [0, 1]", "expected nodes = [[0, 1], [2]]"),
        ("[nodes]\na = [[0]]", "expected nodes = [[0, 1], [2]]"),
        ("nodes = [[0, true]]", "True is no link; expected Indigo's link id or a name"),
        ("nodes = [[0, 1.0]]", "1.0 is no link"),
        ("nodes = [[[0]]]", "[0] is no link"),
        ("nodes = []", "nodes is empty: expected a list of links for each machine"),
        ("nodes = [[], []]", "nodes is empty"),
        ("nodes = [[0, 99]]", "scenario 'indigo/99'"),
        ("nodes = [[-1]]", "'-1'"),
        ('nodes = [["nope"]]', "'nope'"),
        ('nodes = [["indigo/x"]]', "'indigo/x'"),
    ],
)
def test_a_bad_file_of_nodes(capfd: pytest.CaptureFixture[str], text: str, says: str) -> None:
    Path("nodes.toml").write_text(text)
    assert says in _fails(capfd, *ONE, "--nodes", "nodes.toml", "--set", *SMALL)


def test_a_file_of_nodes_that_cannot_be_read(capfd: pytest.CaptureFixture[str]) -> None:
    Path("binary.toml").write_bytes(b"nodes = [[0]] # \xff")
    line = _fails(capfd, *ONE, "--nodes", "binary.toml")
    assert "binary.toml: cannot be read as TOML ('utf-8' codec" in line
    line = _fails(capfd, *ONE, "--nodes", "missing.toml")
    assert "missing.toml: cannot be read as TOML (No such file or directory)" in line
    line = _fails(capfd, *ONE, "--nodes", ".")
    assert "cannot be read as TOML (Is a directory)" in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("node", "indigo", "--node-index", "0", "--node-num", "5", *ADDRESS),
         "--node-num 5: there are lists of links for 4 machines only"),
        (("node", "indigo", "--node-index", "0", "--node-num", "3", *ADDRESS, "--nodes", "2.toml"),
         "--node-num 3: there are lists of links for 2 machines only"),
        ((*TWO, "--node-index", "0", "--nodes", "1.toml"), "for 1 machine only"),
        ((*TWO, "--node-index", "2"), "--node-index 2: expected 0 to 1"),
        ((*TWO, "--node-index", "7", "--nodes", "2.toml"), "--node-index 7: expected 0 to 1"),
        ((*TWO, "--node-index", "1", "--nodes", "idle.toml"), "nodes has no links for node 1"),
        ((*ONE, "--nodes", "idle.toml", "--tun", "--interface", "lo"), "leave --interface away"),
        ((*ONE, "--interface", "nope"), "--interface nope: expected one that is up"),
        ((*ONE, "--load"), "--load: no run of indigo with a checkpoint stands in runs/"),
        ((*ONE, "--load", "nope"), "--load nope: no run stands there"),
        ((*ONE, "--load", "nope", "--out", "other"), "leave --out away"),
        ((*ONE, "--processes", "2"), "--processes is for --topology decentralized"),
        ((*ONE, "--processes", "1"), "--processes is for --topology decentralized"),
        ((*ONE, "--resume", "--out", "other"), "--resume is for --topology decentralized"),
        ((*ONE, "--restarts", "1"), "--restarts is for --topology decentralized"),
        ((*ONE, "--no-elastic"), "--no-elastic is for --topology decentralized"),
        ((*ONE, "--debug"), "--debug is for --topology decentralized"),
        ((*EQUAL, "--nodes", "2.toml"), "--nodes is for --topology actor-learner"),
        ((*EQUAL, "--load", "nope"), "--load is for --topology actor-learner"),
        ((*EQUAL, "--load"), "--load is for --topology actor-learner"),
        ((*EQUAL, "--envs-per-worker", "2"), "--envs-per-worker is for --topology actor-learner"),
        ((*EQUAL, "--max-lag", "0"), "--max-lag is for --topology actor-learner"),
        ((*EQUAL, "--wait-workers", "0"), "--wait-workers is for --topology actor-learner"),
        ((*EQUAL, "--tun"), "--tun is for --topology actor-learner"),
        ((*EQUAL, "--allow-public"), "--allow-public is for --topology actor-learner"),
        ((*ONE, "--max-lag", "-1"), "--max-lag: '-1' is not a whole number"),
        ((*ONE, "--max-lag", "1.5"), "--max-lag: '1.5' is not a whole number"),
        ((*ONE, "--envs-per-worker", "0"), "--envs-per-worker: '0' is not a whole number"),
        ((*ONE, "--envs-per-worker", "1048576"), "environments; expected at most 1048576"),
        ((*ONE, "--wait-workers", "-1"), "--wait-workers: '-1' is not a number"),
        ((*ONE, "--wait-workers", "nan"), "--wait-workers: 'nan' is not a number"),
        ((*ONE, "--pace", "10"), "--pace: is gone; give --world emulated"),
        ((*ONE, "--set", "actors.nodes=[]"), "nodes is empty"),
        ((*ONE, "--set", "actors.max_lag=-1"), "max_lag is -1: expected 0 or more"),
        ((*ONE, "--set", "actors.segments_per_update=-1"), "segments_per_update is -1"),
        ((*ONE, "--set", "actors.wait_workers=nan"), "wait_workers is nan"),
        ((*ONE, "--port", "65535"), "from 1 to 65534"),
        (("node", "nope", "--node-index", "0", "--node-num", "1", *ADDRESS), "recipe 'nope'"),
    ],
    ids=lambda value: " ".join(value)[-60:] if isinstance(value, tuple) else None,
)  # fmt: skip
def test_bad_flags_are_one_line(
    capfd: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    Path("1.toml").write_text("nodes = [[0]]")
    Path("2.toml").write_text("nodes = [[0, 1], [2]]")
    Path("idle.toml").write_text("nodes = [[0], []]")
    assert says in _fails(capfd, *words)


def test_a_tunnel_is_needed_where_one_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    if any(_is_tunnel(interface.name) for interface in interfaces()):
        pytest.skip("this machine has a tunnel")
    assert "--tun: expected one tunnel interface, found none" in _fails(capfd, *ONE, "--tun")


def test_a_public_address_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    words = ("node", "indigo", "--node-index", "0", "--node-num", "1", "--ip", "8.8.8.8")
    line = _fails(capfd, *words)
    if "no route to 8.8.8.8" not in line:  # as on a machine without a network
        assert "8.8.8.8 is a public address" in line
        assert "--allow-public" in line


def _run(out: Path, config: RunConfig) -> Path:
    """Make a run with a checkpoint."""
    with RunDirectory.create(out, config, tensorboard=False) as run:
        run.save({"nothing": 0})
    return out


def test_another_run_is_not_gone_on_with(capfd: pytest.CaptureFixture[str]) -> None:
    Path("nodes.toml").write_text("nodes = [[0]]")
    _run(Path("began"), override(recipe("indigo"), ["seed=4", *SMALL]))
    line = _fails(
        capfd, *ONE, "--nodes", "nodes.toml", "--load", "began", "--seed", "5", "--set", *SMALL
    )
    assert "began is a run of another config" in line
    assert "(its value != this one's): seed: 4 != 5" in line  # other workers are no difference


def test_the_newest_run_of_the_recipe_is_loaded() -> None:
    indigo, other = recipe("indigo"), recipe("imitation")
    for age, (name, config) in enumerate(
        [("newer", other), ("new", indigo), ("middle", indigo), ("old", other)]
    ):
        path = _run(Path("runs") / name, config) / "checkpoints" / "latest.safetensors"
        os.utime(path, (1e9 - age, 1e9 - age))
    RunDirectory.create(  # has no checkpoint yet
        Path("runs/begun"), indigo, tensorboard=False
    ).close()
    damaged = _run(Path("runs/damaged"), indigo)
    (damaged / "config.toml").write_text("nothing = 1")
    assert newest_run("indigo") == Path("runs/new")
    assert newest_run("imitation") == Path("runs/newer")
    with pytest.raises(ConfigError, match="no run of quickstart"):
        newest_run("quickstart")


def test_nodes_may_hold_ids_names_and_files() -> None:
    Path("nodes.toml").write_text('nodes = [[0, "random"], [], ["12", "links/a.toml"]]')
    nodes = read_nodes(Path("nodes.toml"))
    assert nodes == (("0", "random"), (), ("12", "links/a.toml"))
    parser, _ = find("node")
    node = ("--node-index", "0", *ADDRESS, "--node-num")
    words = ["--envs-per-worker", "2", "--max-lag", "0", "--wait-workers", "0"]
    actors = with_actors(
        recipe("indigo"), parser.parse_args([*node, "3", "--nodes", "nodes.toml", *words])
    ).actors
    assert actors.nodes == nodes
    assert actors.links == ["indigo/0", "random", "indigo/12", "links/a.toml"]
    assert (actors.envs_per_worker, actors.max_lag, actors.wait_workers) == (2, 0, 0.0)
    assert actors.per_update == 4
    as_before = with_actors(recipe("indigo"), parser.parse_args([*node, "2"])).actors
    assert as_before == replace(recipe("indigo").actors, nodes=recipe("indigo").actors.nodes[:2])
