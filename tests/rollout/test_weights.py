"""Releases on the disk, what changed between them, and the share they are pulled from."""

import hashlib
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from ogrpo.rollout.extension import ogrpo_releases as releases
from ogrpo.rollout.weights import delta as deltas
from ogrpo.rollout.weights import tensors as files
from ogrpo.rollout.weights.share import WeightShare
from ogrpo.rollout.weights.store import Store

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
def test_a_file_is_read_back_by_safetensors_and_by_us(tmp_path, dtype):
    tensors = policy(dtype=DTYPES[dtype])
    sha256, size = files.write(tmp_path / "x", tensors)
    raw = (tmp_path / "x").read_bytes()
    assert (hashlib.sha256(raw).hexdigest(), len(raw)) == (sha256, size)
    assert same(files.read(tmp_path / "x"), tensors)
    with safe_open(tmp_path / "x", "np") as opened:
        assert same({name: opened.get_tensor(name) for name in opened.keys()}, tensors)  # noqa: SIM118


def test_what_safetensors_writes_is_read(tmp_path):
    tensors = policy()
    save_file(tensors, tmp_path / "x", metadata={"format": "pt"})
    assert same(files.read(tmp_path / "x"), tensors)


@pytest.mark.parametrize(("cut", "message"), [(1, "bytes, should have"), (400, "no readable")])
def test_a_file_that_is_cut_off_is_an_error(tmp_path, cut, message):
    _, size = files.write(tmp_path / "x", policy())
    with (tmp_path / "x").open("r+b") as opened:
        opened.truncate(size - cut)
    with pytest.raises(ValueError, match=message):
        files.read(tmp_path / "x")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_element_that_is_not_finite_is_named(dtype, bad):
    tensors = policy(dtype=DTYPES[dtype])
    files.check_finite(tensors)
    tensors["a.weight"][7, 5] = bad
    with pytest.raises(ValueError, match=r"a\.weight has NaN or infinite elements"):
        files.check_finite(tensors)


def test_the_largest_finite_numbers_are_finite():
    for dtype in DTYPES.values():
        files.check_finite({"x": np.array([ml_dtypes.finfo(dtype).max, 0, -0.0]).astype(dtype)})


@given(
    st.lists(st.tuples(st.integers(0, 47), st.floats(width=32)), max_size=8),
    st.sampled_from(["F32", "BF16"]),
)
def test_changes_put_into_the_old_file_give_the_new_one(tmp_path_factory, edits, dtype):
    folder = tmp_path_factory.mktemp("delta")
    old = policy(dtype=DTYPES[dtype])
    new = {name: array.copy() for name, array in old.items()}
    for place, value in edits:
        new["a.weight"].reshape(-1)[place] = value
    found = deltas.changes(old, new)
    files.write(folder / "old", old)
    sha256, _ = files.write(folder / "new", new)
    files.write(folder / "delta", found)
    releases._apply(folder / "delta", folder / "old")
    assert hashlib.sha256((folder / "old").read_bytes()).hexdigest() == sha256
    changed = sum((a.tobytes() != b.tobytes()) for a, b in pairs(old, new))
    assert deltas.changed_share(found, new) == pytest.approx(changed / 54)


def pairs(old, new):
    for name in old:
        yield from zip(old[name].reshape(-1), new[name].reshape(-1), strict=True)


def test_another_layout_has_no_delta():
    old = policy()
    assert deltas.changes(old, {**old, "e": old["b.bias"]}) is None
    assert deltas.changes(old, {**old, "b.bias": old["b.bias"].astype(np.float16)}) is None


def test_a_release_appears_whole_and_old_ones_go(tmp_path):
    store = Store(tmp_path, keep=2, delta=False)
    made = [store.write(policy(n), n) for n in range(4)]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["v000002", "v000003"]
    manifest = json.loads((made[3].folder / "manifest.json").read_text())
    assert manifest["sha256"] == made[3].sha256
    assert manifest["tensors"]["a.weight"] == {"dtype": "F32", "shape": [8, 6]}
    again = store.write(policy(9), 3)
    assert again.sha256 != made[3].sha256
    assert same(files.read(again.folder / "model.safetensors"), policy(9))


def test_a_clock_that_jumps_back_takes_no_newer_release_for_an_older_one(tmp_path):
    """The one that servers are about to read would be deleted as soon as it is written."""
    Store(tmp_path, delta=False).write(policy(0), 7)  # of a process before this one
    store, later = Store(tmp_path, delta=False), time.time() + 86_400
    for version in range(3):
        os.utime(store.write(policy(version), version).folder, (later, later))
    again = store.write(policy(9), 1)
    assert (again.folder / "model.safetensors").is_file()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["v000001", "v000002"]


