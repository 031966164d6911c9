"""torch's Adam without torch's compiler, which nothing here uses.

The optimizer's methods are wrapped so that a compiler leaves them alone; the first call of any
imports it, which takes two seconds and 100 MB in each process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _plain(method: Callable[..., Any]) -> Any:
    """Return what a method wraps."""
    return getattr(method, "__wrapped__", method)


class Adam(torch.optim.Adam):
    """`torch.optim.Adam`."""

    add_param_group = _plain(torch.optim.Adam.add_param_group)
    load_state_dict = _plain(torch.optim.Adam.load_state_dict)
    state_dict = _plain(torch.optim.Adam.state_dict)
    zero_grad = _plain(torch.optim.Adam.zero_grad)
    step = torch.no_grad()(_plain(torch.optim.Adam.step))
