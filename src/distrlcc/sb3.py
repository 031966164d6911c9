"""Stable-Baselines3 on our links, and its policies as policy files; needs the extra ``sb3``.

from stable_baselines3 import PPO
from distrlcc.sb3 import VecLink

links = VecLink(256)
model = PPO("MlpPolicy", links, n_steps=64, batch_size=4096)
model.learn(1_000_000)
links.save_policy(model, "mine.safetensors")
"""

from __future__ import annotations

import io
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.config import checked_seed
from distrlcc.env.config import EnvConfig
from distrlcc.errors import ConfigError, PolicyFileError, in_python, reading
from distrlcc.extras import naming_extras
from distrlcc.policy.policy_file import PolicyFile, save_policy
from distrlcc.policy.spec import expected_shapes

with naming_extras():
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.torch_layers import FlattenExtractor
    from stable_baselines3.common.vec_env import VecEnv

    from distrlcc.env.vector import make_vector_env
    from distrlcc.runs.run_config import ImitateConfig, NetworkConfig
    from distrlcc.runs.source import spaces_of, spec_in

_MOST_BYTES = 1 << 28
_KNOWN = "mlp_extractor.", "action_net.", "value_net.", "log_std"
"""Of an MlpPolicy's arrays."""


class VecLink(VecEnv):
    """N simulated links as one of SB3's vector environments: one compiled call for all of them."""

    def __init__(
        self, num_envs: int = 256, config: EnvConfig | None = None, **changes: Any
    ) -> None:
        """Take N and the environment's configuration; ``changes`` are as `make_vec` takes them."""
        self.links = make_vector_env(num_envs, config, **changes)
        self.info: dict[str, Any] = {}
        """What the newest step said of all links; the ``infos`` have only what SB3 reads."""
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
        value = None if attr_name == "render_mode" else getattr(self.links, attr_name)
        return [value] * len(list(self._get_indices(indices)))

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
        """Write a model that was trained on these links as a policy file.

        Raises:
            PolicyFileError: Its network is not dense layers alone, or saw something else than
                observations as they are.
        """
        normalised = model.get_vec_normalize_env()
        if normalised is not None and normalised.norm_obs:
            raise PolicyFileError(
                "the model saw observations that VecNormalize had changed; train it with "
                "norm_obs=False"
            )
        if type(model.policy.features_extractor) is not FlattenExtractor:
            raise PolicyFileError(
                "the model has a features extractor of its own, which a policy file cannot hold"
            )
        arrays = {k: v.numpy(force=True) for k, v in model.policy.state_dict().items()}
        activation = type(model.policy.activation_fn()).__name__.lower()  # type: ignore[operator]
        save_policy(path, converted(arrays, self.links.config, activation, "the model"))


def read_model(path: Path, config: EnvConfig, activation: str = "tanh") -> PolicyFile:
    """Read a model that SB3 saved; nothing that is pickled in it is run.

    Args:
        path: The model's ``.zip``.
        config: What it was trained on: its observations, actions, steps, pacing and guard.
        activation: Of its dense layers, as the file names it only within a pickle.

    Raises:
        PolicyFileError: It is no model of dense layers, or of other spaces.
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
    return converted(arrays, config, activation, str(path))


def converted(
    arrays: Mapping[str, NDArray[Any]], config: EnvConfig, activation: str, where: str
) -> PolicyFile:
    """Return the weights of an SB3 policy of dense layers as a policy file.

    Raises:
        PolicyFileError: They are of another kind of network, or of other spaces than ``config``'s.
    """
    # The layers of the policy's network, in order.
    prefix = "mlp_extractor.policy_net."
    found = re.findall(rf"^{re.escape(prefix)}(\d{{1,4}})\.weight$", "\n".join(arrays), re.M)
    layers = sorted(map(int, found))
    needed = [*(f"{prefix}{layer}" for layer in layers), "action_net"]
    parts = [f"{name}.{part}" for name in needed for part in ("weight", "bias")]
    if (
        not layers
        or set(parts) - set(arrays)
        or any(arrays[f"{name}.bias"].ndim != 1 for name in needed)
        or any(map(np.iscomplexobj, arrays.values()))
        or activation not in ("tanh", "relu")
        or not all(name.startswith(_KNOWN) for name in arrays)  # an extractor, a memory
    ):
        raise PolicyFileError(
            f"{where} is not an MlpPolicy of dense layers with tanh or ReLU, such as PPO's and "
            "A2C's; train one of those"
        )
    probe = make_vector_env(config.unit, config)
    hidden = tuple(len(arrays[f"{prefix}{layer}.bias"]) for layer in layers)
    network = NetworkConfig(hidden=hidden, activation="relu" if activation == "relu" else "tanh")
    spec = spec_in(spaces_of(probe), ImitateConfig(env=config, network=network))
    probe.close()
    own: dict[str, NDArray[Any]] = {}
    names = {f"trunk.{k}": f"{prefix}{layer}" for k, layer in enumerate(layers)}
    for ours, theirs in {**names, "policy_head": "action_net"}.items():
        for part in ("weight", "bias"):
            own[f"{ours}.{part}"] = arrays[f"{theirs}.{part}"].astype(np.float32)
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
    own["normalizer.std"][:] = 1.0
    if "log_std" in own and "log_std" in arrays:
        own["log_std"] = arrays["log_std"].astype(np.float32)
    notes = {"trained with": "Stable-Baselines3"}
    return PolicyFile(spec, own, "argmax", notes)
