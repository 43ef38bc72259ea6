"""Makes the problems of examples/one_file.py: those of the library's default run, seed 0.

    python examples/one_file_data.py [FILE]

A line of words, each of them a token; then problems with their answers, the held-out ones last, and
the problems of the careless teacher with his answers. It prints the text's SHA-256.
"""

import hashlib
import lzma
import sys
from pathlib import Path

from ogrpo.loop import stream_seed
from ogrpo.setup.find_task import find_task
from ogrpo.setup.presets import default
from ogrpo.tasks import arithmetic


def lines() -> list[str]:
    """Returns the file's lines, with a tab between columns."""
    config = default()
    task, made = find_task(config).task, config.warm_start
    examples = [*task.train, *task.heldout[: config.evaluation.prompts]]
    problems = [[str(example.prompt), example.columns["answer"]] for example in examples]
    count = config.data.train + made.problems
    taught = arithmetic.split(count, 2048, config.data.seed).train[config.data.train :]
    answers = [
        arithmetic.demonstrate(taught, stream_seed(config.seed, "teacher", n), arithmetic.TEACHER)
        for n in range(made.demonstrations)
    ]
    demos = [
        [problem.question, *(answer.answer for answer in each)]
        for problem, *each in zip(taught, *answers, strict=True)
    ]
    words = [*arithmetic.vocabulary(), "<pad>", "<eos>", "<unk>"]
    return ["\t".join(row) for row in [words, *problems, *demos]]


if __name__ == "__main__":
    default_place = Path(__file__).with_name("one_file.txt.xz")
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else default_place
    text = "\n".join(lines()).encode()
    file.write_bytes(lzma.compress(text, preset=9))
    print(hashlib.sha256(text).hexdigest())
