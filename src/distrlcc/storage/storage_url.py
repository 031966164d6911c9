"""The file system behind ``--storage``: a folder, S3, or what else pyarrow and fsspec reach.

::

    /mnt/nfs/runs                                          a folder
    s3://bucket/runs                                       Amazon's S3
    s3://bucket/runs?endpoint_override=http://10.0.0.5:9000   another server that speaks S3
    gs://…, abfs://…, hdfs://…                             pyarrow's
    anything else with ://                                 fsspec's, where its package is installed

S3 takes the options ``endpoint_override``, ``scheme``, ``region`` and ``allow_bucket_creation``
after a question mark; without the first, ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL`` counts.
Credentials come from the environment or from ``~/.aws``, never from the URL, which is written into
``versions.json``.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from distrlcc.errors import ConfigError, DistrlccError, OutputError, unknown_name
from distrlcc.files import require_writable

T = TypeVar("T")

OPEN_SECONDS = 20.0
"""Time that a place has to answer when it is opened."""
_CONNECT_SECONDS = 3.0
_REQUEST_SECONDS = 10.0
_ATTEMPTS = 3
_OWN = ("gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file")
"""Schemes that pyarrow reads by itself, but for S3."""
_S3_OPTIONS = ("endpoint_override", "scheme", "region", "allow_bucket_creation")


def storage_filesystem(url: str, *, check: bool = True) -> tuple[Any, str]:
    """Open the place that a URL names.

    Args:
        url: A folder or a URL; see the module.
        check: See that it answers and can be written; a folder is made where there is none.

    Returns:
        A ``pyarrow.fs.FileSystem`` and the path in it, without a slash at its end.

    Raises:
        ConfigError: The URL is malformed, or of a kind that nothing installed reaches.
        OutputError: It does not answer in time, lets nobody in, does not exist or cannot be
            written.
    """
    try:
        filesystem, path = within(OPEN_SECONDS, lambda: _open(url))
        if check:
            within(OPEN_SECONDS, lambda: _check(url, filesystem, path))
    except (OSError, ValueError) as error:
        raise storage_error(url, error) from None
    return filesystem, path


def is_folder(filesystem: Any) -> bool:
    """Say whether a file system is this machine's own, or mounted there."""
    return str(filesystem.type_name) == "local"


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call returns, or raise what it raises; give it up after a time.

    pyarrow heeds no time limit on reading, and a network mount that hangs heeds none at all, so the
    call has a thread, which stays behind if it must.

    Raises:
        TimeoutError: It took longer.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="storage call", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return results[0]


def storage_error(url: str, error: Exception) -> DistrlccError:
    """Turn what a file system said into one line: what is wrong, and what to do."""
    if isinstance(error, DistrlccError):
        return error
    text = " ".join(str(error).split())
    reason = text
    if any(word in text for word in ("NO_SUCH_BUCKET", "NoSuchBucket")):
        reason = f"there is no bucket {_parts(url)[0]!r}; make it, or give another"
    elif _denied(text):
        given = "AWS_ACCESS_KEY_ID" in os.environ
        reason = (
            "access denied; "
            + ("check that AWS_ACCESS_KEY_ID's owner" if given else "no AWS_ACCESS_KEY_ID is set: "
               "give credentials in the environment or in ~/.aws/credentials of one who")
            + " may list, read, write and delete there"
        )  # fmt: skip
    elif isinstance(error, TimeoutError) or "NETWORK_CONNECTION" in text or "curlCode" in text:
        endpoint = _endpoint(url)
        what = text if isinstance(error, TimeoutError) else "no connection"
        reason = f"{what}{f' ({endpoint})' if endpoint else ''}; check address and network"
    elif isinstance(error, OSError) and error.errno is not None:
        reason = os.strerror(error.errno)
    return OutputError(f"storage {url.partition('?')[0]}: {reason[:300]}")


def _denied(text: str) -> bool:
    words = ("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE", "INVALID_CLIENT_TOKEN")
    return any(word in text for word in (*words, "status 403", "status 401"))


