"""A run's page: what it puts first, and that it is drawn while the run goes on."""

import pytest

from ogrpo.report.run_dir import RunDir
from ogrpo.report.run_page import PageData, keep, page_of
from tests.report.make import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("page") / "run")


def test_a_page_shows_what_differs_from_the_defaults_first(run):
    page = run.report.read_text()
    assert page_of(run) == page
    assert page.index("optimizer.learning_rate<td>0.001<td>0.5") < page.index("As the defaults are")
    assert page.index("As the defaults are") < page.index("schedule.steps<td>60")
    assert "ogrpo train &lt;b&gt;" in page
    assert "<b>120 s</b><span>from the command to this page" in page
    assert "made by a warm start<td>90.0<td>10.0" in page


def test_a_page_is_drawn_while_its_run_goes_on(tmp_path):
    run = RunDir.create(tmp_path / "run")
    run.write_config({"algorithm": "grpo"})
    with pytest.raises(ValueError, match="no evaluation yet: wait for its first"):
        page_of(run)
    made = make_run(tmp_path / "made", step=20)
    keep(run, PageData("ogrpo train", "GRPO"))
    run.write_config(made.read_config())
    run.metrics.write_bytes(made.metrics.read_bytes())
    assert "step 20 of 60" in page_of(run)
    assert not run.report.exists()
