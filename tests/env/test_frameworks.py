"""Gymnasium's and Stable-Baselines3's own ways to our links, and back with a policy."""

import io
import json
import re
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from distrlcc.cli.main import main
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import PARTS, RewardConfig
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import PolicyFileError
from distrlcc.library import evaluate, load_policy


def test_gymnasium_makes_our_vector_environment() -> None:
    env = gymnasium.make_vec("distrlcc.env:distrlcc/Link-v0", num_envs=6, suites=("slow",))
    assert isinstance(env.unwrapped, LinkVectorEnv)
    env.reset(seed=3)
    for _ in range(60):
        _, reward, _, _, info = env.step(np.full(6, 3))
    assert reward.shape == (6,)
    # What rewards are made of is enough to compute ours, where delays are below one RTT.
    assert {info[name].shape for name in PARTS} == {(6,)}
    batch = env.unwrapped.batch
    mean = batch.mean_rate * 8e-6 * 1504
    wasted = (1.0 - info["utilisation"]) * info["capacity_mbps"] / mean
    ours = 1.0 - wasted - 0.5 * info["queueing_delay_rtt"] - 10.0 * info["loss"]
    small = info["queueing_delay_rtt"] < 1.0
    assert small.any()
    np.testing.assert_allclose(ours[small], reward[small], rtol=1e-6)
    env.close()


