"""Packages that only an extra brings: which are missing, and the command that installs them."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from distrlcc.errors import ConfigError

_PACKAGES = {"mlflow": "mlflow-skinny"}  # of modules that are not called as their packages
_EXTRA = re.compile(r"""extra == ['"]([\w-]+)['"]""")


def require(*modules: str) -> None:
    """Raise a ConfigError if a module is not installed; none is imported."""
    for module in modules:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:  # or a folder that happens to be called so
            raise missing(module)


@contextmanager
def naming_extras() -> Iterator[None]:
    """Turn the import of a module that an extra would have brought into a `ConfigError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if not _extra_with(module)[0]:
            raise
        raise missing(module) from None


def missing(module: str, why: str = "is not installed") -> ConfigError:
    """Build the error for a module that is not there, or that does not work for another reason."""
    extra, _ = _extra_with(module)
    named = (
        f" (extra '{extra}'): pip install '.[{extra}]' in a clone, or anywhere" if extra else ":"
    )
    return ConfigError(f"{module} {why}{named} {install_command(module)}")


def install_command(module: str) -> str:
    """Return the command that installs a module's package, and whatever else its extra has."""
    return shlex.join(["pip", "install", *_extra_with(module)[1]])


def _extra_with(module: str) -> tuple[str, list[str]]:
    """Return the smallest extra with a module's package, and its packages; empty: nobody's."""
    from importlib import metadata  # noqa: PLC0415 - slow, and most commands lack nothing

    package = _PACKAGES.get(module, module.replace("_", "-"))
    named = re.compile(rf"{re.escape(package)}(?![\w.-])", re.IGNORECASE)
    extras: dict[str, list[str]] = {}
    with suppress(metadata.PackageNotFoundError):
        for line in metadata.requires("distrlcc") or ():
            wanted, _, marker = line.partition(";")
            if extra := _EXTRA.search(marker):
                extras.setdefault(extra[1], []).append(wanted.strip())
    found = [(extra, all_) for extra, all_ in extras.items() if any(map(named.match, all_))]
    return min(found, key=lambda one: len(one[1]), default=("", [package]))
