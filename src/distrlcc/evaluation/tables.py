"""Tables of figures, as pages and terminals show them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import rich.table
from rich import box
from rich.text import Text

from distrlcc.errors import printable
from distrlcc.evaluation.scores import Metric

TAILS = ("p10", "worst")
"""What stands below a mean over links. With fewer than ten links they are the same, and the second
stands alone."""
BELOW = "a tenth of the links are worse than the first value, and the second is the worst link's"
Colors = tuple[str, str] | None  # on a light and on a dark page


@dataclass(frozen=True)
class Cell:
    """A table's cell; ``how``: ``best``, ``passed``, ``failed``, ``void`` or nothing."""

    text: str
    half: str = ""  # half of an interval
    tails: tuple[str, ...] = ()  # `TAILS`, or both in one
    how: str = ""
    value: float | None = None  # what sorts; None: the text


@dataclass(frozen=True)
class Column:
    """A table's column."""

    head: str
    unit: str = ""
    about: str = ""
    left: bool = False
    colors: Colors = None
    short: str = ""  # its head in a terminal, if that is another one

    @classmethod
    def of(cls, metric: Metric) -> "Column":
        """Return a metric's column."""
        return cls(metric.label, metric.unit, metric.definition, short=metric.head or metric.title)


@dataclass(frozen=True)
class Row:
    """A table's row; ``how`` has the words ``learned`` and ``void`` where that is so."""

    name: str
    cells: Sequence[Cell]
    how: str = ""
    colors: Colors = None

    @classmethod
    def of(cls, name: str, cells: Sequence[Cell], learned: bool, void: bool) -> "Row":
        """Return the row of a scheme or policy; a void one does not count, and says so."""
        how = " ".join(["learned"] * learned + ["void"] * void)
        return cls(name + " (void)" * void, cells, how)


@dataclass(frozen=True)
class Table:
    """A table, whose first column has the rows' names."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    kind: str = ""


def plain_table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str | Cell]], words: str = ""
) -> Table:
    """Return a table of texts, each row's name first; heads named in ``words`` are of sentences."""
    sentences = [head in words.split("|") for head in heads]
    columns = [Column(head, left=left) for head, left in zip(heads, sentences, strict=True)]
    how = ["left wrap" * left for left in sentences]
    cells = (
        [Cell(x, how=h) if isinstance(x, str) else x for x, h in zip(row, how, strict=True)]
        for row in rows
    )
    return Table(title, columns, [Row(name.text, rest) for name, *rest in cells])


def printed(
    table: Table, title: str = "", notes: Sequence[str] = (), *, wide: bool = False
) -> rich.table.Table:
    """Return a table for a terminal of 80 columns or, with intervals beside means, of 130."""
    result = rich.table.Table(
        title=Text(printable(title or table.title)),
        caption=Text("\n".join(notes)) if notes else None,
        caption_style="",
        caption_justify="left",
        title_style="",
        title_justify="left",
        header_style="",
        box=box.SIMPLE_HEAD,
        padding=(0, 2, 0, 0) if wide else (0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for column in table.columns:
        head = column.short or column.head
        if column.left:
            result.add_column(Text(head), overflow="fold")
        else:
            result.add_column(Text(head.replace(" ", "\n")), justify="right")
    for row in table.rows:
        # The means, and below them the tails.
        texts = [Text(row.name)]
        for cell in row.cells:
            texts.append(Text(cell.text))
            if cell.half:
                texts[-1].append(f"{' ' if wide else chr(10)}±{cell.half}", style="dim")
        bold = "bold" * ("learned" in row.how)
        result.add_row(*texts, style="strike" if "void" in row.how else bold)
        tails = [(*cell.tails, "", "", "")[:3] for cell in row.cells]
        names = TAILS if any(tail[1] for tail in tails) else ("; ".join(TAILS),)
        for place, name in enumerate(names):
            if any(tail[place] not in ("", tail[place + 1]) for tail in tails):
                below = [Text(tail[place]) for tail in tails]
                result.add_row(Text(f"  {name}"), *below, style="dim")
    return result
