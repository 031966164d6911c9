"""File systems by URL, as pyarrow and fsspec reach them; each call has a limit of time."""

import os
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from distrlcc.errors import ConfigError, DistrlccError, OutputError
from distrlcc.files import require_writable, write_atomically
from distrlcc.limits import begin, limits

T = TypeVar("T")

_BYTES_PER_SECOND = 500_000  # an operation may take a second longer for each so many bytes
_DENIED = "ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE", "INVALID_CLIENT_TOKEN", "status 40"
_SECRETS = {"client_secret", "sig"}  # keys of a URL whose values are nobody else's business
_PYARROW = ("gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file")


def storage_filesystem(url: str, *, check: bool = True) -> tuple[Any, str]:
    """Return the ``pyarrow.fs.FileSystem`` that a URL names, and the path in it.

    With ``check`` it must answer and be writable; a folder is made. Raises ConfigError at a URL
    that nothing installed reaches, OutputError at a place that does not answer or refuses access.
    """

    def found() -> tuple[Any, str]:
        filesystem, path = _open(url)
        if check and is_folder(filesystem):
            require_writable(Path(path))
        elif check:
            filesystem.create_dir(path)
        return filesystem, path.rstrip("/")

    try:
        return within(found)
    except (OSError, ValueError, DistrlccError) as error:
        raise storage_error(url, error) from None


def absolute(url: str) -> str:
    """Return a folder's whole path, since other processes run elsewhere; a URL as it is."""
    return url if "://" in url or not url else str(Path(url).absolute())


def is_folder(filesystem: Any) -> bool:
    """Say whether a file system is this machine's own, or mounted there."""
    return str(filesystem.type_name) == "local"


def within(call: Callable[[], T], size: int = 0) -> T:
    """Return the result of a call that moves ``size`` bytes, or raise TimeoutError.

    A read by pyarrow heeds no time limit, and a network mount that hangs heeds none at all. The
    call's thread then stays behind.
    """
    seconds, future = limits().stall + size / _BYTES_PER_SECOND, begin(call)
    if not wait([future], seconds).done:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return future.result()


def storage_error(url: str, error: Exception) -> DistrlccError:
    """Turn what a file system said into one line: what is wrong, and what to do."""
    if isinstance(error, DistrlccError):
        return error
    text = " ".join(str(error).split())

    def says(*words: str) -> bool:
        return any(word in text for word in words)

    if says("NO_SUCH_BUCKET", "NoSuchBucket", "To create buckets"):
        text = f"there is no bucket {urlsplit(url).netloc!r}; make it, or give another"
    elif says(*_DENIED):
        remedy = "no AWS_ACCESS_KEY_ID is set: give credentials in the environment or ~/.aws that"
        if "AWS_ACCESS_KEY_ID" in os.environ:
            remedy = "check that AWS_ACCESS_KEY_ID's owner"
        text = f"access denied; {remedy} may list, read, write and delete there"
    elif isinstance(error, TimeoutError) or says("NETWORK_CONNECTION", "curlCode"):
        _, curl, reason = text.rpartition("Details: ")
        text = f"{'no connection: ' if curl else ''}{reason}; check address and network"
    elif isinstance(error, OSError) and (number := error.errno or 0) > 0:
        text = os.strerror(number)  # the resolver's are below 0
    return OutputError(f"storage {url.partition('?')[0]}: {text[:300]}")


def _open(url: str) -> tuple[Any, str]:
    from pyarrow import fs  # noqa: PLC0415 - a run without storage starts quicker without it

    scheme, there, rest = url.partition("://")
    if not there:
        if not url:
            raise ConfigError("--storage is empty; expected a folder or a URL")
        return fs.LocalFileSystem(), absolute(url)
    parts = urlsplit(url)
    named = "@" in parts.netloc and scheme not in ("abfs", "abfss", "hdfs", "viewfs")
    if named or parts.password or _SECRETS & parse_qs(parts.query).keys():
        raise ConfigError(
            "--storage holds a user or a key, which would be written down with the run; give "
            "credentials in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if not rest.strip("/"):
        raise ConfigError(f"--storage {url}: expected a place after ://, as in s3://bucket/runs")
    where = url
    if scheme == "s3":  # a small object is one request, so whole or not there
        where += f"{'&' if '?' in url else '?'}allow_delayed_open=true"
    elif scheme not in _PYARROW:
        where = f"fsspec+{url}"
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(where)
    except (ValueError, ImportError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        if "Protocol not known" in reason:
            others = "://, ".join(_PYARROW)
            reason = f"unknown scheme; expected a folder, s3://, {others}:// or another of fsspec's"
        elif scheme == "s3":
            reason += " (valid: endpoint_override, scheme, region, allow_bucket_creation)"
        raise ConfigError(f"--storage {url}: {reason}") from None
    return found


def write_object(filesystem: Any, path: str, data: bytes) -> None:
    """Write an object; in a folder the file is synced and renamed into place."""
    if is_folder(filesystem):
        place = Path(path)
        missing = [folder for folder in place.parents if not folder.exists()]
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, data)
        for folder in missing:  # a power cut shall not undo them
            descriptor = os.open(folder.parent, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        return
    if filesystem.type_name != "s3":  # S3 has no folders
        filesystem.create_dir(path.rpartition("/")[0])
    with filesystem.open_output_stream(path) as file:
        file.write(data)
