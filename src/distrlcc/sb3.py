"""Stable-Baselines3 on our links, and its policies as policy files; needs the extra ``sb3``.

from stable_baselines3 import PPO
from distrlcc.sb3 import VecLink

links = VecLink(256)
model = PPO("MlpPolicy", links, n_steps=64, batch_size=4096)
model.learn(1_000_000)
links.save_policy(model, "mine.safetensors")
"""

import io
import json
import math
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.config import checked_seed
from distrlcc.env.actions import GREATEST
from distrlcc.env.config import EnvConfig
from distrlcc.errors import ConfigError, PolicyFileError, in_python, reading
from distrlcc.extras import naming_extras
from distrlcc.policy.normalizer import CLIP
from distrlcc.policy.policy_file import PolicyFile, save_policy
from distrlcc.policy.spec import expected_shapes

with naming_extras():
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.torch_layers import FlattenExtractor
    from stable_baselines3.common.vec_env import VecEnv

    from distrlcc.env.vector import BOUND, make_vector_env
    from distrlcc.runs.run_config import ImitateConfig, NetworkConfig
    from distrlcc.runs.source import spaces_of, spec_in

_MOST_BYTES = 1 << 28
_DENSE = "mlp_extractor.policy_net."
_RELU = ("actor.latent_pi.", "actor.mu.", "q_net.q_net.")
"""Algorithms (SAC, TD3 and DQN) whose layers are ReLU unless they are told otherwise."""
_AFTER = {_DENSE: ["action_net"], _RELU[0]: ["actor.mu"], _RELU[1]: [], _RELU[2]: []}
"""Where a policy has the layers that act, and those that follow them; `_DENSE` is PPO's and A2C's.
"""
_SCALE = np.float32(2 ** math.ceil(math.log2(BOUND / CLIP)))
_MEMORY = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_WITHIN = "{} was trained within VecNormalize: the policy acts alike only if norm_obs was False"
_KNOWN = (
    *("mlp_extractor.", "action_net.", "value_net.", "log_std", "lstm_actor.", "lstm_critic."),
    *("critic.", "critic_target.", "actor_target.mu.", "actor.log_std.", "q_net_target.q_net."),
    *_RELU,
)
"""How the names of a policy's arrays begin."""