def test_a_failed_write_leaves_no_release(tmp_path):
    store = Store(tmp_path)
    bad = policy()
    bad["b.bias"][0] = np.nan
    with pytest.raises(ValueError, match=r"b\.bias"):
        store.write(bad, 1)
    assert not list(tmp_path.iterdir())


def released(tmp_path, *tensors):
    store = Store(tmp_path / "releases", keep=8)
    return [store.write(one, version) for version, one in enumerate(tensors, start=1)]


def pull(place, share, release, **changed):
    source = {
        "url": f"{share.url}/{release.folder.name}",
        "token": share.token,
        "manifest_sha256": release.manifest_sha256,
    }
    file, manifest, moved = releases.obtain(place, **{**source, **changed})
    place.adopt(file, release.version, manifest["sha256"])
    return file, moved


@pytest.fixture
def share(tmp_path):
    (tmp_path / "releases").mkdir()
    made = WeightShare(tmp_path / "releases")
    yield made
    made.close()


def test_a_pull_takes_the_delta_where_it_has_the_base(tmp_path, share):
    first = policy(rows=400)
    second = {**first, "b.bias": first["b.bias"] + 1}
    one, two = released(tmp_path, first, second)
    assert two.delta_bytes is not None
    place = releases.Workplace()
    assert pull(place, share, one)[1]["how"] == "full"
    file, moved = pull(place, share, two)
    assert moved == {"how": "delta", "bytes": two.delta_bytes}
    assert same(files.read(file), second)
    # Without the base, and with another one, the whole file comes.
    for stranger in (releases.Workplace(), place):
        if stranger is place:
            stranger.sha256 = "0" * 64
        file, moved = pull(stranger, share, two)
        assert moved["how"] == "full"
        assert same(files.read(file), second)


def test_a_base_that_was_tampered_with_is_noticed_and_the_whole_file_fetched(tmp_path, share):
    first = policy(rows=400)
    one, two = released(tmp_path, first, {**first, "b.bias": first["b.bias"] + 1})
    place = releases.Workplace()
    file, _ = pull(place, share, one)
    with file.open("r+b") as opened:
        opened.seek(-3, 2)
        opened.write(b"\x01")
    file, moved = pull(place, share, two)
    assert moved["how"] == "full"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == two.sha256


def test_most_changed_means_no_delta(tmp_path):
    _, two = released(tmp_path, policy(0), policy(1))
    assert two.delta_bytes is None
    assert two.changed_share == 1.0


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"token": "wrong"}, "unreachable"),
        ({"token": None}, "unreachable"),
        ({"manifest_sha256": "0" * 64}, "digest"),
        ({"url": "file:///etc"}, "refused"),
    ],
)
def test_a_pull_needs_the_token_and_the_announced_manifest(tmp_path, share, changed, code):
    (one,) = released(tmp_path, policy())
    with pytest.raises(releases.Refusal) as refusal:
        pull(releases.Workplace(), share, one, **changed)
    assert refusal.value.code == code


def test_the_share_gives_nothing_but_releases(tmp_path, share):
    released(tmp_path, policy())
    (tmp_path / "secret").write_text("x")
    (tmp_path / "releases" / "other.txt").write_text("x")
    for path in ("/../secret", "/other.txt", "/v000001/../../secret", "/v000001/", "/"):
        remote = releases.Remote(share.url, share.token)
        with pytest.raises(releases.Refusal, match="404"):
            remote.read(path.lstrip("/"))


