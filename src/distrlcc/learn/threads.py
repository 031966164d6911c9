"""Threads of a learning process, which only the process's owner may bound."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import torch


def limit_threads() -> None:
    """Let torch and NumPy's BLAS compute in one thread each; processes make use of more cores.

    A second BLAS thread spins: where another process wants its core, acting takes five to thirty
    times as long. A NumPy with another BLAS than its wheels' own OpenBLAS is left as it is: set
    that library's environment variable before the process starts.
    """
    torch.set_num_threads(1)
    for library in Path(np.__file__).parent.parent.glob("numpy.libs/libscipy_openblas*"):
        openblas = ctypes.CDLL(str(library))
        for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"):
            if hasattr(openblas, name):
                getattr(openblas, name)(1)
