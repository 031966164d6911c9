"""Runs that collapse: restored in one process and in two, and the same after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distrlcc.cli.main import main
from distrlcc.config import override
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.learn.ppo import PPO
from distrlcc.policy.policy_file import load_policy
from distrlcc.recipes.registry import recipe
from distrlcc.runs.checkpoint import checksum, load_checkpoint, pack, unpack
from distrlcc.runs.run_state import RunState, env_run
from distrlcc.runs.train import iterate
from tests.parallel.commands import rows, saved, settings

UPDATE = 8 * 16
COLLAPSES = f"""num_envs=8 env.episode_s=0.5 network.hidden=[8] ppo.rollout_length=16
    ppo.minibatch_size=64 held_out.every=100 held_out.links=2 held_out.seconds=0.3
    ppo.lr_schedule=[[0,1e-3],[{6 * UPDATE},1e-3],[{6 * UPDATE + 1},5.0]]
    alarm.patience=2 alarm.keep_every=3 alarm.most_restores=2""".split()


def _trainer(*changes: str) -> RunState:
    settings = [*COLLAPSES, *changes]
    return env_run(override(recipe("quickstart"), settings, strict=False))


def test_a_resumed_run_restores_the_same_state_in_the_same_update() -> None:
    whole, cut = _trainer(), _trainer()
    lines = {}
    for update in range(1, 17):
        metrics, _ = iterate(whole)
        if whole.restored:
            lines[update] = whole.restored
            assert whole.learner.weights().version == update  # what counts progress goes on
            assert metrics["steps"] == update * UPDATE
        if update == 7:  # it collapses, and has not been restored
            assert not lines
            cut.load_state_dict(unpack(pack(whole.state_dict())))
        if update > 7:
            iterate(cut)
            assert cut.restored == whole.restored
    assert 1 <= len(lines) <= 2
    assert "restored the last good state" in next(iter(lines.values()))
    assert checksum(whole.learner.state_dict()) == checksum(cut.learner.state_dict())
    assert whole.restorer is not None
    assert cut.restorer is not None
    assert checksum(whole.restorer.state_dict()) == checksum(cut.restorer.state_dict())


def test_right_after_a_restore_the_weights_are_the_good_ones() -> None:
    trainer = _trainer()
    good = None
    while not trainer.restored:
        iterate(trainer)
        if trainer.counters.update == 3:
            good = trainer.learner.weights()
        assert trainer.counters.update < 16
    assert good is not None
    for name, array in trainer.learner.weights().arrays.items():
        np.testing.assert_array_equal(array, good.arrays[name])
    metrics, _ = iterate(trainer)
    assert metrics["entropy_coeff"] == pytest.approx(10 * 0.003)
    metrics, _ = iterate(trainer)
    assert 0.003 < metrics["entropy_coeff"] < 10 * 0.003


def test_told_not_to_act_it_only_warns_and_imitation_is_left_alone() -> None:
    trainer = _trainer("alarm.act=false")
    rang = [iterate(trainer) and trainer.rang for _ in range(10)]
    assert any(rang)
    assert trainer.restorer is None
    assert env_run(override(recipe("imitation"), ["num_envs=2"])).restorer is None


@pytest.mark.long
def test_two_processes_restore_alike(tmp_path: Path) -> None:
    out = tmp_path / "run"
    amount = f"total_steps={14 * UPDATE}"
    exactly = ("distributed.straggler_share=0", "distributed.sync_check_every=1")
    words = ("--processes", "2", "--no-tensorboard", "--set", *COLLAPSES, amount, *exactly)
    assert main(["train", "quickstart", "--out", str(out), *words]) == 0
    lines = rows(out)
    assert [line["ranks"] for line in lines] == [2.0] * 14  # no rank's weights differed
    events = [line["events"] for line in lines if "events" in line]
    assert any("collapse: restored" in event for each in events for event in each)
    state = saved(out)
    assert state["recovery"]["restores"] == len(events)


@pytest.mark.parametrize("name", ["aurora", "quickstart"])
@pytest.mark.parametrize("act", ["true", "false"])
def test_weights_that_are_not_numbers_do_not_act(act: str, name: str) -> None:
    words = ("num_envs=4", "network.hidden=[8]", "ppo.rollout_length=8", f"alarm.act={act}")
    trainer = env_run(override(recipe(name), words))
    _, stats = iterate(trainer)
    assert isinstance(trainer.learner, PPO)
    with torch.no_grad():
        trainer.learner.optimizer.flat.fill_(float("nan"))
    if act == "false":
        with pytest.raises(ConfigError, match="diverged"):
            trainer.commit(stats)
        return
    trainer.commit(stats)
    assert "restored" in str(trainer.restored)
    assert "no numbers" in str(trainer.rang)
    iterate(trainer)


def _spoil(patch: pytest.MonkeyPatch, updates: set[int]) -> None:
    """Let the second environment pay what is no number in some updates, counted from 0."""
    step, steps = LinkVectorEnv.step, 0

    def spoiled(env: LinkVectorEnv, actions: Any) -> Any:
        nonlocal steps
        steps += env.num_envs == 8  # not where held-out links are scored
        found = step(env, actions)
        if env.num_envs == 8 and (steps - 1) // 16 in updates:
            found[1][1] = np.nan
        return found

    patch.setattr(LinkVectorEnv, "step", spoiled)


def _finite(out: Path) -> None:
    """Check that nothing which a run has saved holds what is no number."""
    for name in ("latest", "previous", "best"):
        checkpoint = load_checkpoint(out / "checkpoints" / f"{name}.safetensors")
        model = checkpoint["learner"]["model"]
        for array in (model["parameters"], model["adam_mean"], model["normalizer"]["mean"]):
            assert np.isfinite(np.asarray(array)).all()
    arrays = load_policy(out / "policy.safetensors").arrays
    assert all(np.isfinite(array).all() for array in arrays.values())


RUN = settings(*COLLAPSES[:7], "checkpoint_every=1", "held_out.every=2")


def test_an_update_whose_numbers_are_not_finite_is_refused_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _spoil(monkeypatch, {2, 4, 5, 6})
    out = tmp_path / "run"
    words = ("train", "quickstart", "--no-tensorboard", "--out", str(out), "--set", *RUN)
    assert main([*words, f"total_steps={6 * UPDATE}"]) == 0
    metrics = rows(out)
    refused = "refused: a statistic is not finite: reward"
    assert [row.get("events") for row in metrics] == [
        [refused] if update in (3, 5, 6, 7) else None for update in range(1, 11)
    ]
    assert capsys.readouterr().err.count(refused) == 4
    # Their statistics count as nothing, themselves they count as updates.
    assert [row["steps"] for row in metrics[:4]] == [UPDATE, 2 * UPDATE, 2 * UPDATE, 3 * UPDATE]
    assert saved(out)["learner"]["model"]["version"] == 10
    _finite(out)


def test_training_that_gives_no_number_again_and_again_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _spoil(monkeypatch, set(range(4, 99)))
    out = tmp_path / "run"
    words = ("train", "quickstart", "--no-tensorboard", "--out", str(out), "--set", *RUN)
    assert main([*words, f"total_steps={20 * UPDATE}"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert "training diverged" in line
    assert "--resume" in line
    # The last good state is restored as often as it may be before.
    metrics = rows(out)
    events = [event for row in metrics for event in row.get("events", [])]
    assert sum("restored the last good state" in event for event in events) == 3
    assert [row["update"] for row in metrics] == list(range(1, 20))
    _finite(out)
