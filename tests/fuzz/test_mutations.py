"""Whatever is wrong with a file, it is taken or refused by its name, within memory and time.

OGRPO_FUZZ=100000 pytest tests/fuzz reads so many of each kind, OGRPO_FUZZ_SEED others.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

from tests.fuzz.mutations import broken

COUNT = int(os.environ.get("OGRPO_FUZZ", "25"))
SEED = os.environ.get("OGRPO_FUZZ_SEED", "0")
TARGETS = 11


def test_a_broken_file_is_taken_or_refused_by_its_name(tmp_path):
    command = [sys.executable, "-m", "tests.fuzz.worker", str(tmp_path), str(COUNT), SEED]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("WRONG")] == []
    assert len(lines) == TARGETS
    assert all("'refused'" in line for line in lines)


def test_the_same_seed_breaks_a_file_alike_and_mostly_does():
    good = b'{"a": [1, 2, {"b": "c"}], "d": 1.5, "e": null}'
    made = [[broken(good, rng) for _ in range(200)] for rng in map(random.Random, (1, 1, 2))]
    assert made[0] == made[1] != made[2]
    assert sum(raw == good for raw in made[0]) < 20
    assert len(set(made[0])) > 150
