"""A task and a reward of your own: the six lines of the README, on problems that are written here.

Command: python examples/own_reward.py [FOLDER]
Hardware and time: two cores of a laptop, about a minute. A small decoder is made for the file: it
imitates the worked solutions, half of which are wrong, and GRPO then learns from the reward which
half to believe. Held-out Pass@1 rises from about .3 to about .48 (docs/tasks.md has the figures).
"""

import json
import sys
from pathlib import Path

import ogrpo
from ogrpo.tasks import arithmetic
from ogrpo.tasks.problems import final_answer


def write_problems(path: Path, count: int = 500) -> None:
    """Word problems with the right answer and the working of a careless teacher."""
    problems = arithmetic.generate(count, seed=17)
    teacher = arithmetic.Teacher(result_slip=0.0)
    solutions = arithmetic.demonstrate(problems, seed=17, teacher=teacher)
    with path.open("w") as file:
        for problem, solution in zip(problems, solutions, strict=True):
            row = {
                "prompt": problem.question,
                "solution": solution.answer,
                "answer": final_answer(problem),
            }
            file.write(json.dumps(row) + "\n")


def reward(prompts, completions, answer, **columns) -> list[float]:
    """1 where the number after #### is the answer: TRL's signature."""
    answers = [text.rpartition("####")[2].strip() for text in completions]
    return [float(one == gold) for one, gold in zip(answers, answer, strict=True)]


def main(folder: Path, **options) -> ogrpo.TrainResult:
    """Writes the problems and trains on them."""
    folder.mkdir(parents=True, exist_ok=True)
    problems = folder / "problems.jsonl"
    write_problems(problems)
    trainer = ogrpo.Trainer(
        task=ogrpo.Task.from_jsonl(problems, rewards=[reward]),
        algorithm="grpo",
        run_dir=folder / "run",
        **options,
    )
    return trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "own-reward"))
