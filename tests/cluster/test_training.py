"""A real Ray cluster on this machine: workers, ranks and machines come, die and come back."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from distrlcc.actors.engine import ActorError, Changes, Worker, WorkerGoneError
from distrlcc.cli.main import main
from distrlcc.cluster.cluster import health
from distrlcc.cluster.engine import RayEngine
from distrlcc.cluster.placement import reserve
from distrlcc.cluster.session import ray_session, require_ray
from distrlcc.cluster.state import keep_token
from distrlcc.errors import GroupError
from distrlcc.extras import missing
from distrlcc.processes import descendants
from distrlcc.recipes.registry import recipe
from distrlcc.runs.identity import identity
from distrlcc.runs.run_config import ResourcesConfig
from tests.hosts import wait_until
from tests.parallel.commands import Command, rows, updates

ray = pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.filterwarnings("default"),  # Ray's own
]

CONFIG = recipe("distrlcc")
SMALL = shlex.split(
    "dagger.rollout_length=64 dagger.sequence_length=32 dagger.num_epochs=1 dagger.capacity=4000 "
    "dagger.minibatch_size=500 dagger.lr_schedule=none network.hidden=[8] env.episode_s=2 "
    "held_out.every=50 held_out.links=2 held_out.seconds=1 checkpoint_every=5 "
    "actors.envs_per_worker=1"
)
ENDLESS = "total_steps=1000000000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        # The token that this machine keeps is another cluster's; this one needs none.
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("DISTRLCC_TOKEN", raising=False)
        keep_token("0123456789abcdef0123456789abcdef")
        patch.setenv("DISTRLCC_LIMITS", "stall=8")
        for name, value in health().items():
            patch.setenv(name, value)
        require_ray()  # which sets the rest of Ray's variables
        room = {"num_cpus": 2, "object_store_memory": 100_000_000, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=room)
        yield made
        made.shutdown()


def _members(cluster: Any, name: str = "") -> list[int]:
    """Return the processes of the cluster's actors of a class, or of all of ours."""
    names = [name] if name else ["Host", "RayTrainer", "RayRank"]
    titles = tuple(f"ray::{each}".encode() for each in names)
    found = []
    for process in (each for node in cluster.list_all_nodes() for each in _below(node)):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/cmdline").read_bytes().startswith(titles):
                found.append(process)
    return found


def _below(node: Any) -> list[int]:
    """Return the processes that a machine of the cluster has started."""
    raylets = node.all_processes.get("raylet", ())
    return [each.pid for raylet in raylets for each in descendants(raylet.process.pid)]


class Counter:
    """What the engine's workers hold."""

    def __init__(self, value: int) -> None:
        self.value = value

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def fail(self) -> None:
        raise ValueError("as asked")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Watched(RayEngine):
    """An engine that gathers its changes."""

    seen = Changes()

    def living(self) -> list[Worker]:
        new = self.changes()
        self.seen.joined += new.joined
        self.seen.left |= new.left
        return [worker for worker in self.seen.joined if worker not in self.seen.left]

    def drop(self, worker: Worker, *, again: bool = True) -> None:
        super().drop(worker, again=again)
        self.seen.left.setdefault(worker, "dropped")


@contextlib.contextmanager
def _engine(
    cluster: Any, resources: ResourcesConfig, workers: int, **others: str
) -> Iterator[Watched]:
    """Yield an engine on the cluster, whose trainer runs the other versions."""
    with (
        ray_session(cluster.address),
        reserve(resources, learners=1, workers=workers) as room,
    ):
        engine = Watched(room, CONFIG, identity(CONFIG, topology="actor-learner") | others)
        engine.seen = Changes()
        yield engine
        engine.close()


@pytest.mark.long
def test_workers_answer_die_and_come_back(cluster: Any) -> None:
    resources = ResourcesConfig(worker_cpus=0.1, learner_cpus=0.1)
    with _engine(cluster, resources, 2) as engine:
        wait_until(lambda: len(engine.living()) == 2, 60.0, "two workers")
        first, second = sorted(engine.living(), key=lambda worker: worker.index)
        for worker in (first, second):
            engine.start(worker, Counter, 5).result(30.0)
        assert engine.call(first, "add", 2).result(10.0) == 7
        assert engine.call(second, "add", 1).result(10.0) == 6
        with pytest.raises(ActorError, match=r"ValueError: as asked \(fail, line"):
            engine.call(first, "fail").result(10.0)
        assert engine.call(first, "add", 1).result(10.0) == 8  # and lives on

        waiting: Future[Any] = engine.call(first, "sleep", 60.0)
        os.kill(first.process, signal.SIGKILL)
        with pytest.raises(WorkerGoneError, match="died"):
            waiting.result(15.0)
        assert engine.living() == [second]
        assert "died" in engine.seen.left[first]
        engine.drop(first)
        with pytest.raises(WorkerGoneError):
            engine.call(first, "add", 1).result(1.0)
        wait_until(lambda: len(engine.living()) == 2, 60.0, "another in its place")
        again = next(worker for worker in engine.living() if worker != second)
        assert (again.index, again.process != first.process) == (0, True)
        engine.start(again, Counter, 0).result(30.0)
        assert engine.call(again, "add", 1).result(10.0) == 1

        engine.drop(second)  # given up for silence, say: its process ends
        wait_until(lambda: not Path(f"/proc/{second.process}").exists(), 30.0, "its end")
        wait_until(lambda: len(engine.living()) == 2, 60.0, "another in its place")

        engine.drop(again, again=False)  # this one is not replaced
        time.sleep(3.0)  # far longer than until an engine asks for another
        assert [worker.index for worker in engine.living()] == [1]
        assert len(_members(cluster, "Host")) == 1
    wait_until(lambda: not _members(cluster, "Host"), 30.0, "all workers' end")


