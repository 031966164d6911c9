"""Each benchmark in one short run: figures that make sense; wrong flags; Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import COMMANDS
from benchmarks.bench_parity import agree, intervals, learning_curves
from benchmarks.exchange import measure_exchange, project
from distrlcc.cli.main import main
from distrlcc.config import override
from distrlcc.errors import ConfigError
from distrlcc.recipes.registry import recipe
from research.__main__ import COMMANDS as RESEARCH
from tests.hosts import rank_processes, wait_until

SMALL = "num_envs=4 ppo.rollout_length=16 ppo.minibatch_size=64 network.hidden=[8]"
SCALING = "scaling --processes 2 --rounds 1"
SETTINGS = f"--set {SMALL} env.episode_s=0.5 held_out.seconds=0.1"
SLOW = "--slow 2 --slow-pace 0 --slow-steps"
UPDATE = 2 * 4 * 16


def _bench(words: str, *more: str) -> int:
    given = [*words.split(), *more]
    if given[0] in RESEARCH:
        return main(given, "research", RESEARCH, "research.")
    return main(given, "bench", COMMANDS, "benchmarks.bench_")


def _measured(tmp_path: Path, words: str, *more: str) -> Any:
    """Return the figures of a benchmark."""
    target = tmp_path / "figures.json"
    assert _bench(words, *more, "--json", str(target)) == 0
    return json.loads(target.read_text())


def test_the_simulator_beside_the_reference(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distrlcc.cli.output._QUIET_S", 0.0)
    rows = _measured(tmp_path, "sim --envs 1 --steps 1 --repeats 1")["links"]
    assert len(rows) == 3
    for row in rows.values():
        assert row["times_reference"] == row["reference_ns_per_packet"] / row["ns_per_packet"] > 0
    out, err = capfd.readouterr()
    assert out.count("ns/packet") == 2 * len(rows)
    assert "measuring trace, about " in err


def test_one_environment_beside_many(tmp_path: Path) -> None:
    found = _measured(tmp_path, "env --envs 16 --seconds 0.1")
    assert found["num_envs"] == 16
    assert found["many"] == pytest.approx(found["ratio"] * found["one"])
    assert found["ratio"] > 1.0  # by far: one call steps them all


@pytest.mark.long
def test_recurrent_layers_and_others_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "benchmarks.bench_train.recipe", lambda name: replace(recipe(name), num_envs=100)
    )
    found = _measured(tmp_path, "train --seconds 0.1")
    assert found.keys() == {"ppo_lstm", "ppo_mingru", "ppo_mlp", "dagger_mlp"}
    assert found["ppo_lstm"]["ratio"] == 1.0
    for row in found.values():
        assert row["updates"] >= 3
        assert row["env_steps_per_second"] > 0
        shares = [value for key, value in row.items() if key.startswith("share_")]
        assert 0.9 < sum(shares) < 1.01


@pytest.mark.long
def test_scaling_and_a_slow_process(tmp_path: Path) -> None:
    words = f"{SCALING} {SLOW} {6 * UPDATE} --slow-seeds 1"
    result = _measured(tmp_path, f"{words} {SETTINGS}")
    assert result["scaling"].keys() == {"1", "2"}
    one, two = (result["scaling"][count] for count in "12")
    assert one == {"env_steps_per_second": two["one_env_steps_per_second"], "efficiency": 1.0}
    # Of one round its own ratio is the median, and there is no interval.
    assert two["efficiency_by_round"] == [two["efficiency"]]
    assert two["efficiency_mean_interval"] is None
    ratio = two["env_steps_per_second"] / (2 * two["one_env_steps_per_second"])
    assert two["efficiency"] == pytest.approx(ratio)
    assert two["efficiency_side_by_side"] > 0
    assert 0 < two["share_exchange"] < 1
    assert 0 <= two["share_wait"] < 1

    slow = result["slow"]
    assert (slow["processes"], slow["factor"], slow["pace_ms"]) == (2, 2.0, 0.0)
    (without,), (with_it,) = slow["without"], slow["with"]
    assert slow["ratio"] == pytest.approx(with_it / without)
    assert slow["cut_short_without"] == [0.0]
    assert 0 <= slow["cut_short_with"][0] <= 2
    gain, low, high = slow["reward_gain"]
    assert gain == pytest.approx(slow["reward_with"] - slow["reward_without"])
    assert low <= gain <= high


@pytest.mark.long
def test_two_processes_have_the_learning_curves_of_one() -> None:
    config = override(recipe("quickstart"), SMALL.split())
    one, several = learning_curves(config, 2, 8, seeds=range(2))
    assert one.shape == several.shape == (2, 4)
    assert not np.array_equal(one[0], one[1])  # other seeds, other links
    assert agree(intervals(one), intervals(several)), (one, several)
    assert not agree(intervals(one), intervals(several + 10.0))


@pytest.mark.long
@pytest.mark.net
def test_an_exchange_between_hosts() -> None:
    try:
        (model,) = measure_exchange((2,), (0.0,))
    except ConfigError as error:
        pytest.skip(str(error))
    assert 0.0 < model.seconds(2, 64) < model.seconds(2, 600_000)
    lines: list[str] = []
    found = project(1e5, recipe("quickstart"), 6_000, model, lines.append)
    assert len(lines) == 1 + len(found["processes"])
    assert found["efficiency"] == sorted(found["efficiency"], reverse=True)


@pytest.mark.long
@pytest.mark.net
def test_a_cluster_in_a_box(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid():
        assert _bench("box --processes 2 --check 0") == 2
        assert "need root" in capsys.readouterr().err
        pytest.skip("hosts made of network namespaces need root")
    words = "box --processes 2,3 --check 4 --updates 2 --rounds 1"
    found = _measured(tmp_path, words, "--set", *SMALL.split())
    assert [row["processes"] for row in found["rows"]] == [2, 3, 4, 64, 128, 1024]
    assert all(0 < row["efficiency"] <= 1.5 for row in found["rows"])
    assert found["errors"].keys() == {"exchanges", "update", "real", "quickest"}
    assert found["model"]["message"] > 0
    assert capsys.readouterr().out.count("beside gloo's ring") == 6


def test_two_workers_deliver_what_they_act(tmp_path: Path) -> None:
    words = "actors --workers 2 --seconds 6 --set dagger.rollout_length=64"
    (row,) = _measured(tmp_path, words)["actors"]
    assert row["workers"] == 2
    assert min(row["steps_per_second"], row["acted_per_second"]) > 0.0
    assert 0.0 < row["busy_share"] <= 1.0
    assert row["publish_ms_median"] <= row["publish_ms_p99"]


def test_threads_the_channel_and_torch_rpc(tmp_path: Path) -> None:
    words = "engines --engines in-process,channel,torch-rpc --workers 2 --seconds 0.2"
    rows = _measured(tmp_path, words)["engines"]
    assert set(rows) == {"in-process", "channel", "torch-rpc"}
    for row in rows.values():
        assert min(row["calls_per_second"], row["segments_per_second"]) > 0.0
        assert 0.0 < row["broadcast_ms_median"] <= row["broadcast_ms_p99"]


@pytest.mark.long
def test_real_packets(tmp_path: Path) -> None:
    told = _measured(tmp_path, "net --seconds 1 --flows 1 --rates 12")
    assert told["sender"]["packets_per_second"] > 0
    assert 0.0 <= told["steps"]["alone"]["within_1ms"] <= 1.0
    assert "emulated" in told["real_time"]
    assert told["emulator"][0]["carried_mbps"] > 0
    for (world,) in told["real_time"].values():
        assert world["flows"] == 1
        assert 0.0 < world["steps_per_second"] <= 101.0
        assert world["flows_per_core"] > 0


@pytest.mark.long
def test_who_hears_late_of_a_fall_does_worse(tmp_path: Path) -> None:
    found = _measured(tmp_path, "late falls --links 4")
    powers = [found[late]["power"] for late in ("0", "0.5", "1", "2")]
    assert powers == sorted(powers, reverse=True)
    assert powers[0] > 0.98
    assert powers[0] - powers[2] > 0.01
    assert found["1"]["recovery_rtts"] > 1.0 + found["0"]["recovery_rtts"]


@pytest.mark.long
def test_both_ways_to_tune_train_as_much(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    tiny = f"""--set {SMALL} held_out.links=1 held_out.seconds=0.2 env.suites=["random"]
        env.suite_weights=[] env.episode_s=1.0"""
    words = f"tune --population 2 --interval 1 --updates 2 --seeds 0 {tiny}"
    pbt, random = _measured(tmp_path, words, "--out", str(tmp_path / "out"))["tune"]
    assert (pbt["method"], random["method"]) == ("pbt", "random")
    assert pbt["steps"] == random["steps"] == 2 * 2 * 4 * 16
    assert all(one["best"] >= one["final"] >= one["median"] for one in (pbt, random))


@pytest.mark.long
@pytest.mark.net
def test_a_cluster_of_hosts(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    figures = _measured(tmp_path, "cluster")["cluster"]
    refused = {what for what, step in figures.items() if step.get("exit_code") == 2}
    assert refused == {"join with another token", "join where nothing listens", "stop host 1"}
    assert {"start", "join", "doctor", "no process is left there"} <= figures.keys()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("sim --steps x", "whole number"),
        ("parity --seeds 1", "--seeds 1: of one seed there is no interval"),
        ("parity --processes 1", "from 2 to 64"),
        ("scaling --rounds 1 --processes 1", "--processes 1: expected a count from 2 to 64"),
        ("scaling --rounds 1 --processes 2,x", "'x' is not a whole number from 1 to 64"),
        (f"{SCALING} --slow 0.5", "'0.5' is not a number from 1 to 100"),
        (f"{SCALING} {SLOW} {5 * UPDATE - 1}", f"--slow-steps {5 * UPDATE - 1}: expected"),
        (f"{SCALING} --json /proc/none/x", "cannot write /proc"),
        ("tune --out b --seeds 1,1", "1 is there twice; leave one out"),
        ("net --rates x", "'x' is not a number from 0.1 to 10000"),
        ("engines --engines rpc", "unknown engine 'rpc'"),
        ("late cellular", "expected links of given rates with one flow"),
        ("late --split train", "invalid choice: 'train'"),
        ("habits --out plot.gif", "expected a .png or .svg"),
    ],
)
def test_wrong_flags_are_one_line_before_anything_is_measured(
    capfd: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    settings = SETTINGS if words.startswith(SCALING) else ""
    assert _bench(f"{words} {settings}") == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("distrlcc: error: ")
    assert says in err


@pytest.mark.parametrize("command", ["scaling", "parity"])
def test_ctrl_c_is_one_line(capfd: pytest.CaptureFixture[str], command: str) -> None:
    scaling = command == "scaling"

    def interrupt() -> None:
        wait_until(lambda: bool(rank_processes(os.getpid())), 60, "a start")
        time.sleep(4.0 if scaling else 1.0)  # in training, or while they start
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    parity = f"parity --updates 1000000 {SETTINGS}"
    many = f"scaling --processes 2 --rounds 1000 {SETTINGS}"
    code = _bench(many if scaling else parity)
    thread.join()
    assert code == 130
    out, err = capfd.readouterr()
    assert out == ""
    *progress, line = err.splitlines()
    assert line == "distrlcc: error: ended by SIGINT; nothing was measured"
    several = "training 1000000 updates in one process and in 2 ..."
    assert progress == ([] if scaling else [several])
