"""The actor-learner topology: workers act with a copy of the policy, one trainer learns."""
