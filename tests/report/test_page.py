"""A run's page: what it puts first, and that it is served while the run goes on."""

import threading
import urllib.request

import pytest

from ogrpo.report.run_dir import RunDir
from ogrpo.report.run_page import PageData, keep, page_of
from ogrpo.report.watch import make_server
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


def test_a_page_is_served_while_its_run_goes_on(tmp_path):
    run = RunDir.create(tmp_path / "run")
    run.write_config({"algorithm": "grpo"})
    with make_server(run, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        try:
            for begun in (False, True):
                if begun:
                    made = make_run(tmp_path / "made", step=20)
                    keep(run, PageData("ogrpo train", "GRPO"))
                    run.write_config(made.read_config())
                    run.metrics.write_bytes(made.metrics.read_bytes())
                with urllib.request.urlopen(url) as answer:
                    assert answer.headers["Refresh"] == "10"
                    assert ("step 20 of 60" in (text := answer.read().decode())) == begun
                assert begun or "no evaluation yet: wait for its first" in text
            assert text == page_of(run)
            assert not run.report.exists()
        finally:
            server.shutdown()
