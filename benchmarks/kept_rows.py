"""Rows of a benchmark in a CSV file, added as they are measured, so that a run that was stopped can go on."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read(path: Path, kind: Any) -> list[Any]:
    """Return the rows of a file as named tuples of that kind; none where there is no file.

    Raises:
        ValueError: if the file has other columns.
    """
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != kind._fields:
            raise ValueError(f"{str(path)!r} has other columns than {', '.join(kind._fields)}: give another file.")
        types = kind.__annotations__
        return [kind(**{name: types[name](value) for name, value in row.items()}) for row in reader]


def append(path: Path, rows: Iterable[Any]) -> None:
    """Add named tuples to a file, under a header where the file is new."""
    rows = list(rows)
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([rows[0]._fields, *rows] if new else rows)
