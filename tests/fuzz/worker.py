"""Breaks files at random, from a seed, and reads them within bounds of memory and time.

python -m tests.fuzz.worker FOLDER COUNT SEED prints a line for each outcome that is neither success
nor an error that names the file.
"""

import gc
import hashlib
import json
import random
import resource
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ogrpo.cli.options import read_file
from ogrpo.config.train import TrainConfig
from ogrpo.config.values import changed, from_json, to_json
from ogrpo.data.tokenizer import TextTokenizer, train_bpe
from ogrpo.policy import load_pretrained
from ogrpo.report.run_dir import RunDir
from ogrpo.rollout import weights
from ogrpo.rollout.extension import ogrpo_releases as releases
from ogrpo.rollout.weights import Store
from ogrpo.tasks.rows import read_rows

ROOT = Path(__file__).parents[2]

GOLDEN = ROOT / "tests" / "policy" / "golden"
SECONDS = 20
GIB = 1.0
"""Of growth, over all cases of a target."""
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


VALUES = [
    *(None, True, False, 0, 1, -1, 2, 0.0, 1.0, -0.5, 1e308, 2**31, 2**63, 10**30, -(2**63)),
    *("", "0", "false", "..", "/etc/passwd", "../x.safetensors", "\x1b[31m", "\0", "F32", "%s"),
    *([], [[]], {}, {"": {}}, [0, 1], [16, 0], [-8, 8], ["a"], [None], "x" * 5000, [1] * 5000),
]
PIECES = [
    *(b"NaN", b"Infinity", b"1e999", b"9" * 5000, b"[" * 5000, b'{"a":' * 5000, b'"\\ud800"'),
    *(b"\xff\xfe", b"\0", b"\xed\xa0\x80", b"\xef\xbb\xbf", b",", b"}", b'"', b"\\", b"\n", b"*a"),
    *(b"{% for i in range(99999) %}", b"{{ 9 ** 9 ** 9 }}", b"&a [*a, *a]", b"!!python/name:os.x "),
]


def broken(raw: bytes, rng: random.Random) -> bytes:
    """The content with one to three things wrong."""
    for _ in range(rng.randint(1, 3)):
        raw = rng.choice((_flip, *[_splice] * 4, *[_fields] * 3))(raw, rng)
    return raw


def _flip(raw: bytes, rng: random.Random) -> bytes:
    if not raw:
        return raw
    mutated = bytearray(raw)
    for _ in range(rng.choice((1, 1, 4, 16))):
        mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
    return bytes(mutated)


def _splice(raw: bytes, rng: random.Random) -> bytes:
    """The end cut off, a stretch taken out, a piece put in, or a stretch doubled."""
    begin = rng.randint(0, len(raw))
    end, piece = rng.choice(
        (
            (len(raw), b""),
            (begin + rng.choice((1, 8, 64)), b""),
            (begin, rng.choice(PIECES)),
            (begin, raw[begin : begin + 64]),
        )
    )
    return raw[:begin] + piece + raw[end:]


def _fields(raw: bytes, rng: random.Random) -> bytes:
    """JSON with a value replaced, taken out or swapped with another; other content as it was."""
    head, tail = b"", b""
    if raw[8:9] == b"{":  # a safetensors header, with what follows it
        size = int.from_bytes(raw[:8], "little")
        head, raw, tail = raw[:8], raw[8 : 8 + size], raw[8 + size :]
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return head + raw + tail
    _change(value, rng)
    new = json.dumps(value).encode()
    return (len(new).to_bytes(8, "little") if head else b"") + new + tail


def _change(value: Any, rng: random.Random) -> None:
    places = list(_places(value)) if isinstance(value, dict | list) else []
    if not places:
        return
    holder, key = rng.choice(places)
    kind = rng.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        other, name = rng.choice(places)
        holder[key], other[name] = other[name], holder[key]
    elif kind == 2 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif kind == 3 and type(holder[key]) in (int, float):
        holder[key] = rng.choice((holder[key] + 1, -holder[key], holder[key] * 10**6, 1.5))
    else:
        holder[key] = rng.choice(VALUES)


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    inner = list(value) if isinstance(value, dict) else range(len(value))
    for key in inner:
        yield value, key
        if isinstance(value[key], dict | list) and depth < 4:
            yield from _places(value[key], depth + 1)


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
    file = folder / "model.safetensors"
    weights.read(file)
    releases.check(file, {"a": [2, 3]}, "float32")


def load_manifest(folder):
    raw = (folder / "manifest.json").read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    place = releases.Workplace()
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
        known = str(folder) in said or (
            isinstance(error, releases.Refusal) and any(word in said for word in of_release)
        )
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
