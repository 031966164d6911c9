"""Checkpoints: everything that a run needs to go on, in one safetensors file written atomically.

A state is a tree of dicts (keys str or int), lists and tuples, with NumPy arrays, torch tensors,
numbers of any size, strings and None. Arrays and tensors are the file's tensors ``"0"``, ``"1"``,
...; the tree, the configuration, the versions and a CRC-32 of tree and tensors are JSON in its
metadata. Everything comes back bit for bit, tensors on the CPU. There is no pickle, and torch is
imported only for a tensor. A process that is killed while writing leaves the last good file.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import safe_open

from distrlcc.config import toml_differences
from distrlcc.errors import CheckpointError, reading
from distrlcc.files import crc32, write_atomically

FORMAT = "distrlcc-checkpoint"
VERSION = "2"  # version of the file's layout; a file of another version is refused


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that is truncated or corrupt, so that an older one may stand in."""


def save_checkpoint(
    path: Path,
    state: Mapping[str, Any],
    *,
    config_toml: str = "",
    versions: Mapping[str, str] | None = None,
    before_rename: Callable[[], None] | None = None,
    epoch: int = 0,
) -> None:
    """Write a state as `write_together` does; the configuration is compared on loading.

    Raises OutputError, and TypeError where the tree holds something that cannot be stored.
    """
    noted = json.dumps(dict(versions or {}))
    data = pack(state, format=FORMAT, version=VERSION, config_toml=config_toml, versions=noted)
    write_atomically(path, data, before_rename=before_rename, epoch=epoch)


def pack(state: Mapping[str, Any], **metadata: str) -> bytes:
    """Return a state as bytes, to send or to write; raises TypeError if it cannot be stored."""
    tree, arrays = _flatten(state)
    metadata |= {"state": tree, "checksum": str(crc32(tree, arrays))}
    return safetensors.numpy.save({str(i): array for i, array in enumerate(arrays)}, metadata)


def checksum(state: Mapping[str, Any]) -> int:
    """Return a CRC-32 of a state, the same wherever every bit is."""
    return crc32(*_flatten(state))


def _flatten(state: Mapping[str, Any]) -> tuple[str, list[NDArray[Any]]]:
    arrays: list[NDArray[Any]] = []
    return json.dumps(_encode(state, arrays, "state")), arrays


def unpack(data: bytes) -> dict[str, Any]:
    """Return the state of :func:`pack`'s bytes, which nothing has damaged."""
    size = int.from_bytes(data[:8], "little")
    tree = json.loads(data[8 : 8 + size])["__metadata__"]["state"]
    tensors = safetensors.numpy.load(data)
    state = _decode(json.loads(tree), [tensors[str(index)] for index in range(len(tensors))])
    assert isinstance(state, dict)
    return state


def load_checkpoint(
    path: Path, *, config_toml: str | None = None, fill: Callable[[str], str] = lambda text: text
) -> dict[str, Any]:
    """Read a state, of any configuration if that is None; ``fill`` completes an older file's.

    Raises CheckpointError, and DamagedCheckpointError if the file is damaged.
    """
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint at {path}") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from None
    damaged = f"checkpoint {path} is truncated or corrupt"
    with reading(DamagedCheckpointError, damaged):
        file: Any = safe_open(path, framework="np")
        metadata = file.metadata() or {}
    _check(path, metadata, config_toml, fill)
    with reading(DamagedCheckpointError, damaged), file:
        arrays = [file.get_tensor(str(index)) for index in range(len(file.keys()))]
        tree = metadata["state"]
        if metadata["checksum"] != str(crc32(tree, arrays)):
            raise DamagedCheckpointError(f"checkpoint {path} is corrupt: its checksum is wrong")
        return {**_decode(json.loads(tree), arrays)}


def _check(
    path: Path, metadata: Mapping[str, str], config_toml: str | None, fill: Callable[[str], str]
) -> None:
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a distrlcc checkpoint")
    if metadata.get("version") != VERSION:
        raise CheckpointError(
            f"checkpoint {path} has format version {metadata.get('version')}, this distrlcc reads "
            f"version {VERSION}; use the distrlcc that wrote it"
        )
    written = metadata.get("config_toml", "")
    if config_toml is not None and written != config_toml:
        with reading(DamagedCheckpointError, f"checkpoint {path} has a damaged configuration"):
            changed = toml_differences(fill(written), config_toml)
        if not changed:
            return
        shown = "; ".join(changed[:5]) + (f"; {len(changed) - 5} more" if len(changed) > 5 else "")
        raise CheckpointError(
            f"checkpoint {path} is from another config (checkpoint's value != this run's): "
            f"{shown}; put these back in config.toml, or use the distrlcc that wrote it"
        )


def _encode(value: Any, arrays: list[NDArray[Any]], place: str) -> Any:
    """Turn a tree into JSON: scalars, and lists that begin with a kind; of arrays their index."""
    if isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return [kind, _store(np.asarray(value), arrays, place)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise TypeError(f"{place}: a checkpoint cannot store the key {key!r}")
        return ["dict", [[k, _encode(v, arrays, f"{place}.{k}")] for k, v in value.items()]]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [_encode(v, arrays, f"{place}[{i}]") for i, v in enumerate(value)]]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return ["tensor", _store(value.detach().cpu().numpy(), arrays, place)]
    raise TypeError(f"{place}: a checkpoint cannot store a {type(value).__name__}")


def _store(array: NDArray[Any], arrays: list[NDArray[Any]], place: str) -> int:
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{place}: a checkpoint cannot store an array of {array.dtype}")
    # C order and little endian: safetensors writes other layouts wrongly.
    arrays.append(np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C"))
    return len(arrays) - 1


def _decode(node: Any, arrays: list[NDArray[Any]]) -> Any:
    if not isinstance(node, list):
        return node
    kind, content = node
    if kind == "dict":
        return {key: _decode(item, arrays) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_decode(item, arrays) for item in content]
        return items if kind == "list" else tuple(items)
    array = arrays[content]
    if kind == "array":
        return array
    if kind == "scalar":
        return array[()]
    if kind != "tensor":
        raise KeyError(kind)
    import torch  # noqa: PLC0415  (a state without tensors loads without torch)

    return torch.from_numpy(array)
