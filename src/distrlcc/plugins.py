"""Users' plug-ins: rewards, observations, schemes and so on, from a file or an installed package.

A key that takes one of our names takes a reference as well: ``./file.py:name``, ``module:name``, or
a registered name. Installed packages register names as entry points, of ``distrlcc.rewards`` for
instance. It is kept with a hash of its source, as ``/home/me/file.py:name@0123456789abcdef``.
config.toml, checkpoints, data sets and policy files hold it so, and members of a group compare it.
A command that reads it loads the code from there or refuses other code: there is no other record of
it.

Left out on purpose: hashes of what that source imports (an installed package has a version), and
copies of sources, which would bring code with a policy file.
"""

import hashlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from functools import cached_property
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from distrlcc.errors import ConfigError, printable, reading, unknown_name

T = TypeVar("T")

FOLDERS = "DISTRLCC_PLUGINS"  # folders, parted as in PATH, with files that have been moved
_OURS = f"{Path(__file__).parent}{os.sep}"
BEFORE = list[Callable[[str], None]]()  # called with each reference before its source is run
_SOURCES = set[str]()  # files whose code was loaded, and folders of packages
_REFERENCE = re.compile(r"(.+):([A-Za-z_][\w.]*?)(?:@([0-9a-f]{16}))?")
_FOLDER = re.compile(r'(?<=")[^"\n]*/(?=[^"/\n]+\.py:[\w.]+@[0-9a-f]{16}["/])')


def is_reference(name: str) -> bool:
    """Say whether a name refers to a user's code: it has a colon, and no file is called so."""
    return _REFERENCE.fullmatch(name) is not None and not os.path.exists(name)


def is_pinned(name: str) -> bool:
    """Say whether a name is one of ours, or bears its source's hash."""
    found = _REFERENCE.fullmatch(name)
    return found is None or found[3] is not None


def short(name: str) -> str:
    """Return a reference without folder and hash, as ``file.py:name``; another name as it is."""
    found = _REFERENCE.fullmatch(name)
    return f"{_without_folder(found[1])}:{found[2]}" if found and is_reference(name) else name


def _without_folder(name: str) -> str:
    return name.rpartition("/")[2]


def portable(toml: str) -> str:
    """Return a configuration's TOML without the folders of files: these differ among machines."""
    return _FOLDER.sub("", toml)


class Registry(dict[str, T]):
    """Things of one kind by name: ours are its items, a reference is loaded when it is looked up.

    ``REWARDS["aurora"]`` and ``REWARDS["./mine.py:reward"]``; both raise ConfigError.
    """

    def __init__(
        self, kind: str, ours: Mapping[str, T], take: Callable[[Any], T] = lambda found: found
    ) -> None:
        """Take the kind's name, ours, and what makes one of a reference's thing, or raises."""
        super().__init__(ours)
        self.kind, self._take = kind, take
        self.loaded: dict[str, T] = {}  # what was brought, by its pinned reference

    def __missing__(self, name: str) -> T:
        return self.loaded[self.pinned(name)]

    def pin(self, config: object, field: str) -> None:
        """Have a frozen dataclass, in its ``__post_init__``, keep a field as `pinned` has it."""
        object.__setattr__(config, field, self.pinned(getattr(config, field)))

    def pinned(self, name: str, *, without: Collection[str] = ()) -> str:
        """Return a name as it is kept: ours as it is, a reference with its source's hash.

        Raises ConfigError if nothing is called so, it is one of ``without``, or its source is
        missing, does not import or fit, or has changed.
        """
        if name in self.loaded or (name in self and name not in without):
            return name
        # The same source as another machine has it in another folder.
        same = [known for known in self.loaded if _without_folder(known) == _without_folder(name)]
        if same:
            self.loaded[name] = self.loaded[same[0]]
            return name
        registered = {} if is_reference(name) or name in self else self.registered
        reference = registered.get(name, name)
        if name in self or not is_reference(reference):
            if names := [*(ours for ours in self if ours not in without), *registered]:
                raise unknown_name(self.kind, name, names)
            raise ConfigError(f"{self.kind} {name!r}: expected ./file.py:name or module:name")
        found, pinned = load(self.kind, reference)
        if pinned not in self.loaded:
            with reading(ConfigError, f"{self.kind} {reference} does not fit"):
                self.loaded[pinned] = self._take(found)
        return pinned

    @cached_property
    def registered(self) -> dict[str, str]:
        """References by name that installed packages register."""
        return {entry.name: entry.value for entry in entry_points(group=f"distrlcc.{self.kind}s")}