def test_a_worker_of_another_version_is_refused_with_the_difference(cluster: Any) -> None:
    resources = ResourcesConfig(worker_cpus=0.1, learner_cpus=0.1)
    with _engine(cluster, resources, 1, torch="1.0", code="other") as engine:
        with pytest.raises(GroupError, match=r"torch +1\.0 ") as refused:
            wait_until(lambda: bool(engine.changes().joined), 60.0, "a refusal")
        assert refused.value.exit_code == 2


def test_a_machine_that_joins_is_used_and_one_that_dies_costs_its_workers(cluster: Any) -> None:
    resources = ResourcesConfig(worker_cpus=0.7, learner_cpus=0.5, max_workers=3)
    with _engine(cluster, resources, 2) as engine:
        wait_until(lambda: len(engine.living()) == 2, 60.0, "two workers")
        time.sleep(2.0)
        assert len(engine.living()) == 2  # there is no room for a third
        node = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        wait_until(lambda: len(engine.living()) == 3, 30.0, "a third")
        third = next(worker for worker in engine.living() if worker.index == 2)
        engine.start(third, Counter, 0).result(30.0)
        waiting = engine.call(third, "sleep", 120.0)
        cluster.remove_node(node, allow_graceful=False)
        with pytest.raises(WorkerGoneError):
            waiting.result(60.0)
        assert third not in engine.living()
        assert len(engine.living()) == 2
        # Both have one address here, so the head's free cores are hidden until Ray knows.
        wait_until(lambda: sum(n["Alive"] for n in ray.nodes()) == 1, 60.0, "Ray knows it")


