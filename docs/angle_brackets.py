"""A hook of MkDocs: <s_j s_k> and <Z> on pages and in docstrings are averages, not HTML."""

from typing import Any

from markdown import Markdown
from markdown.extensions import Extension


class AngleBrackets(Extension):
    """Show what looks like an inline HTML tag as text."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Leave out the pattern of inline HTML."""
        md.inlinePatterns.deregister("html")


def on_config(config: Any) -> Any:
    """Add the extension to those of the site."""
    config.markdown_extensions.append(AngleBrackets())
    return config
