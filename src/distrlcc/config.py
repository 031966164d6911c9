"""Configurations: frozen dataclasses, to and from TOML, changed by ``key=value``.

Fields of such a dataclass are int, float, bool, str, Literal or tuples of these. They may also be
other such dataclasses (sections), or tuples or dictionaries of these (tables). Each may be None.
Files, flags and Python calls are all read here. No key is dropped, and no value is taken for
another type's::

    assert from_toml(TrainConfig, to_toml(config), source="config.toml") == config
    config = override(config, ["ppo.lr=3e-4", "seed=7"])

TOML has no null. A field that is None is left out if None is its default and is written as
``"none"`` otherwise; ``"none"`` is read as None wherever None is allowed.

Left out on purpose: strings that name classes, files that include files, interpolation.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, wraps
from operator import attrgetter, index
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin

import msgspec
import tomli_w

from distrlcc.errors import ConfigError, reading, unknown_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")
P = ParamSpec("P")
R = TypeVar("R")

_ALL_KEYS = "; 'distrlcc train RECIPE --print-config' shows all"
NONE = "none"  # how None is written where leaving the key out would mean something else
RESETS = "resets"  # in a field's metadata: the neighbour that goes to its default with it
_HIDDEN_BY = "hidden by"


def to_toml(config: DataclassInstance) -> str:
    """Write a configuration as TOML, in the order of its fields; equal ones give equal text."""
    canonical = _build(type(config), _plain(config), prefix="")
    return _short_arrays(tomli_w.dumps(_plain(canonical)))


def from_toml(
    cls: type[C], text: str, *, source: str = "config", note: Callable[[str], None] | None = None
) -> C:
    """Read a configuration from TOML of a ``source``, a file's name; ConfigError: it does not fit.

    ``note`` takes a line that names keys which the text lacks, as an older distrlcc's does, with
    their values now.
    """
    with reading(ConfigError, f"{source} is not TOML"):
        data = tomllib.loads(text)
    config = from_dict(cls, data, source=source)
    if note is not None:
        had = dict(_flatten(data))
        if added := [f"{k} = {v!r}" for k, v in flat(to_toml(config)).items() if k not in had]:
            note(f"{source} lacks keys that this distrlcc has; they are now {', '.join(added)}")
    return config


def read_toml(path: str | Path, remedy: str = "") -> dict[str, Any]:
    """Read a file of TOML, or raise a ConfigError that ends with ``remedy``."""
    with reading(ConfigError, f"{path}: cannot be read as TOML", remedy):
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))


def from_dict(cls: type[C], data: dict[str, Any], *, source: str) -> C:
    """Build a configuration from plain values, such as JSON's; raises what `from_toml` raises."""
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: it is {data!r:.80}; expected keys with values")
    try:
        return _build(cls, data, prefix="")
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def override(config: C, assignments: Sequence[str], *, strict: bool = True) -> C:
    """Return a copy of a configuration with some values replaced; raises ConfigError.

    ``assignments`` are ``"dotted.key=value"`` each. The value is TOML (``3e-4``, ``true``, ``[64,
    64]``); a bare word is a string and ``none`` is None where that is allowed. A field with
    `RESETS` puts that neighbour back to its default, unless it is given, too. With ``strict`` a
    key that has no effect is refused: as `hidden` says, or a method ``idle`` of the configuration,
    which returns why by key or section.
    """
    data = _plain(config)
    pairs = [tuple(map(str.strip, each.partition("="))) for each in assignments]
    given = {key for key, _, _ in pairs}
    for assignment, (key, equals, text) in zip(assignments, pairs, strict=True):
        if not equals or not key:
            raise ConfigError(f"bad setting {assignment!r}: expected key=value, as in seed=7")
        _assign(type(config), data, key, text, given)
    changed = _build(type(config), data, prefix="")
    idle: dict[str, str] = changed.idle() if hasattr(changed, "idle") else {}
    for key in sorted(given) if strict else ():
        for idle_key, why in idle.items():
            if f"{key}.".startswith(f"{idle_key}."):
                raise ConfigError(f"{key} has no effect, {why}; leave it out")
        place, dot, name = key.rpartition(".")
        section = attrgetter(place)(changed) if place else changed
        check_read(section, name, prefix=place + dot)
    return changed


