"""Genet's curriculum: links are proposed where the policy trails a rule-based baseline most.

Source: Xia et al., "Genet: Automatic Curriculum Generation for Learning Adaptation in Networking",
SIGCOMM 2022, algorithm 2. A search (Optuna's TPE in the place of Genet's Bayesian optimisation)
looks for the family of links with the greatest gap between the baseline's reward and the policy's.
The newest family is then drawn with probability ``share``; the base suites and all families before
keep the rest in their proportions, so that after k searches the base has ``(1 - share) ** k``, as
Genet's code weighs its ranges.

Rank 0 searches, where it also scores, and the others hear of it with the shared state before the
next update. So a family is drawn from after the update that follows its search, by all ranks.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from distrlcc.env.config import EnvConfig
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.policy.policy_file import PolicyFile
from distrlcc.runs.curriculum_config import CurriculumConfig
from distrlcc.runs.reward_gap import baseline_rewards, policy_rewards
from distrlcc.seeding import stream_key
from distrlcc.sim.link_family import NAMES, LinkFamily
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import Suite

_FIRST_TRIALS = 10
"""Trials at random before TPE proposes; Genet's optimisation begins with as many."""


@dataclass(frozen=True)
class Proposal:
    """A family that a search found."""

    update: int
    """The search came after this update."""
    gap: float
    """Baseline's less policy's mean reward per step, over the trial's links."""
    baseline: float
    """The baseline's mean reward per step there."""
    trials: int
    family: LinkFamily

    def __str__(self) -> str:
        """Say what was found, in a line."""
        return f"curriculum: gap {self.gap:.3g} at {self.family}"

    def suite(self, seconds: float) -> Suite:
        """Return the family's links as a suite without end."""
        name = f"curriculum-{self.update}"
        return Suite(name, partial(_family_link, self.family, name, self.update, seconds), 2**31)


def _family_link(
    family: LinkFamily, name: str, update: int, seconds: float, split: str, index: int
) -> Scenario:
    return family.scenario(f"{name}/{split}/{index}", index, update, seconds)


class Curriculum:
    """The proposals so far, and the search for the next."""

    def __init__(self, config: CurriculumConfig, env: EnvConfig, seed: int) -> None:
        """Begin without proposals.

        Args:
            config: How to search.
            env: What agents see, do and are paid for.
            seed: The run's.

        Raises:
            ConfigError: Optuna is not installed.
        """
        if importlib.util.find_spec("optuna") is None:
            raise ConfigError(
                "the section curriculum needs optuna, which is not installed: pip install "
                "'distrlcc[curriculum]'"
            )
        self.proposals: list[Proposal] = []
        self._config, self._env, self._seed = config, env, seed
        # Compiles the schemes now, and not while the other ranks wait for a search.
        first = config.ranges.at(dict.fromkeys(NAMES, 0.0)).scenario("first", 0, 0, 0.1)
        for name in config.baselines:
            baseline_rewards(name, env, [first])

    def due(self, update: int) -> bool:
        """Say whether a search follows this update."""
        return update > 0 and update % self._config.every == 0

    def search(self, policy: PolicyFile, update: int) -> Proposal:
        """Find the family of links on which a policy trails most, and add it.

        The same policy, seed and update find the same.
        """
        import optuna  # noqa: PLC0415 - an optional extra

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        config, seed = self._config, int(stream_key(self._seed, f"curriculum/{update}") >> 32)
        sampler = optuna.samplers.TPESampler(n_startup_trials=_FIRST_TRIALS, seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        found: list[Proposal] = []
        while len(found) < config.trials:
            # What is drawn at random depends on no result, so it is measured in one batch.
            count = min(_FIRST_TRIALS, config.trials) if not found else 1
            trials = [study.ask() for _ in range(count)]
            families = [
                config.ranges.at({name: trial.suggest_float(name, 0.0, 1.0) for name in NAMES})
                for trial in trials
            ]
            measured = self._measure(families, policy, update)
            found += measured
            for trial, proposal in zip(trials, measured, strict=True):
                study.tell(trial, proposal.gap)
        best = max(found, key=lambda proposal: proposal.gap)
        self.proposals.append(best)
        return best

    def _measure(
        self, families: Sequence[LinkFamily], policy: PolicyFile, update: int
    ) -> list[Proposal]:
        """Return the families' gaps."""
        config = self._config
        scenarios = [
            family.scenario(f"search/{index}", index, update, config.seconds)
            for family in families
            for index in range(config.links)
        ]
        rewards = [baseline_rewards(name, self._env, scenarios) for name in config.baselines]
        best = np.max(rewards, axis=0).reshape(len(families), config.links)
        own = policy_rewards(policy, self._env, scenarios, self._seed).reshape(best.shape)
        gaps, baselines = (best - own).mean(axis=1).tolist(), best.mean(axis=1).tolist()
        return [
            Proposal(update, gap, baseline, config.trials, family)
            for gap, baseline, family in zip(gaps, baselines, families, strict=True)
        ]

    def mix_into(self, env: LinkVectorEnv, update: int) -> None:
        """Let an environment draw from what was proposed before an update."""
        known = [proposal for proposal in self.proposals if proposal.update < update]
        env.mix_in([proposal.suite(self._env.episode_s) for proposal in known], self.shares(known))

    def shares(self, proposals: Sequence[Proposal]) -> list[float]:
        """Return the probability of each; the base suites have the rest."""
        share, count = self._config.share, len(proposals)
        return [share * (1.0 - share) ** (count - 1 - k) for k in range(count)]

    def table(self) -> list[dict[str, Any]]:
        """Return the proposals with their present shares, for people."""
        shares = self.shares(self.proposals)
        return [
            {**asdict(proposal), "share": share}
            for proposal, share in zip(self.proposals, shares, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the proposals."""
        return {"proposals": [asdict(proposal) for proposal in self.proposals]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the proposals of a `state_dict`."""
        self.proposals = [
            Proposal(**{**values, "family": LinkFamily(**values["family"])})
            for values in state["proposals"]
        ]
