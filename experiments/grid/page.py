"""A study's page, and the figures and tables of docs/ that are made from its rows."""

import base64
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import matplotlib as mpl

from experiments.grid.figures import Picture
from experiments.grid.rows import ROOT, Rows
from experiments.grid.study import Study
from experiments.grid.tables import (
    Section,
    Table,
    claims_table,
    corrected,
    failures,
    settings_tried,
)
from experiments.grid.verdicts import SMALLEST
from ogrpo.report.page import STYLE, render, save_figure
from ogrpo.system.files import make_folder, read_text, write_text

DOCS = ROOT / "docs"
RULES = (
    "± is half the width of a 95 % t-interval over seeds; a star marks a difference that survives"
    " Holm's correction over all differences of this page. A claim that one is above the other is"
    f" reproduced where the difference survives and is at least {SMALLEST:g}, and not seen where"
    f" the interval excludes {SMALLEST:g}. One of no loss is reproduced where the interval excludes"
    f" a loss of {SMALLEST:g}, one of no difference where it lies within {SMALLEST:g} of zero. A"
    f" claim is contradicted where what it denies survives and is at least {SMALLEST:g}. All others"
    " are undecided."
)


def write_page(study: Study, rows: Rows, failed: Rows, folder: Path, *, command: str) -> Path:
    """Writes `folder`/report.html with its figures inside; they lie in `folder`/plots, too."""
    plots = folder / "plots"
    make_folder(folder)

    def inside(picture: Picture) -> dict[str, str]:
        data = base64.b64encode(drawn(picture, plots).read_bytes()).decode()
        return {"name": picture.name, "data": data}

    sections = [
        {
            "heading": section.heading,
            "paragraphs": [text for text in section.text.split("\n\n") if text],
            "tables": section.tables,
            "pictures": [*map(inside, section.pictures)],
        }
        for section in all_sections(study, rows, failed)
    ]
    page = render(
        Path(__file__).with_name("study.html.j2"),
        title=f"ogrpo {study.name}",
        question=study.question,
        quick=study.quick,
        sections=sections,
        facts=facts(rows, failed, command),
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def all_sections(study: Study, rows: Rows, failed: Rows) -> list[Section]:
    """Returns claims, the study's sections, settings tried and failed cells, all as text."""
    sections = [*study.report(rows)]
    claims = claims_table(study.claims, rows)
    if claims.lines:
        sections.insert(0, Section("Claims", RULES, [claims]))
    if any(row["role"] == "tuning" for row in rows):
        text = "Scores on the tuning seeds and the validation problems, which nothing else is of."
        sections.append(Section("Settings tried", text, [settings_tried(rows, study.measure)]))
    if failed:
        text = "These have no row; the next start tries them again."
        sections.append(Section("Failed cells", text, [failures(failed)]))
    tables = iter(corrected([table for section in sections for table in section.tables]))
    return [s._replace(tables=[next(tables) for _ in s.tables]) for s in sections]


def facts(rows: Rows, failed: Rows, command: str) -> list[tuple[str, str]]:
    """Returns what the rows were made with: label and value of each."""

    def all_of(name: str) -> str:
        return ", ".join(sorted({str(row[name]) for row in rows if row.get(name)})) or "–"

    hours = sum(row.get("seconds", 0.0) for row in rows) / 3600
    return [
        ("command", command),
        ("page written", f"{date.today()}"),
        ("cells", f"{len(rows)} finished, {len(failed)} failed"),
        ("measured", all_of("date")),
        ("ogrpo", all_of("ogrpo")),
        ("jax", all_of("jax")),
        ("time", f"{hours:.2f} hours of one process"),
    ]


def drawn(picture: Picture, folder: Path) -> Path:
    """Draws a picture into a folder; returns its file."""
    make_folder(folder)
    path = folder / f"{picture.name}.png"
    with mpl.rc_context(STYLE):
        save_figure(picture.draw(), path)
    return path


def write_docs(study: Study, rows: Rows, failed: Rows) -> list[Path]:
    """Writes the tables and the figures that the study's pages of docs/ show."""
    sections = all_sections(study, rows, failed)
    tables = [table for section in sections for table in section.tables]
    pictures = {picture.name: picture for section in sections for picture in section.pictures}
    folder = DOCS / "studies" / study.name
    written: list[Path] = []
    for page in [DOCS / name for name in study.pages]:
        text = with_tables(read_text(page), study.name, tables)
        for name in shown_figures(text, study.name):
            if name not in pictures:
                raise ValueError(
                    f"there is no figure {name!r} in {study.name}: it has {[*pictures]}"
                )
            written.append(drawn(pictures[name], folder))
        write_text(page, text)
        written.append(page)
    return written


def shown_figures(text: str, study: str) -> list[str]:
    """Returns the names of the study's figures that a page of docs/ shows."""
    return re.findall(rf"\(studies/{re.escape(study)}/([^)]+)\.png\)", text)


def with_tables(text: str, study: str, tables: Sequence[Table]) -> str:
    """Returns a page with these tables between `<!-- STUDY/TABLE -->` and `<!-- end -->`.

    Raises:
      ValueError: a mark names a table that the study does not have, or has no end.
    """
    known = {table.name: table for table in tables}

    def put(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in known:
            raise ValueError(f"there is no table {name!r} in {study}: it has {', '.join(known)}")
        return f"{match['begin']}\n\n{known[name].markdown()}\n\n<!-- end -->"

    begin = rf"(?P<begin><!-- {re.escape(study)}/(?P<name>[\w-]+) -->)"
    whole = rf"{begin}.*?<!-- end -->"
    if len(re.findall(begin, text)) != len(re.findall(whole, text, re.S)):
        raise ValueError(f"a table of {study} has no <!-- end -->")
    return re.sub(whole, put, text, flags=re.S)