def function(found: Any) -> Any:
    """Return a function as it is; raises TypeError at anything else."""
    if not callable(found):
        raise TypeError(f"expected a function, it is {found!r}")
    return found


def having(names: str, *, made: bool = True) -> Callable[[Any], Any]:
    """Return what returns a thing with attributes of these names; a class is instantiated first."""

    def take(found: Any) -> Any:
        thing = found() if made and isinstance(found, type) else found
        if missing := [name for name in names.split() if not hasattr(thing, name)]:
            raise TypeError(f"it has no {', '.join(missing)}; expected {names}")
        return thing

    return take


def shaped(kind: str, name: str, given: Any, *shape: int) -> Any:
    """Return what a user's code gave; ConfigError: it is no array of numbers of this shape."""
    alike = getattr(given, "shape", None) == shape and hasattr(given, "dtype")
    if alike and getattr(given.dtype, "kind", "f") in "fiub":  # torch's have no kind
        return given
    has = f"{given!r:.60}"  # not before: it takes longer than a step
    if hasattr(given, "shape"):
        has = f"an array of shape {tuple(given.shape)}" + (f" of {given.dtype}" if alike else "")
    raise ConfigError(
        f"{kind} {short(name)} returned {has}; expected an array of shape {shape} of numbers"
    )


class _Lent:
    """A user's thing whose functions get copies of arrays: what they write to is theirs alone."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __call__(self, *given: Any) -> Any:
        found = self._thing(*map(_copied, given))
        return deepcopy(found) if isinstance(found, dict) else found  # a state goes on to change

    def __getattr__(self, name: str) -> Any:
        if name == "_thing":  # it is being copied
            raise AttributeError(name)
        found = getattr(self._thing, name)
        return _Lent(found) if callable(found) else found


def _copied(value: Any) -> Any:
    if hasattr(value, "copy"):
        return value.copy()
    names = getattr(type(value), "__slots__", ())  # of a data class of arrays
    return type(value)(*(_copied(getattr(value, name)) for name in names)) if names else value


def lent(name: str, thing: T) -> T:
    """Return a thing of ours as it is, and a user's so that it cannot change what it is given."""
    return cast(T, _Lent(thing)) if is_reference(name) else thing


def load(kind: str, reference: str) -> tuple[Any, str]:
    """Return what a reference leads to, and it with its source's hash; raises ConfigError."""
    if (match := _REFERENCE.fullmatch(reference)) is None:
        raise ConfigError(f"{kind} {reference!r}: expected ./file.py:name or module:name")
    place, name, wanted = match.groups()
    what = f"{kind} {reference}"
    # Read the source, and refuse another than the one that was recorded before it can run.
    is_file = place.endswith(".py")
    paths = _files(place, wanted) if is_file else _module_files(place)
    sources = [(path, path.read_bytes()) for path in paths if path.is_file()]
    if not sources:
        raise ConfigError(
            f"{what}: there is no {f'file {paths[0]}' if is_file else f'module {place}'} here; "
            + (f"copy it there, or name its folder in {FOLDERS}" if is_file else "install it")
        )
    hashes = [hashlib.sha256(data).hexdigest()[:16] for _, data in sources]
    if wanted and wanted not in hashes:
        raise ConfigError(
            f"{what}: {sources[0][0]} has changed since (it is {hashes[0]} now); put it back, or "
            "begin anew with it: 'distrlcc train --start-from RUN' starts from a run's policy"
        )
    chosen = hashes.index(wanted) if wanted else 0
    path, data = sources[chosen]
    # Import it.
    for call in BEFORE:
        call(reference)
    with reading(ConfigError, f"{what} cannot be imported"):
        try:
            if path.suffix == ".py":
                package = "" if is_file else place
                if package and path.name != "__init__.py":
                    package = package.rpartition(".")[0]
                module = _module(path, data, hashes[chosen], package)
            else:  # compiled by its maker
                module = importlib.import_module(place)
        except SystemExit:
            raise ImportError("it ends the process") from None
    # Find the name in it.
    with reading(ConfigError, f"{what} cannot be read"):
        try:
            found = attrgetter(name)(module)
        except AttributeError:
            names = [each for each in vars(module) if not each.startswith("_")]
            raise unknown_name(f"name in {path}", name, names) from None
    pinned = f"{path if is_file else place}:{name}@{hashes[chosen]}"
    return found, reference if wanted else pinned


