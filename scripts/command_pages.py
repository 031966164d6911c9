"""A hook of mkdocs: puts every command's help, as it is printed, into the page of commands."""

from __future__ import annotations

import os
from typing import Any

from distrlcc.cli.main import GROUPS, SECTIONS, find

PAGE = "commands.md"


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Return a page's text, of the commands' page with all of them."""
    if page.file.src_uri != PAGE:
        return markdown
    os.environ["COLUMNS"] = "100"  # of the help
    parts = [markdown]
    for section, commands in SECTIONS.items():
        parts.append(f"## {section.capitalize()}")
        for command, text in commands.items():
            names = [f"{command}_{choice}" for choice in GROUPS.get(command, ())] or [command]
            parts.append(f"### {command}\n\n{text.capitalize()}.")
            parts += [f"```text\n{find(name)[0].format_help()}```" for name in names]
    return "\n\n".join(parts)
