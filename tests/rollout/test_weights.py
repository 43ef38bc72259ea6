"""Releases on the disk, the share they are pulled from, and their way into a live model."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from ogrpo.rollout import weights as files
from ogrpo.rollout.extension import ogrpo_releases as releases
from ogrpo.rollout.weights import Store, WeightShare
from tests.rollout.vllm.stub import serving

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def policy(seed=0, dtype=np.float32, rows=8):
    rng = np.random.default_rng(seed)
    shapes = {"a.weight": (rows, 6), "b.bias": (5,), "c.scalar": (), "d.empty": (0, 3)}
    return {name: np.asarray(rng.normal(size=s)).astype(dtype) for name, s in shapes.items()}


def same(left, right):
    return left.keys() == right.keys() and all(
        left[n].dtype == right[n].dtype and left[n].tobytes() == right[n].tobytes() for n in left
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_file_is_read_back_by_safetensors(tmp_path, dtype):
    tensors = policy(dtype=DTYPES[dtype])
    sha256, size = files.write(tmp_path / "x", tensors)
    raw = (tmp_path / "x").read_bytes()
    assert (hashlib.sha256(raw).hexdigest(), len(raw)) == (sha256, size)
    assert same(load_file(tmp_path / "x"), tensors)


def test_a_release_appears_whole_and_old_ones_go(tmp_path):
    store = Store(tmp_path, keep=2)
    made = [store.write(policy(n), n) for n in range(4)]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["v000002", "v000003"]
    manifest = json.loads((made[3].folder / "manifest.json").read_text())
    assert manifest["sha256"] == made[3].sha256
    assert manifest["tensors"]["a.weight"] == {"dtype": "F32", "shape": [8, 6]}
    again = store.write(policy(9), 3)
    assert again.sha256 != made[3].sha256
    assert same(load_file(again.folder / "model.safetensors"), policy(9))


def test_a_clock_that_jumps_back_takes_no_newer_release_for_an_older_one(tmp_path):
    """The one that servers are about to read would be deleted as soon as it is written."""
    Store(tmp_path).write(policy(0), 7)  # of a process before this one
    store, later = Store(tmp_path), time.time() + 86_400
    for version in range(3):
        os.utime(store.write(policy(version), version).folder, (later, later))
    again = store.write(policy(9), 1)
    assert (again.folder / "model.safetensors").is_file()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["v000001", "v000002"]


def test_what_is_no_release_stays(tmp_path):
    for name in ("v1_base", "v2.5-data", "v3", "v000007"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("mine")
    store = Store(tmp_path)
    for version in range(4):
        store.write(policy(version), version)
    assert len([*tmp_path.glob("v*/model.safetensors")]) == 4 + 2


def test_a_write_that_fails_or_is_cut_off_leaves_nothing_beside_the_next(tmp_path, monkeypatch):
    bad = policy()
    bad["b.bias"][0] = np.nan
    with pytest.raises(ValueError, match=r"b\.bias has NaN.*the policy has diverged"):
        Store(tmp_path).write(bad, 1)
    assert not list(tmp_path.iterdir())

    def fill_the_disk(file, _):
        file.write_bytes(b"half of it")
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", fill_the_disk)
        with pytest.raises(OSError, match="no space"):
            Store(tmp_path).write(policy(), 1)
    assert not list(tmp_path.iterdir())
    Store(tmp_path).write(policy(), 2)
    assert [file.name for file in tmp_path.iterdir()] == ["v000002"]


def released(tmp_path, *tensors):
    store = Store(tmp_path / "releases", keep=8)
    return [store.write(one, version) for version, one in enumerate(tensors, start=1)]


@pytest.fixture
def share(tmp_path):
    (tmp_path / "releases").mkdir()
    made = WeightShare(tmp_path / "releases")
    yield made
    made.close()


class Model:
    """A live model of which each release replaces all; it fails on those that are named."""

    def __init__(self, share):
        self.share, self.state = share, releases.WorkerState()
        self.live, self.broken = None, set()

    def install(self, release):
        self.live = "half"
        if release.version in self.broken:
            raise RuntimeError("no memory")
        self.live = load_file(release.file)

    def update(self, release, **changes):
        shapes = {name: list(array.shape) for name, array in policy(rows=400).items()}
        served = releases.Served(lambda: shapes, "float32", self.install)
        ticket = {"version": release.version, "manifest_sha256": release.manifest_sha256}
        releases.update(self.state, served, **{**ticket, **changes})

    def stage(self, release):
        url = f"{self.share.url}/{release.folder.name}"
        self.update(release, url=url, token=self.share.token)

    def push(self, release):
        self.stage(release)
        self.update(release, install=True)

    def pulled(self):
        return sorted(file for file in self.state.scratch.iterdir() if file.name != "lock")


def test_a_release_is_staged_and_then_installed_and_leaves_one_file(tmp_path, share):
    first, second = policy(0, rows=400), policy(1, rows=400)
    one, two = released(tmp_path, first, second)
    model = Model(share)
    model.push(one)
    assert same(model.live, first)
    model.stage(two)
    assert same(model.live, first)
    assert (model.state.status()["version"], model.state.last["code"]) == (1, "staged")
    model.stage(two)  # another trainer, or the same one again
    model.update(two, install=True)
    assert same(model.live, second)
    note = {"manifest_sha256": two.manifest_sha256, "code": "installed", "error": ""}
    assert model.state.status() == {
        "instance": model.state.instance,
        "version": 2,
        "sha256": two.sha256,
        "update": {**note, "pulled": two.bytes},
    }
    assert [file.stat().st_size for file in model.pulled()] == [two.bytes]


def test_what_is_refused_leaves_the_live_model_and_no_file(tmp_path, share, monkeypatch):
    small, whole = released(tmp_path, policy(rows=8), policy(1, rows=400))
    model = Model(share)
    model.push(whole)
    with pytest.raises(releases.Refusal, match=r"a\.weight has shape"):
        model.stage(small)
    with pytest.raises(releases.Refusal, match="is not staged here: send it first"):
        model.update(small, install=True)
    with pytest.raises(releases.Refusal, match="version is '1'"):
        model.update(small, version="1")
    assert model.state.last["code"] == "refused"
    assert model.state.status()["version"] == 2
    monkeypatch.setattr(releases, "check", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.stage(whole)
    assert model.state.last is None
    assert same(model.live, policy(1, rows=400))
    assert len(model.pulled()) == 1


def test_a_half_loaded_model_has_no_version(tmp_path, share):
    one, two, three = released(tmp_path, *(policy(seed, rows=400) for seed in range(3)))
    model = Model(share)
    model.broken = {1, 2}
    with pytest.raises(releases.Refusal, match="could not load it: RuntimeError: no memory"):
        model.push(one)  # nothing was there before it
    assert (model.state.status()["version"], model.state.last["code"]) == (-1, "broken")
    model.broken = {2}
    model.push(one)
    with pytest.raises(releases.Refusal, match="no memory"):
        model.push(two)
    assert (model.state.status()["version"], model.state.last["code"]) == (1, "restored")
    assert same(model.live, policy(0, rows=400))
    model.broken = {1, 2}
    with pytest.raises(releases.Refusal, match="nor the release before again"):
        model.push(two)
    assert model.live == "half"
    assert model.state.status() | {"version": -1, "sha256": ""} == model.state.status()
    model.push(three)
    assert (model.state.status()["version"], len(model.pulled())) == (3, 1)
    assert same(model.live, policy(2, rows=400))


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({"token": "wrong"}, "unreachable", "401"),
        ({"token": None}, "unreachable", "401"),
        ({"manifest_sha256": "0" * 64}, "digest", r"not the one that was announced \(000000"),
        ({"url": "file:///etc"}, "refused", "file:///etc is no http"),
        ({"path": "/etc"}, "refused", "/etc is outside OGRPO_WEIGHTS_ROOT"),
    ],
)
def test_a_pull_needs_the_token_the_announced_manifest_and_a_place_that_may_be_read(
    tmp_path, monkeypatch, share, changed, code, message
):
    monkeypatch.setenv("OGRPO_WEIGHTS_ROOT", str(tmp_path / "elsewhere"))
    (one,) = released(tmp_path, policy())
    ticket = {"token": share.token, "manifest_sha256": one.manifest_sha256}
    source = {"url": f"{share.url}/{one.folder.name}", **ticket, **changed}
    with pytest.raises(releases.Refusal, match=message) as refusal:
        releases.obtain(releases.WorkerState(), **source)
    assert refusal.value.code == code


def test_the_share_gives_nothing_but_releases(tmp_path, share):
    released(tmp_path, policy())
    (tmp_path / "secret").write_text("x")
    (tmp_path / "releases" / "other.txt").write_text("x")
    for path in ("/../secret", "/other.txt", "/v000001/../../secret", "/v000001/", "/"):
        remote = releases.Remote(share.url, share.token)
        with pytest.raises(releases.Refusal, match="404"):
            remote.read(path.lstrip("/"))


def test_an_interface_that_this_machine_does_not_have_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"interface '192\.0\.2\.1' .*set `listen` to an address"):
        WeightShare(tmp_path, host="192.0.2.1")


def entry(begin, end, shape=None, dtype="F32"):
    shape = [(end - begin) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


WHOLE = json.dumps(entry(0, 16)).encode()
LIES = {
    "overlapping": ({"a": entry(0, 12), "b": entry(8, 16)}, "invalid offset for tensor `b`"),
    "a gap": ({"a": entry(0, 4), "b": entry(8, 16)}, "invalid offset for tensor `b`"),
    "fractions": ({"a": entry(0, 16) | {"data_offsets": [0.0, 16.0]}}, "floating point"),
    "no room": ({"a": entry(0, 0, [4]), "b": entry(0, 16)}, "invalid shape, data type, or offset"),
    "huge": ({"a": entry(0, 16, [1 << 40, 1 << 40])}, "overflow computing buffer size"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 16]}}, "missing field `shape`"),
    "no dtype": ({"a": entry(0, 16, dtype="F99")}, "unknown variant `F99`"),
    "twice": (b'{"a": %(a)s, "a": %(a)s}' % {b"a": WHOLE}, "its header has a name twice"),
    "beyond": ({"a": entry(0, 32)}, "not fully covered"),
    "deep": (b"[" * 100_000, "invalid type: sequence"),
    "a long number": (b'{"a": ' + b"9" * 10_000 + b"}", "no readable safetensors file"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused_by_name(tmp_path, lie):
    header, message = LIES[lie]
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = tmp_path / "lie.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 16)
    names = {name: [4] for name in header} if isinstance(header, dict) else {"a": [4]}
    with pytest.raises(releases.Refusal, match=message) as refusal:
        releases.check(file, names, "float32")
    assert refusal.value.code == "garbage"
    assert "lie.safetensors" in str(refusal.value)


@pytest.mark.parametrize("size", ["many", -1])
def test_a_manifest_that_is_none_is_refused(tmp_path, size):
    raw = json.dumps({"sha256": "", "bytes": size}).encode()
    (tmp_path / "manifest.json").write_bytes(raw)
    digest = hashlib.sha256(raw).hexdigest()
    with pytest.raises(releases.Refusal, match=r"manifest\.json is none of a release") as refusal:
        releases.obtain(releases.WorkerState(), path=str(tmp_path), manifest_sha256=digest)
    assert refusal.value.code == "garbage"


def drip(handler):
    """Each byte comes in time, and a file of them would never: a worker would hang for ever."""
    for _ in range(400):
        time.sleep(0.005)
        handler.wfile.write(b" ")


@pytest.mark.parametrize(
    ("status", "send", "message"),
    [
        (200, drip, "did not come in full within"),
        (200, lambda handler: handler.wfile.write(b" " * 399), "IncompleteRead"),
        (503, lambda handler: None, "503"),
    ],
    ids=["drip", "cut", "503"],
)
def test_a_pull_that_does_not_come_whole_is_tried_again(monkeypatch, status, send, message):
    """Of `unreachable` weights the trainer sends the ticket again; see test_schedules."""

    def respond(handler):
        handler.send_response(status)
        handler.send_header("Content-Length", "400")
        handler.end_headers()
        send(handler)

    monkeypatch.setattr(releases, "LIMIT_SECONDS", 0.1)
    with serving(respond) as url:
        remote, state = releases.Remote(url, None), releases.WorkerState()
        with pytest.raises(releases.Refusal, match=message) as manifest:
            remote.read("manifest.json")
        with pytest.raises(releases.Refusal, match=message) as model:
            remote.fetch("model.safetensors", 400, state)
        assert manifest.value.code == model.value.code == "unreachable"
        assert [file.name for file in state.scratch.iterdir()] == ["lock"]


def test_the_extension_shares_no_name_with_a_worker(monkeypatch):
    """vLLM refuses one that does; every public name is its own."""
    monkeypatch.syspath_prepend(Path(releases.__file__).parent)
    extension = import_module("ogrpo_weight_sync").WeightSync
    assert [name for name in dir(extension) if not name.startswith("__")] == ["ogrpo_describe"]


OWNER = """
import time
from ogrpo.rollout.extension.ogrpo_releases import Scratch
scratch = Scratch("ogrpo-test-")
(scratch.folder / "model").write_bytes(b"weights")
print(scratch.folder, flush=True)
time.sleep(600)
"""


def owner():
    return subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)


def test_what_a_killed_process_left_is_deleted_and_nothing_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with owner() as dead, owner() as living:
        left, used = (Path(process.stdout.readline().strip()) for process in (dead, living))
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert (left / "model").is_file()
        mine = releases.Scratch("ogrpo-test-")
        assert not left.exists()
        assert (used / "model").is_file()
        releases.remove_stale("ogrpo-test-")  # not even its own
        assert mine.folder.is_dir()
        living.kill()
