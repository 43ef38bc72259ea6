"""Reads broken files within bounds of memory and time.

python -m tests.fuzz.worker FOLDER COUNT SEED prints a line for each outcome that is neither success
nor an error that names the file.
"""

import gc
import hashlib
import random
import resource
import shutil
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from ogrpo.cli.options import read_file
from ogrpo.config.train import TrainConfig
from ogrpo.data.tokenizer import TextTokenizer, train_bpe
from ogrpo.policy import load_pretrained
from ogrpo.report.run_dir import RunDir
from ogrpo.rollout.extension import ogrpo_releases as releases
from ogrpo.rollout.weights import Store
from ogrpo.system.values import changed, from_json, to_json
from ogrpo.tasks.rows import read_rows
from tests.fuzz.mutations import broken

GOLDEN = Path(__file__).parents[2] / "tests" / "policy" / "golden"
SECONDS = 20
GIB = 1.0
"""Of growth, over all cases of a target."""
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def model(name):
    def make(folder):
        shutil.copytree(GOLDEN / name, folder, dirs_exist_ok=True)
        (folder / "expected.safetensors").unlink()

    return make


def tokenizer(folder):
    train_bpe(["one two three"] * 3, 300, chat_template=CHAT).save(folder)


def release(folder):
    Store(folder).write({"a": np.ones((2, 3), np.float32)}, 1)
    for file in (folder / "v000001").iterdir():
        file.rename(folder / file.name)


def run(folder):
    RunDir.create(folder).write_config(to_json(TrainConfig()))


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def load_model(folder):
    load_pretrained(folder, jnp.float32)


def load_release(folder):
    releases.check(folder / "model.safetensors", {"a": [2, 3]}, "float32")


def load_manifest(folder):
    raw = (folder / "manifest.json").read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    place = releases.WorkerState()
    try:
        releases.obtain(place, path=str(folder), manifest_sha256=digest)
    finally:
        place._held.remove()


def load_options(folder):
    path = folder / "run.yaml"
    changed(TrainConfig(), read_file(path), f"--config {path}: ")


YAML = "seed: 1\nschedule:\n  steps: 3\nrewards: [a.py:b]\noptimizer: {learning-rate: 0.1}\n"
ROW = '{"prompt": "1 + 1", "answer": "2", "more": [1, {"a": null}]}\n'
TARGETS = {
    "config.json": (model("llama3-scaled"), load_model),
    "model.safetensors": (model("qwen2"), load_model),
    "model.safetensors.index.json": (model("qwen3-untied"), load_model),
    "tokenizer.json": (tokenizer, lambda f: TextTokenizer.load(f).encode_prompt("one two")),
    "tokenizer_config.json": (tokenizer, lambda f: TextTokenizer.load(f).encode_prompt("one")),
    "chat_template.jinja": (tokenizer, TextTokenizer.load),
    "release/model.safetensors": (release, load_release),
    "manifest.json": (release, load_manifest),
    "run/config.json": (
        run,
        lambda f: from_json(TrainConfig, RunDir.reopen(f).read_config(), str(f / "config.json")),
    ),
    "run.yaml": (text("run.yaml", YAML), load_options),
    "rows.jsonl": (text("rows.jsonl", ROW * 3), lambda f: read_rows(f / "rows.jsonl")),
}


def overrun(*_):
    raise TimeoutError(f"it took more than {SECONDS} s")


def outcome(load, folder):
    """ "taken", "refused" by the file's name, or what else."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        load(folder)
    except TimeoutError as error:
        return repr(error)
    except (ValueError, OSError, releases.Refusal) as error:
        said = str(error)
        # A server knows releases by their files' names alone.
        of_release = ("manifest.json", "model.safetensors", "the release")
        names = of_release if isinstance(error, releases.Refusal) else ()
        known = any(name in said for name in (str(folder), *names))
        return "refused" if known else f"no name in {error!r:.300}"
    except BaseException as error:  # a panic of a library is no Exception
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{error!r:.300} at {place.filename}:{place.lineno}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "taken"


def main(base, count, seed):
    signal.signal(signal.SIGALRM, overrun)
    for target, (make, load) in TARGETS.items():
        name, folder = Path(target).name, Path(base) / target.replace("/", "-")
        folder.mkdir(parents=True)
        make(folder)
        good = (folder / name).read_bytes()
        assert (answer := outcome(load, folder)) == "taken", answer
        rng, counts = random.Random(f"{seed} {target}"), Counter()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(int(count)):
            raw = broken(good, rng)
            (folder / name).write_bytes(raw)
            answer = outcome(load, folder)
            counts[answer if answer in ("taken", "refused") else "WRONG"] += 1
            if answer not in ("taken", "refused"):
                print(f"WRONG {target} {number}: {answer}: {raw[:120]!r}", flush=True)
        gc.collect()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
        print(target, dict(counts), f"{grown:.2f} GiB", flush=True)
        if grown > GIB:
            print(f"WRONG {target}: it took {grown:.2f} GiB", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
