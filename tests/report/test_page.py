"""A run's page: what it puts first, and that it is drawn while the run goes on."""

import io

import pytest
from rich.console import Console

from ogrpo.report import run_page
from ogrpo.report.compare import results
from ogrpo.report.run_dir import RunDir
from ogrpo.report.run_page import PageData, certified, keep, page_of, refused, replayed
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
    keep(run, PageData("ogrpo train\nogrpo train --resume", "GRPO", seconds=[("steps", 9.0, 0.0)]))
    assert "<b>9 s</b><span>from the last command to this page" in page_of(run)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(results([made, made]))
    assert "│ 1.3e+10 │" in console.export_text()
    with run.tokens.open("a") as file:
        file.write("{}\n")
    with pytest.raises(ValueError, match=r"tokens\.jsonl, line 1, is no record of a step's comp"):
        page_of(run)
    run.page_data.write_text("[")
    with pytest.raises(ValueError, match="damaged: delete it"):
        page_of(run)
    assert not run.report.exists()


@pytest.mark.parametrize(
    ("most", "shown"),
    [
        (11, [(40, 3)]),
        (15, [(20, 3), (40, 3), (40, 9)]),
        (24, [(20, 3), (20, 9), (40, 3), (40, 9)]),
    ],
)
def test_a_page_shows_as_many_completions_as_it_has_room_for(run, monkeypatch, most, shown):
    monkeypatch.setattr(run_page, "MOST_TOKENS", most)
    tokens = [(each["step"], len(each["tokens"])) for each in run_page.shown_tokens(run)]
    assert tokens == shown


def test_refusals_and_evictions_are_those_of_the_end():
    records = [
        {"replay/refused/zero_variance": 1.0, "reuse/starved": True},
        {"replay/refused/zero_variance": 1200.0, "replay/evicted/uses": 4.0, "replay/groups": 8.0},
    ]
    assert replayed(records) == [
        ("groups refused, zero_variance", "1,200"),
        ("groups evicted, uses", "4"),
        ("steps whose draws ended for lack of a batch", "1"),
    ]


def test_an_infinite_signal_or_limit_counts_though_its_record_holds_null():
    used_up = {"reuse/signal": "kl", "reuse/use": None, "nonfinite": ["reuse/use"]}
    assert certified(None, [used_up]) == [("steps ended by the signal kl", "1")]
    failed = {"certificate/bound": None, "nonfinite": ["certificate/bound"]}
    for delta, confidence in ((0.05, "95%"), (0.001, "99.9%"), (0.9, "10%")):
        label, count = certified(delta, [failed, {"certificate/bound": 0.1}])[0]
        assert label.endswith(f"with confidence {confidence}")
        assert count == "1 of 2"


def test_refused_completions_are_told_by_reason_and_by_server():
    last = {
        "rollout/refused": 20.0,
        "rollout/refused/tokens": 4.0,  # of an engine without a server
        "rollout/refused/log_probs": 16.0,
        "rollout/refused/log_probs/a:8000": 12.0,
        "rollout/refused/log_probs/b:8000": 4.0,
    }
    assert refused(last) == [
        ("completions refused and drawn again: tokens", "4"),
        ("completions refused and drawn again: log_probs, from a:8000", "12"),
        ("completions refused and drawn again: log_probs, from b:8000", "4"),
    ]
    assert refused({}) == refused({"rollout/refused": 0.0}) == []
