"""The subcommand `hybrid-attention report`: a page, and tables as CSV and Markdown, of the runs of a study."""

import glob
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from jsonargparse import ArgumentParser

from lightning_modules.calibration_plot import check_matplotlib
from lightning_modules.studies.findings import Findings, read_findings
from lightning_modules.studies.page import Section, page
from lightning_modules.studies.pictures import galleries
from lightning_modules.studies.progress import duration
from lightning_modules.studies.result_tables import experiment_tables, runs_table, test_tables, versions_table
from lightning_modules.studies.search_table import search_table

PAGE = "report.html"
_DESCRIPTION = """Show what a study has found so far: an HTML page that needs no network, its pictures as SVG, and its
tables as CSV and Markdown. The files of an earlier report of the same study are replaced."""
_FEW = 5


def report_command(arguments: Sequence[str]) -> None:
    """Run `hybrid-attention report` with the arguments that follow it on the command line.

    Raises:
        ValueError: if the folder is not that of a study, has no finished run, or matplotlib is missing.
    """
    parser = ArgumentParser(prog="hybrid-attention report", description=_DESCRIPTION, exit_on_error=False)
    parser.add_argument("study", type=str, help="Folder of the study.")
    parser.add_argument("--output", type=str, help="Folder of the report; STUDY/report by default.")
    settings = parser.parse_args(list(arguments))
    folder = Path(settings.study)
    write_report(folder, folder / "report" if settings.output is None else Path(settings.output))


def write_report(study: Path, output: Path) -> None:
    """Write report.html, tables.md, NAME.csv for each table, runs.csv with a row for each run, and pictures/NAME.svg.

    Args:
        study: folder of the study.
        output: folder of the report.

    Raises:
        ValueError: as report_command.
    """
    check_matplotlib()
    findings = read_findings(study)
    tested = test_tables(findings)
    sections = [Section("tests", "What was tested", tested)] if tested else []
    for name, experiment in findings.experiments.items():
        searched = search_table(findings, name)
        tables = [*([searched] if searched.rows else []), *experiment_tables(findings, name)]
        if tables:
            sections.append(Section(name, experiment.title, tables, list(galleries(findings, name))))
    sections.append(Section("versions", "Versions", [versions_table(findings)]))
    output.mkdir(parents=True, exist_ok=True)
    tables = [table for section in sections for table in section.tables]
    for table in [*tables, runs_table(findings)]:
        (output / f"{table.name}.csv").write_text(table.csv())
    _write_pictures(sections, output / "pictures")
    markdown = "\n".join(
        f"## {section.title}\n\n" + "\n".join(t.markdown() for t in section.tables) for section in sections
    )
    (output / "tables.md").write_text(markdown)
    summary, warnings = _summary(findings), _warnings(findings)
    (output / PAGE).write_text(page(findings.title, summary, warnings, sections), encoding="utf-8")
    print("\n".join([summary, *warnings]))
    print(
        f"Report: {output / PAGE}; beside it are tables.md, all tables and runs as CSV files, and pictures as SVG files"
    )


def _write_pictures(sections: Sequence[Section], folder: Path) -> None:
    """Write each gallery's pictures as GALLERY_01.svg, ..., and remove those of an earlier report that had more."""
    folder.mkdir(exist_ok=True)
    for section in sections:
        for gallery in section.galleries:
            name = "_".join([section.name, *gallery.title.lower().split()])
            pictures = {f"{name}_{number:02}.svg": text for number, text in enumerate(chain(*gallery.rows), 1)}
            for before in folder.glob(f"{glob.escape(name)}_*.svg"):
                if before.name not in pictures and before.stem.removeprefix(f"{name}_").isdecimal():
                    before.unlink()
            for file, text in pictures.items():
                (folder / file).write_text(text, encoding="utf-8")


def _summary(findings: Findings) -> str:
    results = [result for by_seed in findings.results.values() for result in by_seed.values()]
    total = sum(result.seconds for result in results)
    return f"{len(results)} of {len(results) + len(findings.missing)} runs finished, {duration(total)} of training."


def _warnings(findings: Findings) -> list[str]:
    found = []
    if findings.missing:
        found.append(f"{len(findings.missing)} runs are missing, such as {', '.join(findings.missing[:_FEW])}.")
    unpaired = findings.unpaired()
    if unpaired:
        found.append(
            f"Initial weights or the order of the data differ between kinds of attention in {len(unpaired)} cases, "
            f"such as {', '.join(unpaired[:_FEW])}: their differences are not paired."
        )
    return found
