"""`examples/one_file.py` is the library's default run: its data, and its first ten steps to the bit.

The library runs its own loop, with its collector's threads, its replay buffer and its records. Both
imitate 60 batches in place of 1,200, which is enough for some completions to be right.
"""

import ast
import importlib.util
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from ogrpo.loop import start, train
from ogrpo.setup.build import make_parts
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import default
from tests.policy.tiny import by_name

pytestmark = pytest.mark.slow

FILE = Path(__file__).parents[2] / "examples/one_file.py"
IMITATIONS, STEPS, TESTED = 60, 10, 32


@pytest.fixture(scope="module")
def example():
    """The example as a module; its constants are read when its functions are called."""
    spec = importlib.util.spec_from_file_location("one_file", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def prepared():
    config = default()
    warm = replace(config.warm_start, steps=IMITATIONS, cache=False)
    evaluation = replace(
        config.evaluation, prompts=TESTED, gradient_variance=False, token_samples=0
    )
    with closing(prepare(replace(config, warm_start=warm, evaluation=evaluation))) as made:
        yield made


def test_its_problems_are_the_librarys(example, prepared):
    def rows(prompts):
        ids, mask = example.encode(prompts, example.P)
        return [row[real].tolist() for row, real in zip(ids, mask, strict=True)]

    def prompts(problems):
        return rows([text for text, *_ in problems])

    assert prompts(example.PROBLEMS) == [ids.tolist() for ids in prepared.prompts.train]
    assert prompts(example.HELDOUT[:TESTED]) == [ids.tolist() for ids in prepared.prompts.heldout]
    golds = [problem.columns["answer"] for problem in prepared.heldout]
    assert [answer for _, answer in example.HELDOUT[:TESTED]] == golds
    demos = prepared.demos.groups(prepared.tokenizer)
    assert prompts(example.DEMOS) == [group.prompt_ids.tolist() for group in demos]
    answers = [[*group.completions[n].token_ids] for group in demos[:99] for n in range(4)]
    texts = [text for _, *texts in example.DEMOS[:99] for text in texts]
    ids, mask = example.encode(texts, example.T, end=[example.EOS])
    assert [row[real].tolist() for row, real in zip(ids, mask, strict=True)] == answers


def test_its_first_ten_steps_are_the_librarys_to_the_bit(example, prepared, monkeypatch):
    console = Console(quiet=True)
    decoder, initial = make_model(prepared, console)
    parts = make_parts(prepared.config, prepared, decoder)
    theirs = []
    for state, record in train(start(parts.learner.init(initial), parts), parts):
        theirs.append((jax.tree.map(np.asarray, state.train.params), record))
        if state.step == STEPS:
            break

    monkeypatch.setattr(example, "IMITATIONS", IMITATIONS)
    monkeypatch.setattr(example, "HELDOUT", example.HELDOUT[:TESTED])
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        params = example.warm_start()
        scores = example.evaluate(params, 0)
        assert scores == tuple(theirs[0][1][f"pass@1/{kind}"] for kind in ("sampled", "greedy"))
        ours = [turn for turn, _ in zip(example.train(params), range(STEPS + 1), strict=False)]
    for (params, record), (weights, full) in zip(ours, theirs, strict=True):
        jax.tree.map(np.testing.assert_array_equal, by_name(params), by_name(weights))
        assert record == {name: full[name] for name in record}
    assert len(ours) == STEPS + 1
    assert sum(record.get("loss", 0.0) != 0.0 for _, record in ours) > STEPS / 2


def test_it_is_short_and_imports_the_algebra_alone_of_ours():
    text = FILE.read_text()
    assert len(text.splitlines()) <= 350
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    ours = {node.module for node in imports if node.module.split(".")[0] == "ogrpo"}
    assert ours
    assert all(module.startswith("ogrpo.core.") for module in ours)
