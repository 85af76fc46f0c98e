"""The HTML page of a report: one file with all in it, which opens from disk."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_modules.studies.pictures import Gallery
from lightning_modules.studies.tables import Table

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 1rem; color: #1a1a1a; background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 0.5rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 0.5rem; }
nav a { display: inline-block; margin: 0 1rem 0.3rem 0; }
a { color: #00518a; }
.scroll { width: fit-content; max-width: 100%; overflow-x: auto; border: 1px solid #ddd; border-radius: 4px; }
table { border-collapse: collapse; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .text { text-align: left; }
.tests td:first-child { white-space: normal; min-width: 10rem; }
thead th { background: #f1f3f5; border-bottom: 1px solid #bbb; }
tbody tr:nth-child(even) { background: #f8f9fa; }
.versions th:last-child, .versions td:last-child { text-align: left; white-space: normal; }
.panels { display: flex; flex-wrap: wrap; gap: 0.5rem 1rem; align-items: flex-start; }
.panels svg { max-width: 100%; height: auto; flex: none; overflow: visible; }
.panels image { image-rendering: pixelated; }
.note { color: #555; font-size: 0.88rem; margin: 0.3rem 0 0.8rem; max-width: 75ch; }
.warning { background: #fff4e0; border-left: 4px solid #e69f00; padding: 0.5rem 0.8rem; max-width: 90ch;
  overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        name: of its anchor.
        title: its heading.
        tables: shown first.
        galleries: shown then.
    """

    name: str
    title: str
    tables: Sequence[Table]
    galleries: Sequence[Gallery] = ()


def page(title: str, summary: str, warnings: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the page as HTML, which loads nothing.

    Args:
        title: of the study.
        summary: below the title.
        warnings: sentences that stand out.
        sections: the parts, in order.
    """
    links = "".join(f'<a href="#{section.name}">{html.escape(section.title)}</a>' for section in sections)
    warned = "".join(f'<p class="warning">{html.escape(warning)}</p>\n' for warning in warnings)
    body = "\n".join(_section(section) for section in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p class="note">{html.escape(summary)}</p>
<nav>{links}</nav>
{warned}{body}
</body>
</html>
"""


def _section(section: Section) -> str:
    tables = "\n".join(table.html() for table in section.tables)
    galleries = "\n".join(
        f'<h3>{html.escape(gallery.title)}</h3>\n<p class="note">{html.escape(gallery.note)}</p>\n'
        + "\n".join(f'<div class="panels">\n{"".join(row)}</div>' for row in gallery.rows)
        for gallery in section.galleries
    )
    title = html.escape(section.title)
    return f'<section class="{section.name}">\n<h2 id="{section.name}">{title}</h2>\n{tables}\n{galleries}\n</section>'
