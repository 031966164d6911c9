"""Randomness without state: every draw is a hash of a seed and of where it is used.

A draw is named by (seed, stream, environment's global index, step). It is the same in one process
or in many, in any order and after a resume, and no generator is saved. The hash is SplitMix64's
finaliser (Steele, Lea and Flood, OOPSLA 2014).
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Key = np.uint64 | NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finaliser to each element."""
    with np.errstate(over="ignore"):
        z = values + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX1
        z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


def stream_key(seed: int | str, stream: str) -> np.uint64:
    """Fold a seed and a stream's name into one 64-bit key."""
    digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


def bits(key: Key, *coordinates: NDArray[np.int64] | int) -> NDArray[np.uint64]:
    """Hash a key, or several, with integer coordinates (broadcast together) into 64 random bits."""
    state = np.asarray(key, dtype=np.uint64)
    for coordinate in coordinates:
        state = mix(state ^ mix(np.asarray(coordinate, dtype=np.int64).astype(np.uint64)))
    return state


def uniform(key: Key, *coordinates: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """Draw uniforms in [0, 1), one per broadcast coordinate."""
    return (bits(key, *coordinates) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(key: Key, *coordinates: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """Draw standard normals (Box-Muller), one per broadcast coordinate."""
    u1 = uniform(key, *coordinates, 0)
    u2 = uniform(key, *coordinates, 1)
    return np.sqrt(-2.0 * np.log1p(-u1)) * np.cos(2.0 * np.pi * u2)