def hidden(**by: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the metadata of a field that has no effect while a function says so of a neighbour."""
    return {_HIDDEN_BY: by}


def check_read(config: DataclassInstance, name: str, *, prefix: str = "") -> None:
    """Raise a ConfigError if a neighbour hides a field that is given; see `hidden`."""
    known = config.__dataclass_fields__
    for other, hides in known[name].metadata.get(_HIDDEN_BY, {}).items():
        value = getattr(config, other)
        if hides(value):
            # The default, or the other one of two, lets it show; if neither does, a user knows.
            others = (_default(known[other]), *([not value] if isinstance(value, bool) else ()))
            free = [each for each in others if not hides(each)]
            shown = NONE if free and free[0] is None else f"{free and free[0]}".lower()
            remedy = f"set {prefix}{other}={shown}" if free else f"change {prefix}{other}"
            raise ConfigError(
                f"{prefix}{name} has no effect while {prefix}{other} is {value!r:.60}: {remedy}, "
                f"too, or leave {prefix}{name} out"
            )


def told(value: Any) -> Any:
    """Return a configuration's fields that are not as by default, as pairs, in their order."""
    if is_dataclass(value):
        pairs = [(field, getattr(value, field.name)) for field in fields(value)]
        return [(field.name, told(item)) for field, item in pairs if item != _default(field)]
    return [told(item) for item in value] if isinstance(value, tuple) else value


def check_shown(config: DataclassInstance, prefix: str = "") -> None:
    """Raise a ConfigError if a neighbour hides a field that is not as by default; see `hidden`."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value) and not isinstance(value, type):
            check_shown(value, f"{prefix}{field.name}.")
        elif value != _default(field):
            check_read(config, field.name, prefix=prefix)


def toml_differences(a: str, b: str) -> list[str]:
    """List the keys in which two TOML texts differ, as ``"ppo.lr: 0.001 != 0.0003"``."""
    left, right = (flat(text) for text in (a, b))
    pairs = ((key, left.get(key, "(absent)"), right.get(key, "(absent)")) for key in left | right)
    return [f"{key}: {old} != {new}" for key, old, new in pairs if old != new]


def flat(text: str) -> dict[str, Any]:
    """Return the values of a TOML text by their dotted keys."""
    return dict(_flatten(tomllib.loads(text)))


def keys(cls: type[DataclassInstance], prefix: str = "") -> list[str]:
    """List the dotted keys of a configuration class, those of optional sections included."""
    found: list[str] = []
    for name, hint in _hints(cls).items():
        section = _section(hint)
        found += [prefix + name] if section is None else keys(section, f"{prefix}{name}.")
    return found


def check_types(config: DataclassInstance) -> None:
    """Have a frozen dataclass, in ``__post_init__``, take values as if they stood in a file."""
    for name, (hint, plain) in _plain_types(type(config)).items():
        value = getattr(config, name)
        if type(value) not in plain:
            object.__setattr__(config, name, _value(hint, value, name))


def check_fields(
    config: object,
    names: str,
    low: float,
    high: float = math.inf,
    *,
    prefix: str = "",
    above: bool = False,
) -> None:
    """Raise ConfigError unless fields, parted by spaces, are finite and from low to high.

    None fits; with ``above`` the value ``low`` does not. The name follows ``prefix``.
    """
    least, most = (f"{b:.0f}" if b % 1 == 0 else f"{b:g}" for b in (low, high))
    bounds = f"{least} or more" if high == math.inf else f"{least} to {most}"
    bounds = f"more than {least}, and finite" if above else bounds
    for name in names.split():
        value = getattr(config, name)
        fits = value is None or (low <= value <= high and value < math.inf)
        if not fits or (above and value == low):
            raise ConfigError(f"{prefix}{name} is {value!r}: expected {bounds}")


def check_values(config: object, needed: Mapping[str, Any], why: str, *, prefix: str = "") -> None:
    """Raise a ConfigError, which ends with ``why``, if a field has another value than needed."""
    for name, wanted in needed.items():
        value = attrgetter(name)(config)
        if value != wanted:
            has, expected = (list(v) if isinstance(v, tuple) else v for v in (value, wanted))
            raise ConfigError(f"{prefix}{name} is {has!r}: expected {expected!r}, {why}")


def checked_seed(seed: Any) -> int:
    """Return a seed of a Python caller; raises ConfigError unless it is whole, and 0 or more."""
    with suppress(TypeError):
        if not isinstance(seed, bool) and (whole := index(seed)) >= 0:
            return whole
    raise ConfigError(f"seed is {seed!r}: expected a whole number of 0 or more")


def check_least(least: int, **values: int | None) -> None:
    """Check that whole numbers of a Python caller, by name, are so great; None is great enough."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ConfigError(f"{name} is {value}: expected a whole number of {least} or more")


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function for Python users refuse (ConfigError) arguments not of its declared types."""
    signature = inspect.signature(function)

    kinds = {name: each.kind for name, each in signature.parameters.items()}
    many, rest = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD

    @cache
    def hints() -> dict[str, Any]:  # that of a result may be known to a type checker alone
        declared = {n: function.__annotations__.get(n, "object") for n in kinds if kinds[n] != rest}
        namespace = function.__globals__
        found = typing.get_type_hints(types.SimpleNamespace(__annotations__=declared), namespace)
        return {
            n: types.GenericAlias(Sequence, h) if kinds[n] == many else h for n, h in found.items()
        }

    @wraps(function)
    def call(*args: P.args, **more: P.kwargs) -> R:
        bound = signature.bind(*args, **more)
        for name, hint in hints().items():
            if name in bound.arguments:
                bound.arguments[name] = _argument(hint, bound.arguments[name], name)
        return function(*bound.args, **bound.kwargs)

    return call


def _argument(hint: Any, value: Any, name: str) -> Any:
    options = _options(hint)
    items = [get_args(option)[0] for option in options if get_origin(option) is Sequence]
    kinds = [option for option in options if isinstance(option, type)]
    unknown = len(items) + len(kinds) < len(options) or hasattr(items and items[0], "_is_protocol")
    if unknown or type(value) in kinds:
        return value
    if items and isinstance(value, list | tuple):
        return tuple(_argument(items[0], each, f"{name}[{k}]") for k, each in enumerate(value))
    if not items and {*kinds} <= {int, float, str, bool, type(None)}:
        return _value(hint, value, name)
    if not isinstance(value, tuple(kinds)):
        shown = " or ".join([kind.__name__ for kind in kinds] + ["a list of them"] * len(items))
        shown = shown.replace("NoneType", "None")
        raise ConfigError(f"{name} = {value!r:.80}: expected {shown}")
    return value


@cache
def _hints(cls: type[DataclassInstance]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in fields(cls) if f.init}


@cache
def _plain_types(cls: type[DataclassInstance]) -> dict[str, tuple[Any, frozenset[Any]]]:
    """Return each field's type, and the classes whose values fit it as they are."""
    return {n: (hint, frozenset(_options(hint))) for n, hint in _hints(cls).items()}


def _options(hint: Any) -> tuple[Any, ...]:
    """Split a union into its members; any other type is its only member."""
    return get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


@cache
def _section(hint: Any) -> type[DataclassInstance] | None:
    """Return the dataclass that a field holds, or None for a plain value."""
    found = [o for o in _options(hint) if isinstance(o, type) and is_dataclass(o)]
    return found[0] if found else None


@cache
def _tables(hint: Any) -> tuple[type, Any] | None:
    """Return what holds a field's dataclasses, as `tuple` or `dict`, and the type of each item."""
    for option in _options(hint):
        origin, items = get_origin(option), get_args(option)
        if origin in (tuple, list, dict):
            item = items[1 if origin is dict else 0]
            if _section(item) or _tables(item):
                return origin, item
    return None


def _name(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _name(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return f"one of {', '.join(repr(a) for a in get_args(hint))}"
    if hint is type(None):
        return NONE
    if len(_options(hint)) > 1:
        return " or ".join(_name(option) for option in _options(hint))
    return hint.__name__ if type(hint) is type else str(hint).replace("typing.", "")


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _plain(value: Any) -> Any:
    """Turn dataclasses into dicts and tuples into lists; see the module about None."""
    if is_dataclass(value) and not isinstance(value, type):
        result = {}
        for field in fields(value):
            item = getattr(value, field.name)
            if field.init and not (item is None and _default(field) is None):
                result[field.name] = NONE if item is None else _plain(item)
        return result
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _short_arrays(text: str) -> str:
    """Put each array on one line; line breaks within strings are escaped."""
    text = re.sub(r"\[\n *", "[", text)
    return re.sub(r",\n *", ", ", re.sub(r",\n *]", "]", text))


def _flatten(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _build(cls: type[C], data: dict[str, Any], *, prefix: str) -> C:
    """Build a dataclass from plain values; ``prefix`` is the dotted place of ``data``."""
    hints = _hints(cls)
    for key in data:
        if key not in hints:
            # Within a list's table names are those of the table.
            table = prefix.rpartition("].")[2]
            raise unknown_name("key", key, hints, _ALL_KEYS, keys(cls), place=prefix, within=table)
    for field in fields(cls):
        if field.init and field.name not in data and _default(field) is MISSING:
            raise ConfigError(f"key '{prefix}{field.name}' is missing")
        if isinstance(data.get(field.name), list | tuple) and f"{field.name}_schedule" in hints:
            key = prefix + field.name
            raise ConfigError(f"{key} is a number: points (step, value) are {key}_schedule")
    values = {key: _value(hints[key], value, prefix + key) for key, value in data.items()}
    try:
        return cls(**values)
    except (ConfigError, ValueError) as error:
        place = prefix.rstrip(".")
        raise ConfigError(f"{place}: {error}" if place else str(error)) from None


def _value(hint: Any, value: Any, key: str) -> Any:
    """Check one value against its type; ints become floats where a float is expected."""
    if value is None or (type(value) is str and value == NONE):
        if type(None) in _options(hint):
            return None
    elif isinstance(value, PathLike):
        value = fspath(value)
    elif hasattr(value, "tolist"):  # NumPy's
        value = value.tolist()
    section = _section(hint)
    if section is None and _tables(hint) is None:
        return _plain_value(hint, value, key)
    if type(value) is section:  # made in Python
        return value
    if section is None:
        return _table_values(hint, value, key)
    if not isinstance(value, dict):
        first = f"{key}.{fields(section)[0].name}"
        raise ConfigError(f"{key} = {value!r}: expected a section with keys of its own, as {first}")
    return _build(section, value, prefix=f"{key}.")


def _table_values(hint: Any, value: Any, key: str) -> Any:
    found = _tables(hint)
    assert found is not None
    kind, item = found
    if kind is dict and isinstance(value, dict):
        return {k: _value(item, each, f"{key}.{k}") for k, each in value.items()}
    if kind is dict or not isinstance(value, list | tuple):
        expected = "tables by name" if kind is dict else "a list of tables, as [{…}]"
        raise ConfigError(f"{key} = {value!r}: expected {expected}")
    return kind(_value(item, each, f"{key}[{k}]") for k, each in enumerate(value))


def _plain_value(hint: Any, value: Any, key: str) -> Any:
    if isinstance(value, set | frozenset):
        raise ConfigError(f"{key} = {value!r}: expected a list, as a set has no order")
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        detail = str(error).replace("`", "").replace("null", NONE).replace(" - at $", " at ")
        detail = detail[0].lower() + detail[1:]
        if get_origin(hint) is Literal:
            near = difflib.get_close_matches(str(value), [str(a) for a in get_args(hint)], n=1)
            detail = f"expected {_name(hint)}" + (f"; did you mean {near[0]}?" if near else "")
        elif " at " in detail:
            detail = f"expected {_name(hint)} ({detail})"
        raise ConfigError(f"{key} = {value!r}: {detail}") from None


def _assign(
    cls: type[DataclassInstance], data: dict[str, Any], key: str, text: str, given: set[str]
) -> None:
    """Put the value that ``text`` stands for into ``data`` at a dotted key."""
    parts = key.split(".")
    hint: Any = cls
    section: type[DataclassInstance] | None = None
    for part in parts:
        section = _section(hint)
        if section is None or part not in _hints(section):
            raise unknown_name("key", key, keys(cls), _ALL_KEYS)
        hint = _hints(section)[part]
    for depth, part in enumerate(parts[:-1], start=1):
        inner = data.get(part)
        if not isinstance(inner, dict):
            place = ".".join(parts[:depth])
            raise ConfigError(f"cannot set {key}: this configuration has no section [{place}]")
        data = inner
    name, value = parts[-1], _parse(hint, text)
    if value and _section(hint) and isinstance(value, dict) and isinstance(data.get(name), dict):
        first = next(iter(value))
        raise ConfigError(
            f"{key}={text} would put its other keys to their defaults: give each key, as in "
            f"{key}.{first}={value[first]}, or {key}={{}} before them"
        )
    data[name] = value
    assert section is not None
    neighbour = section.__dataclass_fields__[parts[-1]].metadata.get(RESETS)
    if neighbour and ".".join([*parts[:-1], neighbour]) not in given:
        data.pop(neighbour, None)


def _parse(hint: Any, text: str) -> Any:
    """Read a value from the command line as the type of its key would have it."""
    options = _options(hint)
    if str in options and not text.startswith(('"', "'")):
        return text
    if bool in options and text in ("True", "False"):
        return text == "True"
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return _whole(hint, parsed["value"]) if parsed.keys() == {"value"} else text


def _whole(hint: Any, value: Any) -> Any:
    """Read 1e6 as whole where a type asks for that, and 3 as a name where it asks for one."""
    options = _options(hint)
    if type(value) is int and str in options and int not in options:
        return str(value)
    if isinstance(value, float) and value.is_integer() and int in options and float not in options:
        return int(value)
    arrays = [get_args(option) for option in options if get_origin(option) is tuple]
    if not arrays or not isinstance(value, list):
        return value
    items = arrays[0][:1] * len(value) if arrays[0][-1:] == (Ellipsis,) else arrays[0]
    if len(items) != len(value):
        return value  # refused later, as it was written
    return [_whole(item, element) for item, element in zip(items, value, strict=True)]
