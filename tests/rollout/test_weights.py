"""Releases on the disk, what changed between them, and the share they are pulled from."""

import hashlib
import json

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


def test_a_worker_reads_only_below_its_root(tmp_path, monkeypatch):
    (one,) = released(tmp_path, policy())
    monkeypatch.setenv("OGRPO_WEIGHTS_ROOT", str(tmp_path / "elsewhere"))
    with pytest.raises(releases.Refusal, match="outside OGRPO_WEIGHTS_ROOT"):
        releases.obtain(
            releases.Workplace(), path=str(one.folder), manifest_sha256=one.manifest_sha256
        )