class VecLink(VecEnv):
    """N simulated links as one of SB3's vector environments: one compiled call for all of them."""

    def __init__(
        self, num_envs: int = 256, config: EnvConfig | None = None, **changes: Any
    ) -> None:
        """Take N and the environment's configuration; ``changes`` are as `make_vec` takes them."""
        self.links = make_vector_env(num_envs, config, **changes)
        if self.links.agents > 1:
            why = "it has no mask; VecLink.info['active'] tells which the next actions are for"
            warnings.warn(f"SB3 learns from rows in which no agent runs, too: {why}", stacklevel=2)
        self.info: dict[str, Any] = {}
        """Infos of the newest step, all links'; ``infos`` have only what SB3 reads."""
        self._actions: NDArray[Any] = np.zeros(0)
        spaces = self.links.single_observation_space, self.links.single_action_space
        super().__init__(num_envs, *spaces)

    def reset(self) -> NDArray[Any]:
        """Begin new episodes everywhere and return observations ``[N, D]``."""
        if any(options != self._options[0] for options in self._options):
            raise ConfigError("links are one environment: options are the same for all")
        observation, self.info = self.links.reset(seed=self._seeds[0], options=self._options[0])
        self._reset_seeds()
        self._reset_options()
        return observation

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Take a seed of the links for the next reset."""
        return super().seed(None if seed is None else checked_seed(seed))

    def step_async(self, actions: NDArray[Any]) -> None:
        """Take the actions of the next step."""
        self._actions = actions

    def step_wait(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], list[dict[str, Any]]]:
        """Step, and return observations, rewards, ends and infos; ends are truncations."""
        observation, reward, _, truncated, self.info = self.links.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for n in np.flatnonzero(truncated):
            # A link does not end: SB3 bootstraps from the last observation.
            last = self.info["final_obs"][n]
            infos[n] = {"terminal_observation": last, "TimeLimit.truncated": True}
        return observation, reward.astype(np.float32), truncated, infos

    def close(self) -> None:
        """Give back what the links hold."""
        self.links.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the links, once for each."""
        return [getattr(self.links, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: links have no attributes of their own."""
        raise NotImplementedError("links are one environment; make a VecLink of another config")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Refuse: links have no methods of their own."""
        raise NotImplementedError("links are one environment; call methods of VecLink.links")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Say that no link is wrapped."""
        return [False] * len(list(self._get_indices(indices)))

    @in_python
    def save_policy(self, model: BaseAlgorithm, path: str | os.PathLike[str]) -> None:
        """Write a model trained on these links as a policy file; raises PolicyFileError."""
        normalised = model.get_vec_normalize_env()
        if normalised is None and model._last_original_obs is not None:
            warnings.warn(_WITHIN.format("the model"), stacklevel=3)
        if normalised is not None and normalised.norm_obs:
            raise PolicyFileError(
                "the model saw observations that VecNormalize had changed; train it with "
                "norm_obs=False"
            )
        policy: Any = model.policy
        seeing = getattr(policy, "actor", None) or getattr(policy, "q_net", None) or policy
        if type(seeing.features_extractor) is not FlattenExtractor:
            raise PolicyFileError(
                "the model has a features extractor of its own, which a policy file cannot hold"
            )
        arrays = {k: v.numpy(force=True) for k, v in policy.state_dict().items()}
        activation = type(policy.activation_fn()).__name__.lower()
        if policy.squash_output and seeing is policy:
            activation = "squashed"  # by gSDE
        save_policy(path, converted(arrays, self.links.config, activation, "the model"))


def read_model(path: Path, config: EnvConfig, activation: str = "") -> PolicyFile:
    """Read a model's ``.zip`` that SB3 saved; nothing that is pickled in it is run.

    ``config`` is what it was trained on; the activation of its dense layers, if empty, is as the
    file or SB3 has it. Raises PolicyFileError at other models, or of other spaces.
    """
    import torch  # noqa: PLC0415 - SB3 has it

    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise PolicyFileError(f"no model at {path} that can be read; check the path")
    with (
        reading(PolicyFileError, f"{path} is no model of Stable-Baselines3", "; save it again"),
        warnings.catch_warnings(action="ignore"),
        zipfile.ZipFile(path) as model,
    ):
        if model.getinfo("policy.pth").file_size > _MOST_BYTES:
            raise ValueError(f"its weights have more than {_MOST_BYTES >> 20} MiB")
        data = io.BytesIO(model.read("policy.pth"))
        try:
            weights = torch.load(data, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            raise PolicyFileError(
                f"{path} holds more than weights, which was not run; take models only from people "
                "whom you trust"
            ) from None
        arrays = {str(name): value.numpy(force=True) for name, value in dict(weights).items()}
        if sum(array.nbytes for array in arrays.values()) > _MOST_BYTES:  # some share their bytes
            raise ValueError(f"its weights have more than {_MOST_BYTES >> 20} MiB")
        said = json.loads(model.read("data")) if "data" in model.namelist() else {}
        if not activation:
            told = said.get("policy_kwargs", {})
            usual = "relu" if any(name.startswith(_RELU) for name in arrays) else "tanh"
            activation = re.findall(r"\w+", told.get("activation_fn", usual).lower())[-1]
            activation = "squashed" if told.get("squash_output") else activation
    if said.get("_last_original_obs") is not None:
        warnings.warn(_WITHIN.format(path), stacklevel=2)
    return converted(arrays, config, activation, str(path))


def converted(
    arrays: Mapping[str, NDArray[Any]], config: EnvConfig, activation: str, where: str
) -> PolicyFile:
    """Return an SB3 policy as a policy file, without critics; raises PolicyFileError at others."""
    # The layers of what acts, in order; the last makes logits or means.
    prefix = next((p for p in _RELU if any(n.startswith(p) for n in arrays)), _DENSE)
    found = re.findall(rf"^{re.escape(prefix)}(\d{{1,4}})\.weight$", "\n".join(arrays), re.M)
    layers = [f"{prefix}{layer}" for layer in sorted(map(int, found))] + _AFTER[prefix]
    recurrent, squashed = "lstm_actor.weight_ih_l0" in arrays, prefix.startswith("actor.")
    memory = {f"lstm.{part}": f"lstm_actor.{part}_l0" for part in _MEMORY if recurrent}
    needed = [f"{name}.{part}" for name in layers for part in ("weight", "bias")]
    if (
        len(layers) < (1 if recurrent else 2)
        or {*needed, *memory.values()} - set(arrays)
        or any(arrays[f"{name}.bias"].ndim != 1 for name in layers)
        or any(map(np.iscomplexobj, arrays.values()))
        or activation not in ("tanh", "relu")
        or not all(name.startswith(_KNOWN) for name in arrays)  # an extractor
    ):
        raise PolicyFileError(
            f"{where} is not an MlpPolicy of dense layers with tanh or ReLU, such as PPO's, A2C's "
            "and DQN's, nor RecurrentPPO's MlpLstmPolicy; train one of those"
        )
    if squashed and activation != "tanh":
        raise PolicyFileError(
            f"{where}: its actor ends in a tanh, which a policy file has only where all layers are "
            "tanh; train it with policy_kwargs={'activation_fn': torch.nn.Tanh}"
        )
    if recurrent and (len(layers) > 2 or "lstm_actor.weight_ih_l1" in arrays):
        raise PolicyFileError(
            f"{where}: a policy file has one LSTM layer and at most one dense layer behind it; "
            "train it with policy_kwargs={'net_arch': {'pi': [64], 'vf': [64]}}"
        )
    # A squashed mean is a dense layer of its own, which the head scales to the actions' bounds.
    body = layers if squashed else layers[:-1]
    widths = tuple(len(arrays[f"{name}.bias"]) for name in body)
    network = NetworkConfig(hidden=widths, activation="relu" if activation == "relu" else "tanh")
    if recurrent:
        size = len(arrays[memory["lstm.bias_ih"]]) // 4
        network = replace(network, kind="lstm", hidden=(size,), post_hidden=sum(widths))
    probe = make_vector_env(config.unit, config)
    spec = spec_in(spaces_of(probe), ImitateConfig(env=config, network=network))
    probe.close()
    names = {"post" if recurrent else f"trunk.{k}": name for k, name in enumerate(body)}
    names |= {} if squashed else {"policy_head": layers[-1]}
    pairs = {f"{o}.{p}": f"{t}.{p}" for o, t in names.items() for p in ("weight", "bias")} | memory
    own = {ours: arrays[theirs].astype(np.float32) for ours, theirs in pairs.items()}
    if squashed:
        size = widths[-1]
        own["policy_head.weight"] = np.eye(size, dtype=np.float32) * np.float32(GREATEST)
        own["policy_head.bias"] = np.zeros(size, np.float32)
    if recurrent and body:  # ours also sees what the LSTM saw
        blind = np.zeros((sum(widths), spec.observation_size), np.float32)
        own["post.weight"] = np.concatenate([blind, own["post.weight"]], axis=1)
    for name, array in own.items():
        if array.shape != expected_shapes(spec)[name]:
            raise PolicyFileError(
                f"{where}: {name} has shape {array.shape}, where {config.observation!r} and "
                f"{config.action!r} have {expected_shapes(spec)[name]}; give --set with the "
                "observation and action that it was trained on, as --set action=fine"
            )
    # SB3's critic has layers of its own, which a sender has no use for.
    for name, shape in expected_shapes(spec).items():
        if name not in own:
            own[name] = np.zeros(shape, np.float32)
    # Our normaliser clips at `CLIP`. What SB3 saw goes to `BOUND`: it is scaled down, and the first
    # layer undoes that, which changes no digit, as the scale is a power of 2.
    own["normalizer.std"][:] = _SCALE
    own["lstm.weight_ih" if recurrent else "trunk.0.weight"] *= _SCALE
    if "log_std" in own and arrays.get("log_std", np.zeros(0)).shape == own["log_std"].shape:
        own["log_std"] = arrays["log_std"].astype(np.float32)
    return PolicyFile(spec, own, "argmax", {"trained with": "Stable-Baselines3"})
