"""A policy in NumPy, as it is put on traffic: observations and draws in, actions out."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from distrlcc.policy.numpy_network import NumpyNetwork
from distrlcc.policy.policy_file import PolicyFile, load_policy
from distrlcc.policy.sampling import log_softmax, sample_categorical, sample_gaussian

Float32 = NDArray[np.float32]


class NumpyPolicy:
    """Acts for N senders at once; needs neither torch nor Gymnasium."""

    def __init__(self, policy: PolicyFile) -> None:
        """Take a policy as read from a file or built by a learner."""
        self.spec = policy.spec
        self.acting = policy.acting
        self.notes = policy.notes
        self._network = NumpyNetwork(policy.spec, policy.arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NumpyPolicy:
        """Read a policy file.

        Raises:
            PolicyFileError: If the file is not a whole policy of its own spec.
        """
        return cls(load_policy(path))

    def initial_state(self, count: int) -> Float32:
        """Return the state ``[2, count, H]`` of senders that start; H is 0 for an MLP."""
        return self._network.initial_state(count)

    def forward(self, obs: Float32, state: Float32) -> tuple[Float32, Float32, Float32]:
        """Return logits or means ``[N, A]``, values ``[N]`` and the next state ``[2, N, H]``."""
        return self._network.step(obs, state)

    def act(
        self, obs: Float32, state: Float32, draws: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.int64] | Float32, Float32]:
        """Choose actions.

        Args:
            obs: Raw observations ``[N, D]``.
            state: ``[2, N, H]`` from :meth:`initial_state` or the last call.
            draws: Needed where :attr:`acting` is ``sample``: uniforms in [0, 1) ``[N]`` for
                discrete actions, standard normals ``[N, A]`` for continuous ones.

        Returns:
            Actions, int64 ``[N]`` or float32 ``[N, A]``, and the next state.

        Raises:
            ValueError: If draws are needed and not given.
        """
        head, _, state = self._network.step(obs, state)
        if self.acting == "argmax":
            return (head.argmax(axis=-1) if self.spec.action_kind == "discrete" else head), state
        if draws is None:
            raise ValueError("this policy acts by sampling: pass draws")
        if self.spec.action_kind == "discrete":
            return sample_categorical(log_softmax(head), draws), state
        return sample_gaussian(head, self._network.log_std, draws), state
