"""The Optax loop learns, with methods that differ in what they do about the sampler's age."""

import runpy
from pathlib import Path

import jax
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_optax.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


@pytest.mark.parametrize("words", [[], ["dapo"], ["topr"]])
def test_the_command_trains_a_policy_to_count_and_prints_its_table(
    example, words, monkeypatch, capsys
):
    monkeypatch.setattr("sys.argv", ["with_optax.py", *words])
    with jax.numpy_dtype_promotion("standard"):  # Optax's Adam promotes
        example["main"]()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{[*words, 'off_policy_grpo'][0]}: ")
    assert [int(row.split()[1]) for row in rows] == [1, *range(10, 61, 10)]
    rewards = [float(row.split()[-1]) for row in rows]
    assert rewards[0] < 0.2
    assert rewards[-1] > 0.9


def test_the_reward_is_of_counting_on_from_the_prompt(example):
    prompts = jax.numpy.array([8, 0])
    tokens = jax.numpy.array([[[9, 0, 1, 2], [9, 0, 2, 3]], [[1, 2, 3, 4], [0, 0, 0, 0]]])
    assert example["reward"](prompts, tokens).tolist() == [[1.0, 0.5], [1.0, 0.0]]