def _open(url: str) -> tuple[Any, str]:
    from pyarrow import fs  # noqa: PLC0415 - a run without storage starts quicker without it

    scheme, there, rest = url.partition("://")
    if not there:
        if not url:
            raise ConfigError("--storage is empty; expected a folder or a URL")
        return fs.LocalFileSystem(), str(Path(url).absolute())
    if "@" in urlsplit(url).netloc and scheme not in ("abfs", "abfss", "hdfs", "viewfs"):
        raise ConfigError(
            "--storage holds a user or a key, which would be written down with the run; give "
            "credentials in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if not rest.strip("/"):
        raise ConfigError(f"--storage {url}: expected a place after ://, as in s3://bucket/runs")
    if scheme == "s3":
        return _s3(url), _path(url)
    if scheme in _OWN:
        try:
            filesystem, path = fs.FileSystem.from_uri(url)
        except (OSError, ValueError, NotImplementedError) as error:
            raise ConfigError(f"--storage {url}: {str(error).splitlines()[0]}") from None
        return filesystem, path.rstrip("/")
    return _fsspec(url, scheme)


def _fsspec(url: str, scheme: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs  # noqa: PLC0415 - see above
    from pyarrow import fs  # noqa: PLC0415

    try:
        filesystem, path = url_to_fs(url)
    except (ImportError, TypeError) as error:  # a package is missing, or an option
        raise ConfigError(f"--storage {url}: {str(error).splitlines()[0]}") from None
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        raise ConfigError(
            f"--storage {url}: unknown scheme {scheme!r}; expected a folder, s3://, "
            f"{'://, '.join(_OWN)}:// or another of fsspec's"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path.rstrip("/")


def _s3(url: str) -> Any:
    from pyarrow import fs  # noqa: PLC0415 - see above

    options = _parts(url)[2]
    for name in options:
        if name not in _S3_OPTIONS:
            raise unknown_name("option of an S3 URL", name, _S3_OPTIONS)
    creates = options.pop("allow_bucket_creation", "false").lower()
    if creates not in ("true", "false"):
        raise ConfigError(f"allow_bucket_creation is {creates!r}; expected true or false")
    endpoint = _endpoint(url)
    scheme, there, host = endpoint.rpartition("://")
    if endpoint:
        options["endpoint_override"] = host.rstrip("/")
        options.setdefault("region", os.environ.get("AWS_REGION", "us-east-1"))
    elif "region" not in options and not os.environ.get("AWS_REGION"):
        options["region"] = fs.resolve_s3_region(_parts(url)[0])
    if there:
        options["scheme"] = scheme
    return fs.S3FileSystem(
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_REQUEST_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        allow_bucket_creation=creates == "true",
        allow_delayed_open=True,  # a small object is one request, so whole or not there
        **options,
    )


def _parts(url: str) -> tuple[str, str, dict[str, str]]:
    """Return bucket, path within and options of an S3 URL."""
    parts = urlsplit(url)
    return parts.netloc, parts.path.strip("/"), dict(parse_qsl(parts.query))


def _path(url: str) -> str:
    bucket, path, _ = _parts(url)
    return f"{bucket}/{path}".rstrip("/")


def _endpoint(url: str) -> str:
    """Return the address of the server that an S3 URL means; nothing: Amazon's."""
    if not url.startswith("s3://"):
        return ""
    options, environment = _parts(url)[2], os.environ
    given = options.get("endpoint_override") or environment.get("AWS_ENDPOINT_URL_S3")
    return given or environment.get("AWS_ENDPOINT_URL", "")


def _check(url: str, filesystem: Any, path: str) -> None:
    """Write a file there and take it away."""
    if is_folder(filesystem):
        require_writable(Path(path))
        return
    if url.startswith("s3://"):
        bucket, _, options = _parts(url)
        missing = filesystem.get_file_info(bucket).type.name == "NotFound"
        if missing and options.get("allow_bucket_creation", "").lower() != "true":
            raise OSError("NO_SUCH_BUCKET")
    filesystem.create_dir(path)
    probe = f"{path}/.writable-{uuid.uuid4().hex}.tmp"
    with filesystem.open_output_stream(probe) as file:
        file.write(b"1")
    with suppress(OSError):  # some may add but not delete; then old checkpoints pile up
        filesystem.delete_file(probe)
