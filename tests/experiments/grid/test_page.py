"""Tables, figures and pages of rows whose values are known."""

from functools import partial

import numpy as np
import pytest

from experiments.grid import page
from experiments.grid.columns import against, plus_minus
from experiments.grid.figures import AXES, Picture, all_axes, curve, small_multiples
from experiments.grid.rows import SCORE
from experiments.grid.tables import Section, Table, settings_tried, summary
from experiments.grid.variants import Variant
from experiments.grid.verdicts import difference
from ogrpo.config.train import TrainConfig
from tests.experiments.grid.small import SquareStudy
from tests.experiments.synthetic import row

GOOD, POOR = (Variant(label, TrainConfig(), {"v": 1}).with_rate(1e-3) for label in ("good", "poor"))
ROWS = [
    *(row(GOOD.cell("report", seed), score) for seed, score in [(10, 0.5), (11, 0.7)]),
    *(row(POOR.cell("report", seed), score) for seed, score in [(11, 0.26), (10, 0.1)]),
    *(row(GOOD.cell("tuning", 20), score) for score in (0.9,)),
]


def test_a_summary_has_means_errors_settings_and_how_many_were_tried():
    table = summary(ROWS)
    heads = [*table.columns]
    lines = [dict(zip(heads, line, strict=True)) for line in table.lines]
    assert [line["method"] for line in lines] == ["good v=1", "poor v=1"]
    assert lines[0]["Pass@1, sampled"] == "0.600 ± 1.271"  # .1 times Student's 12.706
    assert (lines[0]["setting"], lines[0]["settings tried"]) == ("rate 0.001 (only one tried)", "1")
    assert (lines[1]["settings tried"], lines[1]["seeds"]) == ("0", "2")
    assert settings_tried(ROWS, SCORE).lines == [["good v=1", "rate 0.001", "0.900", "1"]]


def test_methods_are_compared_seed_by_seed():
    good, poor = ROWS[:2], ROWS[2:4]
    mean, low, high = difference(good, poor).interval
    assert mean == pytest.approx(0.42)  # .5 - .1 and .7 - .26
    assert high - mean == pytest.approx(mean - low) == pytest.approx(0.02 * 12.706, rel=1e-4)
    assert np.isnan(difference(good, ROWS[4:]).interval[0])
    assert difference(good[::-1], poor) == difference(good, poor)
    assert against(good)(good) == "reference"
    assert plus_minus([np.nan, 0.5]) == "–"


def test_each_axis_is_that_of_the_rows():
    quarters = {"step": 60, "updates": 60, "completions": 250_000, "tokens": 500_000}
    quarters |= {"flops": 1_750_000, "seconds": 2.25}
    assert [axis.name for axis in AXES] == [*quarters]
    for axis, each in zip(AXES, quarters.values(), strict=True):
        assert curve(ROWS[0], axis, "pass@1/sampled")[0].tolist() == [each * n for n in range(5)]
    assert curve(ROWS[0], AXES[0], "ess")[1].tolist() == ROWS[0]["steps"]["ess"]


def test_curves_have_a_panel_for_each_axis_and_a_thin_line_for_each_seed():
    figure = all_axes(ROWS[:4])
    assert [axes.get_xlabel() for axes in figure.axes] == [axis.label for axis in AXES]
    for axes in figure.axes:
        widths = [line.get_linewidth() for line in axes.lines]
        assert (widths.count(0.5), widths.count(1.6)) == (4, 2)
        assert len(axes.collections) == 2  # a band each
    shown = small_multiples(ROWS[:4], ["pass@1/sampled", "ess"])
    assert [axes.get_visible() for axes in shown.axes] == [True, True, False]


class Told(SquareStudy):
    pages = ("told.md",)

    def report(self, rows):
        table = Table("squares", ("a|b", "n"), [["x|y", str(len(rows))]])
        pictures = [Picture(name, partial(all_axes, rows)) for name in ("all", "more")]
        return [Section("Curves", tables=[table], pictures=pictures)]


def test_docs_get_the_figures_that_they_show_and_the_tables_that_they_mark(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "DOCS", tmp_path)
    text = "before\n\n<!-- small/squares -->\n\nold\n\n<!-- end -->\n\nafter\n"
    figure = "![curves](studies/small/all.png)\n"
    (tmp_path / "told.md").write_text(text + figure)
    written = page.write_docs(Told(), ROWS[:4], [])
    assert written == [tmp_path / "studies/small/all.png", tmp_path / "told.md"]
    made = (tmp_path / "told.md").read_text()
    table = "| a‖b | n |\n| --- | --- |\n| x‖y | 4 |"
    assert made == f"before\n\n<!-- small/squares -->\n\n{table}\n\n<!-- end -->\n\nafter\n{figure}"
    page.write_docs(Told(), ROWS[:4], [])
    assert (tmp_path / "told.md").read_text() == made
    (tmp_path / "told.md").write_text("![curves](studies/small/none.png)")
    with pytest.raises(ValueError, match=r"no figure 'none' in small: it has \['all', 'more'\]"):
        page.write_docs(Told(), ROWS[:4], [])
    with pytest.raises(ValueError, match="no table 'cubes' in small: it has squares"):
        page.with_tables("<!-- small/cubes --><!-- end -->", "small", [Table("squares", (), [])])
    with pytest.raises(ValueError, match="has no <!-- end -->"):
        page.with_tables("<!-- small/squares -->", "small", [Table("squares", (), [])])


def test_the_page_needs_nothing_but_itself_and_tells_failures(tmp_path):
    failed = [{**ROWS[0], "words": "Traceback\nValueError: <no> luck"}]
    path = page.write_page(Told(quick=True), ROWS, failed, tmp_path, command="the command")
    text = path.read_text()
    assert text.count("data:image/png;base64,iVBOR") == 2
    assert "ValueError: &lt;no&gt; luck" in text
    assert "the command" in text
    assert "Its numbers mean nothing" in text
    assert "Settings tried" in text
    assert "://" not in text
