"""Links of the README and of the pages, and what the site shows."""

import re
from pathlib import Path

import pytest
import pytorch_lightning as pl
import yaml

from hybrid_attention import ExactLayer
from lightning_modules import CharLanguageModel

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page):
    """The ids of headings, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_pages_are_found_and_have_links():
    assert {"README.md", "index.md", "calibration.md"} <= {page.name for page in PAGES}
    assert sum(len(LINK.findall(page.read_text())) for page in PAGES) > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page):
    for link in LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        found = page if not target else page.parent / target
        assert found.exists(), link
        if ROOT / "docs" in page.parents and target:
            assert ROOT / "docs" in found.resolve().parents, f"{link} leaves the site"
        assert not anchor or anchor in anchors(found), link


def test_the_menu_of_the_site_has_every_page_once():
    def pages(entries):
        for entry in entries:
            for value in entry.values():
                yield from pages(value) if isinstance(value, list) else [value]

    found = sorted(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert found == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("package", ["hybrid_attention", "devices", "datamodules", "lightning_modules"])
def test_the_reference_has_every_public_name(package):
    module = __import__(package)
    shown = re.findall(rf"^::: {package}\.(\w+)$", (ROOT / f"docs/api/{package}.md").read_text(), flags=re.MULTILINE)
    assert sorted(shown) == sorted(module.__all__)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.stem
)
def test_python_on_the_pages_runs(page, tmp_path, monkeypatch):
    if page.name == "README.md":
        pytest.skip("tests/test_readme.py runs it")
    monkeypatch.chdir(tmp_path)
    if "my_language_model.ckpt" in page.read_text():
        runner = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
        runner.strategy.connect(CharLanguageModel(" inosw", context_length=8, layer=ExactLayer))
        runner.save_checkpoint("my_language_model.ckpt", weights_only=True)
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(block, {})


@pytest.mark.slow
def test_averages_in_angle_brackets_are_text_on_the_site(tmp_path):
    build = pytest.importorskip("mkdocs.commands.build")
    config = pytest.importorskip("mkdocs.config").load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path))
    build.build(config)
    for page in ("inspect.html", "calibration.html", "api/hybrid_attention.html"):
        assert "&lt;s_j" in (tmp_path / page).read_text()
