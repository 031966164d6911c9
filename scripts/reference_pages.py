"""Writes the pages that the code says: ``python -m scripts.reference_pages [FOLDER]``.

Without a folder: the tables of docs/coming-from.md. With one: mkdocs.yml and all pages, as the site
is built of them, with commands' help, a run's keys and how policies act in theirs.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from distrlcc.cli.main import GROUPS, SECTIONS, about, find
from distrlcc.errors import foreign_names
from distrlcc.policy.policy_file import load_policy, shipped_policies
from distrlcc.runs.run_config import ImitateConfig, RunConfig


def write_site(folder: Path) -> None:
    """Write what the site is built of; what was there before goes."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree("docs", folder / "docs")
    config = Path("mkdocs.yml").read_text(encoding="utf-8")
    (folder / "mkdocs.yml").write_text(config.replace("[src]", f"[{Path('src').resolve()}]"))
    for name, parts in {"commands.md": commands, "keys.md": keys}.items():
        page = folder / "docs" / name
        page.write_text("\n\n".join([page.read_text(encoding="utf-8"), *parts()]), encoding="utf-8")
    page = folder / "docs" / "python.md"
    text = page.read_text(encoding="utf-8").replace("<!-- acting -->", acting())
    page.write_text(text, encoding="utf-8")


def coming_from() -> str:
    """Return docs/coming-from.md with the tables of what other projects call things."""
    parts = []
    for project, names in foreign_names().items():
        (_, about), *others = names.items()
        rows = [f"| `{theirs.replace(', ', '`, `')}` | {ours} |" for theirs, ours in others]
        table = "\n".join(["| there | here |", "|---|---|", *rows])
        parts.append(f"## {project}\n\n{about}\n\n{table}\n\n")
    page = Path("docs/coming-from.md").read_text(encoding="utf-8")
    before, _, after = page.partition("## RLlib")
    return f"{before}{''.join(parts)}## What is not here{after.partition('## What is not here')[2]}"


def acting() -> str:
    """Return a sentence that says how the shipped policies act, as their files say."""
    found: dict[str, list[str]] = {"argmax": [], "sample": []}
    for name, path in shipped_policies().items():
        found[load_policy(path).acting].append(f"`{name}`")
    likeliest, drawn = (" and ".join([", ".join(n[:-1]), n[-1]]) for n in found.values())
    return f"Of the policies that ship, {likeliest} take the likeliest; {drawn} draw."


def commands() -> Iterator[str]:
    """Yield each command's help, as it is printed."""
    os.environ["COLUMNS"] = "100"
    for section, found in SECTIONS.items():
        yield f"## {section.capitalize()}"
        for command in found:
            names = [f"{command}_{choice}" for choice in GROUPS.get(command, ())] or [command]
            yield f"### {command}\n\n{about(command)}"
            yield from (f"```text\n{find(name)[0].format_help()}```" for name in names)


def keys() -> Iterator[str]:
    """Yield a table of each section's keys."""
    yield from _tables(RunConfig, "", "## Run")
    yield "## imitate\n\nThose of `distrlcc imitate`; `env` and `network` are as above."
    yield from _tables(ImitateConfig, "", "", known=("env", "network"))


def _tables(
    kind: type, prefix: str, title: str, known: tuple[str, ...] = (), value: object = None
) -> Iterator[str]:
    """Yield a class's table, and those of its sections; a ``value`` has defaults of its own."""
    meanings, rows = _meanings(kind), list[str]()
    sections = dict[str, tuple[Any, object]]()
    hints = get_type_hints(kind)
    for field in fields(kind):
        key, hint = f"{prefix}{field.name}", hints[field.name]
        if found := [each for each in (hint, *get_args(hint)) if is_dataclass(each)]:
            own = None if field.default_factory is MISSING else field.default_factory()
            sections |= {} if field.name in known else {key: (found[0], own)}
            continue
        standard = field.default if value is None else getattr(value, field.name)
        default = "" if standard is MISSING else f"`{json.dumps(standard)}`"
        rows.append(f"| `{key}` | {default} | {meanings[field.name]} |".replace("`null`", "`none`"))
    about = _plain(inspect.getdoc(kind) or "")
    head = [title, about] if title else []
    yield "\n\n".join([*head, "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])])
    for key, (section, own) in sections.items():
        yield from _tables(section, f"{key}.", f"## {key}", value=own)


def _meanings(kind: type) -> dict[str, str]:
    """Return the strings that stand below a class's fields."""
    found = {}
    for each in filter(is_dataclass, kind.__mro__):
        (body,) = ast.parse(inspect.getsource(each)).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(meaning))):
                    found[name] = _plain(meaning).replace("|", "\\|")
    return found


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("``", "`"))


if __name__ == "__main__":
    if sys.argv[1:]:
        write_site(Path(sys.argv[1]))
    else:
        Path("docs/coming-from.md").write_text(coming_from(), encoding="utf-8")
