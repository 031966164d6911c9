"""Show what every recipe with results scored, beside the schemes on the same links.

distrlcc results
distrlcc results --markdown > docs/results.md
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--markdown", action="store_true", help="print the page's source")


def run(args: argparse.Namespace) -> int:
    """Print the page."""
    from distrlcc.recipes.result_row import shipped_rows
    from distrlcc.recipes.results_page import results_page

    page = results_page(shipped_rows())
    if args.markdown:
        print(page, end="")
        return 0
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(page))
    return 0