@pytest.mark.slow
def test_a_model_of_sb3_is_trained_on_many_links_and_becomes_a_policy(
    tmp_path: Path, receiver: str, capfd: pytest.CaptureFixture[str]
) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="needs Stable-Baselines3")
    from stable_baselines3.common import vec_env

    from distrlcc.sb3 import VecLink, read_model

    links = VecLink(16, EnvConfig(action="fine"), episode_s=0.5)
    kwargs = {"net_arch": [16, 8]}
    model = sb3.PPO("MlpPolicy", links, n_steps=60, batch_size=96, policy_kwargs=kwargs, seed=1)
    model.learn(16 * 120)
    own, read = tmp_path / "own.safetensors", tmp_path / "read.safetensors"
    links.save_policy(model, own)
    normalised = sb3.PPO("MlpPolicy", vec_env.VecNormalize(links), n_steps=4)
    with pytest.raises(PolicyFileError, match="train it with norm_obs=False"):
        links.save_policy(normalised, own)
    # What it saved does not say so, but that there was one.
    normalised.learn(64).save(tmp_path / "n.zip")
    normalised = sb3.PPO.load(tmp_path / "n.zip", links)
    with pytest.warns(match="the model was trained within VecNormalize.*if norm_obs was False"):
        links.save_policy(normalised, tmp_path / "n.safetensors")
    with pytest.warns(match=r"n\.zip was trained within VecNormalize"):
        read_model(tmp_path / "n.zip", links.links.config)
    capfd.readouterr()
    model.save(tmp_path / "model.zip")
    words = ["import", "sb3", str(tmp_path / "model.zip"), "--out", str(read)]
    assert main(words) == 2
    assert main([*words, "--set", "action=fine"]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(r"model\.zip: \S+ has shape .* give --set with the observation", line)
    with pytest.warns(match="learns from rows in which no agent runs"):
        VecLink(4, suites=("shared",), agents=4)
    # Where it was shown a preference, its file says so.
    told = VecLink(2, reward=RewardConfig(delay_weights=(0.05, 5.0)))
    told.save_policy(sb3.PPO("MlpPolicy", told, n_steps=4, batch_size=8), own.with_name("told"))
    assert load_policy(own.with_name("told"), prefer=0.2).preference == 0.2
    # It acts as the model does.
    observation: Any = links.reset()
    for _ in range(30):
        expected, _ = model.predict(observation, deterministic=True)
        for path in (own, read):
            np.testing.assert_array_equal(load_policy(path).act(observation), expected)
        observation, _, ends, infos = links.step(expected)
    assert [bool(info) for info in infos] == list(ends)
    assert np.isfinite(evaluate(str(read), links=2)["power"]).all()
    sent = tmp_path / "sent.json"
    words = ["send", receiver, str(read), "--seconds", "0.5", "--json", str(sent)]
    assert main(words) in (0, 1)  # 1: on a busy machine
    assert json.loads(sent.read_text())["acked"] > 0


TANH, RELU = torch.nn.Tanh, torch.nn.ReLU
ONE = {"net_arch": {"pi": [16], "vf": [8]}, "lstm_hidden_size": 12}
NONE = {"net_arch": {"pi": [], "vf": []}, "lstm_hidden_size": 12}
TAKEN = [
    ("PPO", "fine", {"net_arch": [16, 8]}),
    ("PPO", "rate", {"net_arch": [16], "activation_fn": RELU}),
    ("A2C", "fine", {}),
    ("DQN", "fine", {"net_arch": [16, 8]}),
    ("SAC", "rate", {"net_arch": [16, 8], "activation_fn": TANH}),
    ("TD3", "genet", {"net_arch": [16], "activation_fn": TANH}),
    ("DDPG", "rate", {"net_arch": [16, 8], "activation_fn": TANH}),
    ("RecurrentPPO", "fine", ONE),
    ("RecurrentPPO", "rate", {**ONE, "activation_fn": RELU, "enable_critic_lstm": False}),
    ("RecurrentPPO", "rate", NONE),
]
LEFT = [
    ("SAC", "rate", {}, "its actor ends in a tanh"),
    ("TD3", "rate", {"activation_fn": RELU}, "its actor ends in a tanh"),
    ("SAC", "rate", {"activation_fn": TANH, "sde": True}, "is not an MlpPolicy"),
    ("PPO", "rate", {"squash_output": True, "sde": True}, "is not an MlpPolicy"),
    ("PPO", "fine", {"activation_fn": torch.nn.ELU}, "is not an MlpPolicy"),
    ("RecurrentPPO", "fine", {}, "at most one dense layer behind it"),
    ("RecurrentPPO", "fine", {"n_lstm_layers": 2, **ONE}, "one LSTM layer"),
]


def made(kind: str, action: str, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return links, and an untrained model of SB3's or of sb3-contrib's for them."""
    pytest.importorskip("stable_baselines3", reason="needs Stable-Baselines3")
    import stable_baselines3

    from distrlcc.sb3 import VecLink

    home, name = stable_baselines3, "MlpPolicy"
    more: dict[str, Any] = {"use_sde": True} if "sde" in kwargs else {}
    if kind == "RecurrentPPO":
        home = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
        name = "MlpLstmPolicy"
    if kind in ("DQN", "SAC", "TD3", "DDPG"):
        more |= {"buffer_size": 10}
    links, kwargs = VecLink(4, action=action), {k: v for k, v in kwargs.items() if k != "sde"}
    model = getattr(home, kind)(name, links, policy_kwargs=kwargs, device="cpu", seed=1, **more)
    return links, model


@pytest.mark.parametrize(("kind", "action", "kwargs"), TAKEN)
def test_each_kind_acts_as_its_model_does(
    kind: str, action: str, kwargs: dict[str, Any], tmp_path: Path
) -> None:
    links, model = made(kind, action, kwargs)
    own, read = tmp_path / "own.safetensors", tmp_path / "read.safetensors"
    links.save_policy(model, own)
    model.save(tmp_path / "model.zip")
    words = ["import", "sb3", str(tmp_path / "model.zip"), "--out", str(read)]
    assert main([*words, "--set", f"action={action}"]) == 0
    draws, state, starts = np.random.default_rng(1), None, np.ones(4, bool)
    policies = [load_policy(path) for path in (own, read)]
    for scale in (0.1, 1.0, 20.0, 300.0):  # some observations are far above 10
        shape = 4, *links.observation_space.shape
        seen = draws.normal(0.0, scale, shape).clip(-1000, 1000).astype(np.float32)
        expected, state = model.predict(seen, state, starts, deterministic=True)
        starts = np.zeros(4, bool)
        for policy in policies:
            found = np.clip(policy.act(seen), -10, 10) if action != "fine" else policy.act(seen)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "action", "kwargs", "says"), LEFT)
def test_what_a_policy_file_cannot_hold_is_one_line(
    kind: str, action: str, kwargs: dict[str, Any], says: str, tmp_path: Path
) -> None:
    from distrlcc import sb3

    links, model = made(kind, action, kwargs)
    with pytest.raises(PolicyFileError, match=says):
        links.save_policy(model, tmp_path / "own.safetensors")
    model.save(tmp_path / "model.zip")
    with pytest.raises(PolicyFileError, match=says):
        sb3.read_model(tmp_path / "model.zip", EnvConfig(action=action))
    assert not (tmp_path / "own.safetensors").exists()


ID = "distrlcc.env:distrlcc/Link-v0"


@pytest.mark.parametrize("mode", [None, "ansi", "rgb_array"])
def test_gymnasiums_and_sb3s_checkers_pass_in_each_render_mode(mode: str | None) -> None:
    import warnings

    from gymnasium.utils.env_checker import check_env

    env = gymnasium.make(ID, render_mode=mode, episode_s=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check_env(env.unwrapped)
    for _ in range(2):
        env.reset(seed=1)
        if mode:
            assert env.render() is not None
        ended = False
        while not ended:
            *_, ended, _ = env.step(3)
        frame: Any = env.render()
        if mode == "ansi":
            assert re.fullmatch(r" *\d.* s  rate \[#* *\] .* Mbit/s  queue \[.* packets\n", frame)
        elif mode:
            assert (frame.shape, frame.dtype) == ((240, 360, 3), np.uint8)
            colours = {tuple(colour) for colour in frame.reshape(-1, 3).tolist()}
            assert {(40, 90, 200), (40, 150, 80)} <= colours
        else:
            assert frame is None
    many = gymnasium.make_vec(ID, num_envs=3, render_mode=mode, episode_s=0.5)
    many.reset(seed=1)
    many.step(np.full(3, 3))
    frames: Any = many.render()
    assert frames is None if mode is None else len(frames) == 3
    env.close()
    many.close()
    with pytest.raises(Exception, match=r"unknown render mode 'human'|HumanRendering|pygame"):
        gymnasium.make(ID, render_mode="human").reset()


def test_rates_queue_and_window_are_drawn_as_they_are() -> None:
    from distrlcc.env import drawing

    rows = [np.array([k / 10, 24.0, 12.0, float(k), 40.0]) for k in range(1, 5)]
    line = drawing.text(rows)
    assert line == (
        f"  0.40 s  rate [{'#' * 10}{' ' * 10}] 12.0 of 24.0 Mbit/s  "
        f"queue [{'#' * 20}] 4.0 ms  window 40 packets\n"
    )
    panels = drawing.picture(rows).reshape(3, 80, 360, 3)
    colours = (40, 90, 200), (200, 50, 50), (40, 150, 80)
    both = zip(panels, colours, strict=True)
    rate, queue, window = ((panel == colour).all(-1).sum(0) + 1 for panel, colour in both)
    assert (rate == 40).all()  # half of the capacity; the lowest row is a line
    assert queue[[0, 100, 200, 300]].tolist() == [20, 40, 60, 80]
    assert (window == 80).all()
    assert drawing.text([]) == "an episode begins\n"
    assert (drawing.picture([]).reshape(panels.shape)[:, :-1] == 255).all()


@pytest.mark.parametrize("kind", ["PPO by id", "make_vec_env", "CleanRL", "RL Zoo"])
def test_tools_make_the_environment_by_its_id(kind: str, tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="needs Stable-Baselines3")
    from stable_baselines3.common.env_util import make_vec_env

    if kind == "PPO by id":
        sb3.PPO("MlpPolicy", ID, n_steps=8, batch_size=8, device="cpu").learn(8)
    elif kind == "make_vec_env":
        links = make_vec_env(ID, n_envs=2, seed=1, env_kwargs={"episode_s": 0.5})
        sb3.PPO("MlpPolicy", links, n_steps=8, batch_size=8, device="cpu").learn(16)
        assert np.asarray(links.render()).shape == (480, 360, 3)  # both in one
    elif kind == "CleanRL":  # as its ppo.py makes them

        def thunk(index: int) -> Any:
            env = gymnasium.make(ID, render_mode="rgb_array") if not index else gymnasium.make(ID)
            return gymnasium.wrappers.RecordEpisodeStatistics(env)

        envs = gymnasium.vector.SyncVectorEnv([partial(thunk, i) for i in range(2)])
        assert isinstance(envs.single_action_space, gymnasium.spaces.Discrete)
        envs.reset(seed=1)
        assert envs.step(envs.action_space.sample())[1].shape == (2,)
    else:
        manager = pytest.importorskip("rl_zoo3.exp_manager", reason="RL Zoo is not installed")
        import argparse

        path = tmp_path / "ppo.yml"
        path.write_text(
            "distrlcc/Link-v0:\n  n_timesteps: 16\n  policy: MlpPolicy\n  n_steps: 8\n"
            "  batch_size: 8\n  n_envs: 1\n"
        )
        args, folder = argparse.Namespace(), str(tmp_path / "logs")
        made = manager.ExperimentManager(
            *(args, "ppo", "distrlcc/Link-v0", folder), config=str(path), device="cpu", verbose=0
        )
        model, _ = made.setup_experiment()
        made.learn(model)


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("no zip", "is no model of Stable-Baselines3"),
        ("nothing", "check the path"),
        ("a pickle", "which was not run"),
        ("weights of nothing", "is not an MlpPolicy"),
        ("an extractor", "is not an MlpPolicy"),
        ("another action space", "shape"),
    ],
)
def test_what_is_no_model_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], wrong: str, says: str
) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="needs Stable-Baselines3")
    path, out = tmp_path / "model.zip", tmp_path / "policy.safetensors"
    if wrong == "no zip":
        path.write_bytes(b"nothing")
    elif wrong in ("a pickle", "weights of nothing"):
        inner = io.BytesIO()
        held = {"x.mlp_extractor.policy_net.0.weight": torch.zeros(2)}
        torch.save(Evil(tmp_path / "run") if wrong == "a pickle" else held, inner)
        with zipfile.ZipFile(path, "w") as model:
            model.writestr("policy.pth", inner.getvalue())
    elif wrong == "an extractor":
        from stable_baselines3.common.torch_layers import FlattenExtractor

        class Mixed(FlattenExtractor):
            def __init__(self, space: gymnasium.Space[Any]) -> None:
                super().__init__(space)
                self.mix = torch.nn.Linear(4, 4)

        kwargs = {"features_extractor_class": Mixed}
        sb3.PPO("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs=kwargs).save(path)
    elif wrong != "nothing":
        sb3.PPO("MlpPolicy", "CartPole-v1", device="cpu").save(path)
    capfd.readouterr()
    assert main(["import", "sb3", str(path), "--out", str(out)]) == 2
    line = capfd.readouterr().err
    assert says in line
    assert line.count("\n") == 1
    assert not out.exists()
    assert not (tmp_path / "run").exists()
