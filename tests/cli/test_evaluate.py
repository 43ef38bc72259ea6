import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from ogrpo.cli.eval import check_files, collect_answers, metrics_path, sampling_of, show
from ogrpo.cli.options import EvalConfig
from ogrpo.config.train import Data, Model
from ogrpo.evaluation import summary
from ogrpo.evaluation.answers import to_line
from tests.evaluation.engines import record

PROTOCOL = SimpleNamespace(samples=4, temperature=0.6, max_tokens=100)


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=100)


def chunks(problems=3, samples=2):
    for n in range(problems):
        yield [record(n, g, text=f"{g}", correct=float(g == 0)) for g in range(samples)]


def test_what_is_not_said_is_the_tasks_protocol():
    sampling = sampling_of(EvalConfig(samples=2), PROTOCOL)
    assert (sampling.group_size, sampling.temperature, sampling.max_tokens) == (2, 0.6, 100)
    assert not sampling.greedy
    assert sampling_of(EvalConfig(samples=1, temperature=0), PROTOCOL).greedy
    with pytest.raises(ValueError, match="give --max-tokens"):
        sampling_of(EvalConfig(samples=1, temperature=1.0), None)
    for k in (0, 5):  # before anything is sampled
        with pytest.raises(ValueError, match=rf"--ks {k}: .* takes a k from 1 to 4:"):
            sampling_of(EvalConfig(ks=(1, k)), PROTOCOL)
    with pytest.raises(ValueError, match="4 times the same answer"):
        sampling_of(EvalConfig(temperature=0), PROTOCOL)
    with pytest.raises(ValueError, match=r"temperature is -0\.5: give at least 0"):
        EvalConfig(temperature=-0.5)


def test_options_of_training_are_refused():
    for part in ({"data": Data(prompt_length=9)}, {"model": Model(remat="full")}):
        with pytest.raises(ValueError, match="which changes nothing here"):
            EvalConfig(**part)


def test_answers_and_metrics_are_kept_and_shown(tmp_path, console):
    output = tmp_path / "[bold]math.jsonl"
    options = EvalConfig(output=output)
    check_files(options)
    answers = collect_answers(chunks(), options, total=6, console=console)
    how = {"title": "math", "settings": {"seed": 0}, "answers_of": {"correct": str}}
    summarised = show(answers, options, console=console, **how)
    assert output.read_bytes() == b"".join(map(to_line, answers))
    assert summarised == summary(answers, answers_of={"correct": str})
    kept = json.loads((tmp_path / "[bold]math.metrics.json").read_text())
    assert kept == {"settings": {"seed": 0}, "metrics": summarised}
    shown = console.file.getvalue()
    assert "pass@2" in shown
    assert "maj@2" in shown
    assert "[bold]math.jsonl" in shown
    assert {*tmp_path.iterdir()} == {output, metrics_path(output)}
    with pytest.raises(ValueError, match=r"math\.jsonl exists"):
        check_files(options)


def test_an_end_that_comes_early_keeps_what_was_judged(tmp_path, console):
    def ends():
        yield from list(chunks())[:2]
        raise KeyboardInterrupt

    options = EvalConfig(output=tmp_path / "a.jsonl")
    with pytest.raises(KeyboardInterrupt):
        collect_answers(ends(), options, total=6, console=console)
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 4
    assert "4 of 6 answers are in" in console.file.getvalue()