def raw_file(path, header, data=b"\0" * 16):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(begin, end, shape=None, dtype="F32", **more):
    shape = [(end - begin) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


LIES = {
    "overlapping": ({"a": entry(0, 12), "b": entry(8, 16)}, "b overlaps the tensor before it"),
    "the same": ({"a": entry(0, 16), "b": entry(0, 16)}, "b overlaps the tensor before it"),
    "a gap": ({"a": entry(0, 4), "b": entry(8, 16)}, "b leaves a gap before it"),
    "a gap first": ({"a": entry(8, 16)}, "a leaves a gap before it"),
    "reversed": ({"a": entry(16, 0, [4])}, r"a has the reversed data_offsets \[16, 0\]"),
    "negative": ({"a": entry(-8, 8)}, r"a has the data_offsets \[-8, 8\]"),
    "empty": ({"a": entry(0, 16) | {"data_offsets": []}}, r"a has the data_offsets \[\]"),
    "one": ({"a": entry(0, 16) | {"data_offsets": [16]}}, r"a has the data_offsets \[16\]"),
    "texts": ({"a": entry(0, 16) | {"data_offsets": "ab"}}, "a has the data_offsets 'ab'"),
    "fractions": ({"a": entry(0, 16) | {"data_offsets": [0.0, 16.0]}}, "a has the data_offsets"),
    "no room": ({"a": entry(0, 0, [4]), "b": entry(0, 16)}, "a has 0 bytes, and F32 .4. takes 16"),
    "too much": ({"a": entry(0, 16, [3])}, "a has 16 bytes, and F32 .3. takes 12"),
    "a negative shape": ({"a": entry(0, 16, [-2, -2])}, r"a has the shape \[-2, -2\]"),
    "huge": ({"a": entry(0, 16, [1 << 40, 1 << 40])}, "a has 16 bytes, and F32"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 16]}}, "a has the shape None"),
    "no object": ({"a": [1]}, "a has the unknown dtype None"),
    "no dtype": ({"a": entry(0, 16, dtype="F99")}, "a has the unknown dtype 'F99'"),
    "twice": (b'{"a": {"dtype": "F32"}, "a": {"dtype": "F32"}}', "its header has a name twice"),
    "beyond": ({"a": entry(0, 32)}, "bytes, should have"),
    "short of": ({"a": entry(0, 8)}, "bytes, should have"),
    "deep": (b"[" * 100_000, "nested too deeply|no JSON object"),
    "a list": (b"[]", "no JSON object"),
    "a long number": (b'{"a": ' + b"9" * 10_000 + b"}", "no readable safetensors file"),
    "no text": (b'{"\xff": 1}', "no readable safetensors file"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused_by_name_on_both_sides(tmp_path, lie):
    header, message = LIES[lie]
    file = raw_file(tmp_path / "lie.safetensors", header)
    with pytest.raises(ValueError, match=message) as caught:
        files.read(file)
    assert str(file) in str(caught.value)
    names = {name: [4] for name in header} if isinstance(header, dict) else {"a": [4]}
    with pytest.raises(releases.Refusal, match=message) as refusal:
        releases.check(file, names, "float32")
    assert refusal.value.code == "garbage"
    assert "lie.safetensors" in str(refusal.value)


@pytest.mark.parametrize("size", [0, 1, 1 << 62, (1 << 64) - 1])
def test_a_header_of_a_size_that_lies_costs_nothing(tmp_path, size):
    (tmp_path / "x").write_bytes(size.to_bytes(8, "little") + b"{}")
    with pytest.raises(releases.Refusal, match=rf"its header has {size} bytes, the file 10"):
        releases.header(tmp_path / "x")


def test_a_file_of_a_header_alone_is_read(tmp_path):
    files.write(tmp_path / "x", {"a": np.zeros((0, 3), np.float32)})
    assert files.read(tmp_path / "x")["a"].shape == (0, 3)
    with pytest.raises(ValueError, match=r"x: a is F64; supported"):
        files.read(raw_file(tmp_path / "x", {"a": entry(0, 16, [2], "F64")}))


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: [manifest],
        lambda manifest: {**manifest, "bytes": "many"},
        lambda manifest: {**manifest, "bytes": -1},
        lambda manifest: {**manifest, "sha256": None},
        lambda manifest: {**manifest, "delta": [1]},
        lambda manifest: {**manifest, "delta": {"bytes": 1, "sha256": "x"}},
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path, change):
    (one,) = released(tmp_path, policy())
    raw = json.dumps(change(json.loads((one.folder / "manifest.json").read_text()))).encode()
    (one.folder / "manifest.json").write_bytes(raw)
    with pytest.raises(releases.Refusal, match=r"manifest\.json is none of a release") as refusal:
        releases.obtain(
            releases.Workplace(),
            path=str(one.folder),
            manifest_sha256=hashlib.sha256(raw).hexdigest(),
        )
    assert refusal.value.code == "garbage"


def test_a_pull_takes_no_more_than_was_announced(tmp_path, share):
    (one,) = released(tmp_path, policy())
    with (one.folder / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 40)  # a hole
    place = releases.Workplace()
    with pytest.raises(releases.Refusal, match="sha256"):
        pull(place, share, one)
    assert [x.name for x in place.scratch.iterdir()] == ["lock"]
    assert share.bytes_sent < 1 << 30


def test_a_token_does_not_follow_a_redirection(tmp_path):
    seen = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers["Authorization"])
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{server.server_port}/other")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        remote = releases.Remote(f"http://127.0.0.1:{server.server_port}", "token")
        with pytest.raises(releases.Refusal, match="302"):
            remote.read("manifest.json")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert seen == ["Bearer token"]


def test_a_worker_reads_only_below_its_root(tmp_path, monkeypatch):
    (one,) = released(tmp_path, policy())
    monkeypatch.setenv("OGRPO_WEIGHTS_ROOT", str(tmp_path / "elsewhere"))
    with pytest.raises(releases.Refusal, match="outside OGRPO_WEIGHTS_ROOT"):
        releases.obtain(
            releases.Workplace(), path=str(one.folder), manifest_sha256=one.manifest_sha256
        )
