"""For a tuner: a last word on perturbed values, and an end to members that have learned enough.

distrlcc tune pbt quickstart --mutate ppo.lr=loguniform:1e-5:1e-2 \\
    --explore examples/plugins/tuning.py:explore --stop examples/plugins/tuning.py:stop
"""


def explore(values):
    """Take and return the values of what is mutated, by key."""
    return values | {"ppo.lr": round(values["ppo.lr"], 6)}


def stop(report):
    """Say whether a member has trained enough; see `distrlcc.tune.report.Report`."""
    return report.utilisation > 0.99 and report.queueing_delay < 0.05
