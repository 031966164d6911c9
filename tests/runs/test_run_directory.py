"""Run directories: what is in them, whom they refuse, and that a resume leaves no duplicates."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest

from distrlcc.cluster import member
from distrlcc.errors import CheckpointError, DistrlccError, GroupError, OutputError
from distrlcc.parallel.start import node_job, start_node
from distrlcc.recipes.registry import recipe
from distrlcc.runs import run_directory
from distrlcc.runs.checkpoint import load_checkpoint
from distrlcc.runs.leadership import run_of
from distrlcc.runs.options import GroupOptions, Node, RunOptions
from distrlcc.runs.run_directory import RunDirectory, make_fresh
from distrlcc.runs.start import open_directory
from distrlcc.runs.trackers import Trackers
from tests.parallel.commands import updates


@dataclass(frozen=True)
class Config:
    seed: int = 7
    lr: float = 1e-3


def create(path: Path, config: Config = Config()) -> RunDirectory:
    return RunDirectory.create(path, config, tensorboard=False)


def test_a_new_run_holds_its_config_and_versions(tmp_path: Path) -> None:
    with create(tmp_path / "a" / "b") as run:
        assert RunDirectory.read_config(run.path, Config) == Config()
        noted = json.loads((run.path / "versions.json").read_text())
        assert noted["seeds"] == {"seed": 7}
        for key in ("distrlcc", "python", "torch", "numpy", "numba", "gymnasium", "platform"):
            assert noted[key]
        assert run.load() is None
    names = sorted(path.name for path in run.path.iterdir())
    assert names == ["checkpoints", "config.toml", "versions.json"]


def test_runs_on_ray_that_begin_at_once_have_a_folder_each_that_bears_recipe_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, barrier = [], Barrier(3, timeout=60)

    def full(*needs: object, **more: object) -> None:
        barrier.wait()
        seen.append(len(list(Path("runs").glob("quickstart-20*"))))
        barrier.wait()
        raise GroupError("no room")

    def drives(place: object) -> None:
        with member.drive(recipe("quickstart"), RunOptions(None), "", "", learners=1):
            pass

    monkeypatch.chdir(tmp_path)
    ray = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=str))
    monkeypatch.setattr("distrlcc.cluster.session.ray_session", lambda on: nullcontext(ray))
    monkeypatch.setattr(member, "reserve", full)
    with ThreadPoolExecutor(3) as pool:
        refused = [pool.submit(refusal, GroupError, drives, place) for place in range(3)]
    assert [each.result() for each in refused] == ["no room"] * 3
    assert seen == [3, 3, 3]
    assert not list(Path("runs").iterdir())  # what was refused leaves none


def test_runs_that_begin_at_once_have_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = [*pool.map(lambda _: make_fresh(tmp_path / "runs", "quick"), range(64))]
    assert len(set(made)) == 64
    # Of two that are told the same one, the second changes nothing.
    monkeypatch.setattr(run_directory, "require_vacant", lambda *seen: None)
    create(made[0]).close()
    assert "another process begins" in refusal(
        OutputError, create, made[0], replace(Config(), seed=8)
    )
    # What cannot be begun leaves nothing behind, so that it can be tried again.
    with monkeypatch.context() as context:
        context.setattr(run_directory, "write_atomically", lambda *seen, **more: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            create(made[1])
    create(made[1]).close()
    (tmp_path / "link").symlink_to(tmp_path / "not-mounted" / "disk")
    assert "link" in refusal(OutputError, make_fresh, tmp_path / "link", "quick")
    assert RunDirectory.read_config(made[0], Config) == Config()


def refusal(kind: type[DistrlccError], call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(kind) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_does_not_fit_is_refused_and_left_alone(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    assert "already holds a run: add --resume" in refusal(OutputError, create, tmp_path / "run")
    (tmp_path / "notes.txt").write_text("mine")
    assert "is not empty and is not a run" in refusal(OutputError, create, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "run"]
    assert "cannot write" in refusal(OutputError, create, tmp_path / "notes.txt" / "x")
    assert "is a file" in refusal(OutputError, create, tmp_path / "notes.txt")
    for missing in (tmp_path, tmp_path / "none", tmp_path / "notes.txt"):
        text = refusal(OutputError, RunDirectory.resume, missing, Config())
        assert "holds no run to resume: leave out --resume" in text
    assert (tmp_path / "notes.txt").read_text() == "mine"
    other = replace(Config(), lr=3e-4)
    text = refusal(CheckpointError, RunDirectory.resume, tmp_path / "run", other)
    assert text.endswith("lr: 0.001 != 0.0003")


def test_a_run_that_never_began_is_discarded(tmp_path: Path) -> None:
    run = create(tmp_path / "fresh")
    run.lock()
    (run.path / "workers.jsonl").write_text("{}\n")  # as workers that came show themselves
    run.discard()
    run.close()
    assert not (tmp_path / "fresh").exists()
    create(tmp_path / "fresh").close()
    with create(tmp_path / "begun") as begun:
        begun.metrics.log(1, {"reward": 0.25})
        begun.discard()
    assert updates(begun.path) == [1]
    assert RunDirectory.read_config(begun.path, Config) == Config()


def test_a_run_that_ends_before_its_first_checkpoint_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = RunOptions(tmp_path / "run", tensorboard=False)

    def fail() -> None:
        with open_directory(recipe("quickstart"), options) as run:
            run.metrics.log(1, {"reward": 0.25})
            raise GroupError("rank 0 was killed")

    refusal(GroupError, fail)
    said = capfd.readouterr().err
    assert said == f"distrlcc: nothing was saved: {options.out} has no checkpoint yet\n"
    run = RunDirectory.resume(tmp_path / "run", recipe("quickstart"), tensorboard=False)
    assert run.load() is None
    assert "nothing was saved, and it begins anew" in capfd.readouterr().err


def test_ctrl_c_before_anything_was_saved_leaves_no_folder(tmp_path: Path) -> None:
    options = RunOptions(tmp_path / "run", tensorboard=False)

    def interrupted() -> None:
        with open_directory(recipe("quickstart"), options, "id"):
            assert (tmp_path / "run" / ".run").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not (tmp_path / "run").exists()


class _Follows(Trackers):
    @contextmanager
    def follow(self, folder: Path, *, show: bool = True) -> Iterator[list[str]]:
        yield []
        assert (folder / "config.toml").exists()  # a tracker reads it until it has ended


def test_a_group_that_is_stopped_before_an_update_leaves_no_folder(tmp_path: Path) -> None:
    options = RunOptions(tmp_path / "run", tensorboard=False, trackers=_Follows())
    for count in (1, 2):  # ranks of other machines may be about to write
        with node_job(recipe("quickstart"), options, Node(count=count)) as job:
            assert run_of(job.out) == job.run
        assert job.out.exists() == (count == 2)
    with node_job(recipe("quickstart"), replace(options, resume=True), Node()) as job:
        pass
    assert job.out.exists()


def test_a_group_that_saved_nothing_tells_of_no_run_where_its_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = SimpleNamespace(run=lambda: SimpleNamespace(code=130, results={}))
    monkeypatch.setattr("distrlcc.parallel.start.Launcher", lambda *job, **more: ended)
    monkeypatch.setattr("distrlcc.parallel.start.rehearse", lambda *share: None)
    options = RunOptions(Path(), tensorboard=False)  # a folder that a process is in
    assert start_node(recipe("quickstart"), options, GroupOptions()) == 130
    assert capfd.readouterr().err == "distrlcc: stopped before there was anything to save\n"
    assert not list(tmp_path.iterdir())


def test_a_resume_says_which_versions_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told = []
    for version in ("9.0", "9.1", "9.1", "9.2"):
        monkeypatch.setattr("distrlcc.runs.identity.package_version", lambda name, v=version: v)
        with RunDirectory.open(
            tmp_path / "run", Config(), resume=version > "9.0", tensorboard=False
        ) as run:
            if version > "9.0":
                run.rewind(0)
        told.append(capfd.readouterr().err.replace(str(tmp_path / "run"), "RUN"))
    assert told[0] == told[2] == ""
    assert told[1].startswith("distrlcc: RUN had other versions (old != new): torch 9.0 != 9.1; ")
    assert "numpy 9.1 != 9.2" in told[3]


def test_a_resume_drops_what_is_later_than_the_checkpoint(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        for update in (1, 2, 3):
            run.metrics.log(update, {"loss": 1 / update})
            if update == 2:
                run.save({"update": 2})
        run.metrics.log(4, {})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 2, "lo')  # killed in the middle of a line
    workers = [f'{{"update": {update}, "worker": 0}}\n' for update in (0, 1, 1, 3)]
    (run.path / "workers.jsonl").write_text("".join(workers) + '{"update": 1, "wor')
    (tmp_path / "other").hardlink_to(run.path / "workers.jsonl")
    with RunDirectory.resume(run.path, Config(), tensorboard=False) as again:
        assert again.load() == {"update": 2}
        before = (run.path / "metrics.jsonl").read_bytes().splitlines()[:2]
        again.rewind(2)
        assert updates(again.path) == [1, 2]
        assert (run.path / "workers.jsonl").read_text() == "".join(workers[:3])
        assert (tmp_path / "other").read_text().startswith("".join(workers))  # it is not ours
        again.metrics.log(3, {})
        assert updates(again.path) == [1, 2, 3]
        assert (run.path / "metrics.jsonl").read_bytes().splitlines()[:2] == before
    assert len(json.loads((run.path / "versions.json").read_text())["resumed"]) == 1
    assert not (run.path / "tensorboard").exists()


def test_the_previous_checkpoint_stands_in_for_a_damaged_one(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        for update in (1, 2, 3):
            run.save({"update": update, "w": np.full(10, update)})
        run.save({"update": 1}, best=True)
        names = sorted(p.name for p in (run.path / "checkpoints").iterdir())
        assert names == ["best.safetensors", "latest.safetensors", "previous.safetensors"]
        latest = run.checkpoint_path("latest")
        latest.write_bytes(latest.read_bytes()[:50])
        said: list[str] = []
        loaded = run.load(said.append)
        assert [line[:20] for line in said] == ["warning: checkpoint "]
        assert "latest.safetensors is truncated or corrupt" in said[0]
        assert f"going on from {run.checkpoint_path('previous')}" in said[0]
        assert loaded is not None
        assert loaded["update"] == 2
        assert load_checkpoint(run.checkpoint_path("best")) == {"update": 1}
        run.checkpoint_path("previous").write_bytes(b"")
        assert "truncated or corrupt" in refusal(CheckpointError, run.load)


@pytest.mark.parametrize("kept", [None, {}, {"bytes": "many", "crc": 0}])
def test_an_odd_note_of_the_metrics_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: object
) -> None:
    with create(tmp_path / "run") as run:
        monkeypatch.setattr(run.metrics, "durable", lambda: kept)
        run.save({"update": 1})
        with pytest.raises(CheckpointError, match=r"latest.* has an odd note of its metrics"):
            run.load()


def test_a_damaged_checkpoint_does_not_take_the_place_of_the_whole_one(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        for update in (1, 2):
            run.save({"update": update})
        latest, previous = map(run.checkpoint_path, ("latest", "previous"))
        latest.write_bytes(b"damaged")
        assert (run.load(lambda _: None) or {})["update"] == 1
        run.save({"update": 3})
        assert [load_checkpoint(path)["update"] for path in (latest, previous)] == [3, 1]
        run.save({"update": 4})
        assert [load_checkpoint(path)["update"] for path in (latest, previous)] == [4, 3]


def test_the_previous_checkpoint_survives_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with create(tmp_path / "run") as run:
        run.save({"update": 1})
        run.save({"update": 2})
        run.checkpoint_path("latest").unlink()
        assert run.load() == {"update": 1}