@pytest.mark.parametrize(
    ("resources", "asked"),
    [
        (ResourcesConfig(worker_cpus=50.0), "1 x (50 CPU) to act, PACK"),
        (ResourcesConfig(strategy="STRICT_SPREAD"), "to act, STRICT_SPREAD"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_what_is_free(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, resources: ResourcesConfig, asked: str
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "call=3")
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    with (
        ray_session("auto"),
        pytest.raises(GroupError, match=r"has no room for .*Free: [\d.]+: [\d.]+ CPU") as refused,
        reserve(resources, learners=1, workers=1),
    ):
        pass
    assert asked in str(refused.value)


def _run(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120.0, cwd=cwd, check=False
    )


class Run(Command):
    """The command, with what it says so far."""

    def __init__(self, cluster: Any, folder: Path, *words: str) -> None:
        self.out = folder / "run"
        train = ("-m", "distrlcc", "train", "--engine", "ray", "--no-tensorboard")
        super().__init__(
            folder, *train, "--address", cluster.address, "--out", str(self.out), *words
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(20.0)

    @property
    def text(self) -> str:
        return "\n".join(self.said)

    def update(self) -> int:
        """Return the newest update, 0 if there is none."""
        return max(updates(self.out), default=0)

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        def holds() -> bool:
            assert self.process.poll() is None, self.text
            return condition()

        wait_until(holds, seconds, what)

    def until_said(self, words: str, seconds: float, count: int = 1) -> None:
        self.until(lambda: self.text.count(words) >= count, seconds, words)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(30.0)


@pytest.mark.long
def test_actors_and_their_trainer_are_started_again(cluster: Any, tmp_path: Path) -> None:
    told = shlex.split("distrlcc --topology actor-learner --workers 2 --restarts 1 --set")
    with Run(cluster, tmp_path, *told, *SMALL, ENDLESS, "actors.segments_per_update=2") as run:
        run.until(lambda: run.update() > 12, 180.0, "updates")
        worker = _members(cluster, "Host")[0]
        os.kill(worker, signal.SIGKILL)
        run.until(lambda: f"process {worker} " in run.text.partition("gone: ")[2], 15.0, "it")
        run.until_said("joined: worker", 60.0, 3)

        (trainer,) = _members(cluster, "RayTrainer")
        assert os.getpriority(os.PRIO_PROCESS, trainer) == os.getpriority(os.PRIO_PROCESS, 0)
        before = run.update()
        os.kill(trainer, signal.SIGKILL)
        run.until_said("starting it again", 15.0)
        run.until(lambda: run.update() > before + 5, 150.0, "more updates")
        # What was lost was learned again.
        found = updates(run.out)  # the run goes on
        assert found == list(range(1, len(found) + 1))

        assert run.end(signal.SIGINT) == 130
        line = run.text.partition("stopped; saved. Go on with: distrlcc ")[2].splitlines()[0]
        assert line.startswith("train --engine ray --topology actor-learner --address ")
        wait_until(lambda: not _members(cluster), 30.0, "the end of all")
        done = rows(run.out)[-1]
        more = f"total_steps={int(done['steps']) + 640}"
        words = ["-m", "distrlcc", *shlex.split(line), "--no-tensorboard", "--set", more]
        again = _run(words, run.out.parent)
        assert again.returncode == 0, again.stderr
        assert run.update() == done["update"] + 5
        assert "policy: " in again.stdout, again.stderr
        assert "(raylet)" not in run.text + again.stdout + again.stderr


@pytest.mark.long
def test_learners_share_the_workers_and_are_started_again(cluster: Any, tmp_path: Path) -> None:
    told = shlex.split("distrlcc --topology actor-learner --learners 2 --workers 4 --set")
    share = ["actors.segments_per_update=4", "distributed.sync_check_every=1"]
    with Run(cluster, tmp_path, *told, *SMALL, ENDLESS, *share) as run:

        def whole() -> bool:
            newest = (rows(run.out) or [{}])[-1]
            return newest.get("ranks") == 2.0 and newest["workers"] == 4.0

        run.until(whole, 200.0, "two learners with two workers each")
        links = {row["worker"] for row in rows(run.out, "workers.jsonl")}
        assert links == {0, 1, 2, 3}
        # One dies with its workers, and is started again with others.
        before, (lost, _) = run.update(), _members(cluster, "RayRank")
        os.kill(lost, signal.SIGKILL)
        run.until_said("starting it again", 30.0)
        run.until(lambda: run.update() > before + 5 and whole(), 150.0, "both again")
        assert run.end(signal.SIGINT) == 130
        line = run.text.partition("stopped; saved. Go on with: distrlcc ")[2].splitlines()[0]
        assert line.startswith("train --engine ray --topology actor-learner --address ")
        found = updates(run.out)
        assert found == list(range(1, len(found) + 1))
    wait_until(lambda: not _members(cluster), 30.0, "the end of all")


@pytest.mark.long
def test_the_trainer_goes_on_on_another_machine(cluster: Any, tmp_path: Path) -> None:
    room = {"num_cpus": 1, "object_store_memory": 80_000_000, "resources": {"trainer": 1.0}}
    first, second = cluster.add_node(**room), cluster.add_node(**room)
    told = shlex.split("distrlcc --topology actor-learner --workers 1 --restarts 1")
    place = ["--learner-resource", "trainer=1", "--storage", str(tmp_path / "storage")]
    with Run(
        cluster, tmp_path, *told, *place, "--set", *SMALL, ENDLESS, "actors.segments_per_update=1"
    ) as run:
        run.until(lambda: run.update() > 12, 180.0, "updates")
        (trainer,) = _members(cluster, "RayTrainer")
        mine, other = (first, second) if trainer in _below(first) else (second, first)
        before = run.update()
        cluster.remove_node(mine, allow_graceful=False)
        run.until_said("starting it again", 40.0)
        run.out.rename(tmp_path / "of the machine that died")
        run.until(lambda: run.update() > before + 5, 150.0, "more")
        # It was fetched, and went on.
        found = updates(run.out)  # the run goes on
        assert found == list(range(1, len(found) + 1))
        assert _members(cluster, "RayTrainer")[0] in _below(other)
        assert run.end(signal.SIGINT) == 130
        cluster.remove_node(other)


@pytest.mark.long
def test_ranks_are_started_again_and_stay_equal(cluster: Any, tmp_path: Path) -> None:
    words = shlex.split(
        "quickstart --processes 2 --set num_envs=8 ppo.rollout_length=32 held_out.every=1000 "
        "held_out.links=2 held_out.seconds=1 distributed.sync_check_every=1"
    )
    with Run(cluster, tmp_path, *words, ENDLESS) as run:
        run.until(lambda: run.update() > 20, 180.0, "updates")
        assert rows(run.out)[-1]["ranks"] == 2.0
        os.kill(max(_members(cluster, "RayRank")), signal.SIGKILL)
        run.until_said("starting it again", 15.0)
        run.until_said("joined: rank", 60.0)
        run.until(lambda: rows(run.out)[-1]["ranks"] == 2.0, 20.0, "an update of two")
        os.kill(_members(cluster, "RayRank")[0], signal.SIGSTOP)
        run.until_said("answered for 8 s; starting it again", 60.0)
        run.until_said("joined: rank", 60.0, 2)
        behind = run.update()
        run.until(lambda: run.update() > behind + 20, 30.0, "equal weights")
        assert run.end(signal.SIGTERM) == 128 + signal.SIGTERM
        wait_until(lambda: not _members(cluster), 30.0, "the end of all")
        assert "held-out links: " in run.text


def test_without_ray_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["train", "quickstart", "--engine", "ray"]) == 2
    assert capsys.readouterr().err == f"distrlcc: error: {missing('ray')}\n"
