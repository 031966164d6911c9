"""One small file that holds a policy: weights, normalisation, spec, how to act and notes.

The format is safetensors with JSON metadata; it is read without torch and without pickle, so that
a file from a stranger brings no code. A plug-in that it names is run if it is on this machine.
"""

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from distrlcc.config import from_dict
from distrlcc.errors import PolicyFileError, reading
from distrlcc.files import crc32, require_writable, write_atomically
from distrlcc.policy.spec import PolicySpec, expected_shapes

FORMAT = "distrlcc-policy"
FORMAT_VERSION = "2"
_UNCHECKED = "1"  # the version before, without a checksum

Acting = Literal["argmax", "sample"]


@dataclass(frozen=True)
class _Header:
    spec: PolicySpec
    acting: Acting
    notes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """The contents of a policy file."""

    spec: PolicySpec  # the policy's inputs, outputs and network
    arrays: dict[str, NDArray[np.float32]]  # named as `expected_shapes(spec)` says
    acting: Acting = "argmax"  # the likeliest (or mean) action, or a draw
    notes: dict[str, Any] = field(default_factory=dict)  # training notes and scores: JSON values


def save_policy(
    path: str | os.PathLike[str],
    policy: PolicyFile,
    *,
    before_rename: Callable[[], None] | None = None,
    epoch: int = 0,
) -> None:
    """Write a policy file whole or not at all, as `write_together` does."""
    target = Path(path)
    _check_arrays(target, policy.spec, policy.arrays)
    header = {"spec": asdict(policy.spec), "acting": policy.acting, "notes": policy.notes}
    arrays = {name: np.ascontiguousarray(a, np.float32) for name, a in policy.arrays.items()}
    text = json.dumps(header, sort_keys=True)
    metadata = {"format": FORMAT, "format_version": FORMAT_VERSION, "policy": text}
    metadata["checksum"] = _checksum(text, arrays)
    require_writable(target.parent)
    write_atomically(target, save(arrays, metadata), before_rename=before_rename, epoch=epoch)


def load_policy(path: str | os.PathLike[str]) -> PolicyFile:
    """Read a policy file, with a warning if it is an older one without a checksum."""
    source = Path(path)
    metadata, arrays = _read(source)
    if metadata.get("format") != FORMAT:
        raise PolicyFileError(
            f"{source} is a safetensors file but not a distrlcc policy (format "
            f"{metadata.get('format')!r}, expected {FORMAT!r}); pass a file that "
            "'distrlcc train' wrote"
        )
    version = metadata.get("format_version")
    if version not in (FORMAT_VERSION, _UNCHECKED):
        raise PolicyFileError(
            f"{source} has policy format version {version!r}, this distrlcc "
            f"reads version {FORMAT_VERSION}; use the distrlcc that wrote it, or train it again"
        )
    checksum = metadata.get("checksum")
    if version == _UNCHECKED and checksum is None:
        warnings.warn(
            f"{source} has no checksum, as older files: damage would not show", stacklevel=2
        )
    elif version == _UNCHECKED or checksum != _checksum(metadata.get("policy", ""), arrays):
        raise PolicyFileError(f"{source} is damaged: its checksum is wrong; copy it again")
    with reading(PolicyFileError, f"{source} has a damaged header", "; copy it again"):
        header = from_dict(_Header, json.loads(metadata["policy"]), source="policy")
    _check_arrays(source, header.spec, arrays)
    return PolicyFile(header.spec, arrays, header.acting, header.notes)


def _checksum(text: str, arrays: Mapping[str, NDArray[np.float32]]) -> str:
    names = sorted(arrays)
    return str(crc32(f"{text}{names}", (arrays[name] for name in names)))


def _read(source: Path) -> tuple[dict[str, str], dict[str, NDArray[np.float32]]]:
    if not os.path.isfile(source):  # never raises, whatever the name
        runs = source.name == RUN_POLICY and os.path.isfile(source.with_name("config.toml"))
        what = "the run writes it once it has scored links" if runs else "check the path"
        raise PolicyFileError(f"no policy file at {source}; {what}")
    if not os.access(source, os.R_OK):
        raise PolicyFileError(f"{source}: permission denied")
    found = f"{source} ({source.stat().st_size} bytes) is truncated or not a policy file"
    remedy = "; expected a safetensors file, copy it again"
    with reading(PolicyFileError, found, remedy), safe_open(source, framework="numpy") as stream:
        return stream.metadata() or {}, {
            name: stream.get_tensor(name)
            for name in stream.keys()  # noqa: SIM118
        }


def _check_arrays(path: Path, spec: PolicySpec, arrays: Mapping[str, NDArray[Any]]) -> None:
    expected = expected_shapes(spec)
    missing, extra = set(expected) - set(arrays), set(arrays) - set(expected)
    for what, names in (("lacks", missing), ("has", extra)):
        if names:
            raise PolicyFileError(
                f"{path} {what} {', '.join(sorted(names))}, unlike a policy with "
                f"{spec.network_text}; it is damaged, copy it again"
            )
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise PolicyFileError(
                f"{path}: {name} has shape {arrays[name].shape}, its spec asks for {shape}; "
                "the weights belong to another policy, or to an older distrlcc: train it again"
            )
        if not np.isfinite(arrays[name]).all():
            raise PolicyFileError(
                f"{path}: {name} has values that are not finite; the training that wrote it "
                "diverged, take an earlier policy"
            )
    if "normalizer.std" in expected and arrays["normalizer.std"].min(initial=1.0) <= 0:
        raise PolicyFileError(
            f"{path}: normalizer.std has values that are not above 0; it is damaged, copy it again"
        )


SHIPPED = Path(__file__).parents[1] / "policies"  # each with the row of results that belongs to it

RUN_POLICY = "policy.safetensors"  # a policy's name in its run's folder


def shipped_policies() -> dict[str, Path]:
    """Return the files by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.safetensors"))}


def find_policy(name: str) -> Path:
    """Return a user's policy: a file, a run's, or else a shipped one; raises PolicyFileError."""
    shipped = shipped_policies()
    if os.path.isdir(name):
        return Path(name) / RUN_POLICY
    if os.path.isfile(name):
        return Path(name)
    if name in shipped:
        return shipped[name]
    names = f", or name one that is shipped: {', '.join(shipped)}" if shipped else ""
    raise PolicyFileError(f"no policy file at {name}; check the path{names}")
