"""`bench scaling` on a tiny configuration: figures that make sense, wrong flags, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from types import ModuleType

import pytest

from benchmarks.__main__ import COMMANDS
from distrlcc.cli.main import main

BENCH = ("scaling", "--processes", "2", "--rounds", "1")
SMALL = (
    "--set", "num_envs=4", "ppo.rollout_length=16", "ppo.minibatch_size=64",
    "network.hidden=[8]", "env.episode_s=0.5", "held_out.seconds=0.1",
)  # fmt: skip
PARITY = ("check", "parity", "--updates", "1000000")
UPDATE = 2 * 4 * 16


def _bench(*words: str) -> int:
    return main(words, "python -m benchmarks", COMMANDS, "benchmarks.bench_")


SLOW = ("--slow", "2", "--slow-pace", "0", "--slow-steps")


@pytest.mark.slow
@pytest.mark.long
def test_figures_make_sense(capfd: pytest.CaptureFixture[str]) -> None:
    steps = str(6 * UPDATE)
    assert _bench(*BENCH, *SLOW, steps, "--slow-seeds", "1", "--json", "-", *SMALL) == 0
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    result = json.loads(out)
    assert result.keys() == {"scaling", "slow"}
    assert result["scaling"].keys() == {"1", "2"}
    one, two = (result["scaling"][count] for count in "12")
    assert one == {"env_steps_per_second": two["one_env_steps_per_second"], "efficiency": 1.0}
    assert two["env_steps_per_second"] > 0
    assert two["one_env_steps_per_second"] > 0
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
    assert without > 0
    assert with_it > 0
    assert slow["ratio"] == pytest.approx(with_it / without)
    assert slow["cut_short_without"] == [0.0]
    assert 0 <= slow["cut_short_with"][0] <= 2
    gain, low, high = slow["reward_gain"]
    assert gain == pytest.approx(slow["reward_with"] - slow["reward_without"])
    assert low <= gain <= high


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--processes", "1"), "--processes 1: expected counts from 2 to 64"),
        (("--processes", "2,x"), "--processes 2,x: expected counts"),
        (("--processes", "65"), "--processes 65: expected counts"),
        (("--rounds", "0"), "whole number from 1"),
        (("--slow", "0.5"), "'0.5' is not a number from 1 to 100"),
        (("--slow-seeds", "0"), "whole number from 1"),
        ((*SLOW, "nan"), "'nan' is not a number"),
        ((*SLOW, str(5 * UPDATE - 1)), f"--slow-steps {5 * UPDATE - 1}: expected {5 * UPDATE} or "),
        (("--json", "/proc/none/x"), "cannot write"),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, tuple) else None,
)
def test_wrong_flags_are_one_line_before_anything_is_measured(
    capfd: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert _bench(*BENCH, *words, *SMALL) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("distrlcc: error: ")
    assert says in err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["scaling", "parity"])
def test_ctrl_c_is_one_line(
    capfd: pytest.CaptureFixture[str], conftest: ModuleType, command: str
) -> None:
    scaling = command == "scaling"

    def interrupt() -> None:
        conftest.wait_until(lambda: bool(conftest.rank_processes(os.getpid())), 60, "a start")
        time.sleep(4.0 if scaling else 1.0)  # in training, or while they start
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code = _bench(*BENCH, "--rounds", "1000", *SMALL) if scaling else main((*PARITY, *SMALL))
    thread.join()
    assert code == 130
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "distrlcc: error: ended by SIGINT; nothing was measured\n"