def _files(place: str, wanted: str | None) -> list[Path]:
    """Return where a file may be; one with a hash also here, and in the folders of `FOLDERS`."""
    path = Path(os.path.expanduser(place)).absolute()  # which never fails
    if not wanted:
        return [path]
    folders = [folder for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    return [path, Path.cwd() / path.name, *(Path(folder, path.name) for folder in folders)]


def _module_files(place: str) -> list[Path]:
    """Return a module's source, also of the working directory; nothing of it is run."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    whole, folders, spec = "", None, None
    for part in place.split("."):
        if not part.isidentifier():  # finders may raise what they please
            return []
        whole += f".{part}" if whole else part
        found = (finder.find_spec(whole, folders) for finder in sys.meta_path)
        spec = next(filter(None, found), None)
        if spec is None:
            return []
        folders = spec.submodule_search_locations or []
    return [Path(spec.origin)] if spec and spec.origin else []


def theirs(filename: str) -> bool:
    """Say whether a file holds a user's code."""
    return filename.startswith(tuple(_SOURCES))


def blame(error: BaseException) -> str:
    """Return a user's last line that failed, and how; empty: none, or what it called of ours."""
    found = traceback.extract_tb(error.__traceback__)
    places = [p for p in found if (p.filename, p.name) != (__file__, "ended")]  # see `_guard`
    ours = [k for k, place in enumerate(places) if place.filename.startswith(_OURS)]
    rest = places[ours[-1] + 1 :] if ours else places
    last = next((place for place in reversed(rest) if theirs(place.filename)), None)
    if last is None:
        return ""
    ends = isinstance(error, SystemExit)
    why = "it ends the process" if ends else f"{type(error).__name__}: {error}"
    return printable(f"{last.filename}, line {last.lineno}: {why}")


GUARDED = set[int]()  # processes in which that is so; forks of a user's code end as they like


def _guard(name: str) -> None:
    """Let a user's code that would end this process at once raise `SystemExit`, which is told."""
    end = getattr(os, name)
    GUARDED.add(os.getpid())

    def ended(*code: int) -> None:
        if theirs(sys._getframe(1).f_code.co_filename) and os.getpid() in GUARDED:
            raise SystemExit(f"os.{name}({', '.join(map(str, code))})")
        end(*code)

    setattr(os, name, ended)


def _module(path: Path, data: bytes, digest: str, package: str) -> ModuleType:
    """Run a source as a module of its own, once: the very bytes that were looked at."""
    name = f"{path.stem}_{digest}"
    if name not in sys.modules:
        if not _SOURCES:
            for end in ("_exit", "abort"):
                _guard(end)
        # Of a package all files count, as its functions may stand in any.
        _SOURCES.add(f"{path.parent}{os.sep}" if package else str(path))
        module = ModuleType(name)
        module.__file__, module.__package__ = str(path), package
        sys.modules[name] = module  # dataclasses look their module up
        try:
            exec(compile(data, path, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
