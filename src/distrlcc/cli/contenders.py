"""Finds the policies and schemes that a command is to measure."""

import os
from argparse import Namespace
from dataclasses import replace

from distrlcc.config import NONE
from distrlcc.errors import ConfigError, listed, once
from distrlcc.evaluation.contender import (
    Contender,
    contender_from_scheme,
    contender_named,
    distinct,
    is_scheme,
)


def contenders_of(args: Namespace, *, real: bool = False) -> list[Contender]:
    """Return the policies and schemes that the rows CONTENDERS and ``--against`` name."""
    senders = once(args.senders)
    given = [] if args.against == NONE else listed(args.against, "--against")
    against = [name for name in given if name not in senders]
    contenders = [
        contender_named(sender, prefer, real=real)
        for sender in senders
        for prefer in ([None] if is_scheme(sender, real=real) else args.prefer or [None])
    ]
    for flag in ("prefer", "always"):
        if getattr(args, flag) and not any(one.learned for one in contenders):
            raise ConfigError(f"--{flag} is for a policy; there is none")
    contenders = [replace(one, always=args.always and one.learned) for one in contenders]
    contenders += [contender_from_scheme(name, real=real) for name in against]
    if not contenders:
        raise ConfigError("nothing to evaluate; name a SENDER or --against SCHEMES")
    return distinct(contenders)


def contender(args: Namespace) -> Contender:
    """Return the contender that is judged; raises ConfigError if nothing has its name."""
    args.processes = args.processes or len(os.sched_getaffinity(0))
    (found,) = distinct([contender_named(args.sender, args.prefer)])
    if args.always and not found.learned:
        raise ConfigError(f"--always is for a policy; {found.name} is a scheme")
    return replace(found, always=args.always)
