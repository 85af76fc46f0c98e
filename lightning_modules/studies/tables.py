"""Tables of a study as Markdown, CSV and HTML."""

import csv
import html
import io
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """A number with the ends of its interval.

    Args:
        value: the number.
        low: lower end.
        high: upper end.
        digits: decimals that are shown.
        signed: whether a plus sign is shown.
    """

    value: float
    low: float
    high: float
    digits: int
    signed: bool = False

    def __str__(self) -> str:
        """Return the number, and its interval where that is finite."""
        style = f"{'+' if self.signed else ''}.{self.digits}f"
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return format(self.value, style)
        return f"{self.value:{style}} [{self.low:{style}}, {self.high:{style}}]"


@dataclass(frozen=True)
class PValue:
    """A p value.

    Args:
        value: from 0 to 1, or NaN where there is none.
    """

    value: float

    def __str__(self) -> str:
        """Return it with two digits, or the bound that it is below."""
        if math.isnan(self.value):
            return "-"
        if self.value < 1e-4:
            return "< 0.0001"
        return f"{self.value:.2g}" if self.value < 0.1 else f"{self.value:.2f}"


Value = str | int | float | Quantity | PValue


@dataclass(frozen=True)
class Table:
    """A table with a header.

    Args:
        name: of its files.
        title: above it.
        header: names of columns.
        rows: their values.
        note: below it.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """Return the table with its title and note."""
        lines = [self.header, tuple("---" if place == 0 else "---:" for place in range(len(self.header)))]
        lines += [tuple(_text(value) for value in row) for row in self.rows]
        body = "\n".join("| " + " | ".join(value.replace("|", "\\|") for value in line) + " |" for line in lines)
        return f"### {self.title}\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")

    def csv(self) -> str:
        """Return the numbers unrounded; a quantity has three columns, for its value and the ends of its interval."""
        quantities = [any(isinstance(row[place], Quantity) for row in self.rows) for place in range(len(self.header))]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(
            name
            for title, wide in zip(self.header, quantities, strict=True)
            for name in ((title, f"{title} low", f"{title} high") if wide else (title,))
        )
        for row in self.rows:
            writer.writerow(
                part
                for value, wide in zip(row, quantities, strict=True)
                for part in (_parts(value) if wide else (_number(value),))
            )
        return text.getvalue()

    def html(self) -> str:
        """Return the table in a box of its own, in which it scrolls where it is wider than the page."""
        kinds = [' class="text"' if _is_text([row[n] for row in self.rows]) else "" for n in range(len(self.header))]
        head = "".join(f"<th{k}>{html.escape(title)}</th>" for title, k in zip(self.header, kinds, strict=True))
        rows = "\n".join(
            "<tr>"
            + "".join(f"<td{k}>{html.escape(_text(value))}</td>" for value, k in zip(row, kinds, strict=True))
            + "</tr>"
            for row in self.rows
        )
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        return (
            f'<h3>{html.escape(self.title)}</h3>\n<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{rows}\n</tbody></table></div>\n{note}"
        )


def _is_text(values: list[Value]) -> bool:
    """Return whether a column holds words, and not numbers."""
    words = [value for value in values if isinstance(value, str) and value]
    return bool(words) and not any(word[0].isdigit() for word in words) and len(words) == len(values)


def _text(value: Value) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _parts(value: Value) -> tuple[Value, ...]:
    return (value.value, value.low, value.high) if isinstance(value, Quantity) else (value, "", "")


def _number(value: Value) -> Value:
    return value.value if isinstance(value, PValue) else value
