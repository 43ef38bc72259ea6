"""Whatever ends a run, what is whole is saved first, and the way on is told beside the error."""

import traceback
from dataclasses import replace

import pytest

from ogrpo.config.train import Checkpointing
from tests.run.small_run import CONFIG, go, go_with, left

ONLY_LAST = {"checkpoint": Checkpointing(every=4, keep=3)}
"""What is saved before the end is saved because of an error."""


def failing(error: BaseException, at: int):
    """Makes a function that raises instead of its `at`-th call."""

    def of(function):
        calls = iter(range(1, 1000))

        def fails(*arguments):
            if next(calls) == at:
                raise error
            return function(*arguments)

        return fails

    return of


@pytest.mark.slow
def test_a_run_that_errors_end_again_and_again_ends_as_one_that_none_did(tmp_path):
    go(tmp_path / "whole", **ONLY_LAST)
    folder = tmp_path / "run"
    config = replace(CONFIG, **ONLY_LAST)
    # (what fails, at which call, the step that is saved, what is said)
    story = [
        ("evaluator.judge", MemoryError(), 1, 0, "the state after step 0 is saved; go on with"),
        (
            "collection.reward_fn",
            KeyError("gold"),
            2,
            1,
            "the state after step 1 is saved; go on with",
        ),
        ("method.hypers_at", OSError(5, "Input/output error"), 1, 1, "step 2 was under way"),
        (
            "learner.update",
            KeyboardInterrupt(),
            1,
            1,
            "what it had changed is not saved; go on with",
        ),
        ("evaluator.judge", ValueError("odd"), 1, 2, "the state after step 2 is saved; go on with"),
    ]
    for n, (part, error, call, step, said) in enumerate(story):
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - which, is compared
            go_with(folder, {part: failing(error, call)}, config, resume=n > 0)
        shown = "".join(traceback.format_exception(caught.value))
        assert said in shown
        assert f"--run-dir {folder} --resume" in shown
        assert any(each is error for each in chain(caught.value)), shown
        saved = [int(entry.name) for entry in (folder / "checkpoints").iterdir()]
        assert max(saved) == step
    go(folder, config, resume=True)
    assert left(folder) == left(tmp_path / "whole")


def chain(error):
    """An error and what it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
