"""Adapters on a server's side: what is checked before vLLM is told of them."""

import numpy as np
import pytest

from ogrpo.rollout import weights as files
from ogrpo.rollout.extension import ogrpo_adapters
from ogrpo.rollout.extension import ogrpo_releases as releases
from ogrpo.rollout.weights import Store
from ogrpo.serving.bridge import named_adapters
from tests.rollout.vllm import world

CONFIG = world.decoder()
UP = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"


@pytest.fixture(scope="module")
def named():
    return named_adapters(world.adapted(CONFIG, 0, rank=4, alpha=6.0))


@pytest.fixture
def shelf():
    return make_shelf()


def make_shelf(most_rank=8):
    shapes = {name: list(x.shape) for name, x in world.base_tensors(CONFIG).items()}
    place = releases.Workplace()
    return ogrpo_adapters.Adapters(
        place, shapes_fn=lambda: shapes, dtype="float32", most_rank=most_rank
    )


def ticket(release):
    return {"path": str(release.folder), "manifest_sha256": release.manifest_sha256}


def staged(shelf, store, named, version=1, *, name="policy-v1", **about):
    release = store.write(named.tensors, version, about={"adapter": {**named.about, **about}})
    return shelf.stage(name, **ticket(release))


def test_what_is_staged_outlives_the_trainers_copy(shelf, named, tmp_path):
    """vLLM reads the folder again when it has evicted the adapters, and dies without it."""
    store = Store(tmp_path, letter="a")
    first = staged(shelf, store, named)
    for version in range(2, 5):
        staged(shelf, store, named, version, name=f"policy-v{version}")
    assert not (tmp_path / "a000001").exists()
    kept = ogrpo_adapters.Path(first["path"])
    assert files.read(kept / ogrpo_adapters.TENSORS)
    staged(shelf, store, named, 5, name="policy-v5")
    assert not kept.exists()  # and yet nothing heaps up
    assert len([*kept.parent.iterdir()]) == ogrpo_adapters.KEPT


def without(tensors, part):
    return {name: x for name, x in tensors.items() if part not in name}


GARBAGE = {
    "a half": (lambda t: without(t, UP), "lacks 1 tensors: " + UP),
    "a layer's": (lambda t: without(t, "layers.1.mlp.up"), "lacks 2 tensors"),
    "extra": (
        lambda t: {**t, UP.replace("layers.1", "layers.9"): t[UP]},
        "has unknown 1 tensors: base_model.model.model.layers.9",
    ),
    "narrow": (lambda t: {**t, UP: t[UP][:, :-3].copy()}, "up_proj.lora_A.weight has shape"),
    "of a smaller rank": (lambda t: {**t, UP: t[UP][:2].copy()}, "lora_A.weight has shape"),
    "nan": (lambda t: {**t, UP: np.full_like(t[UP], np.nan)}, "lora_A.weight has NaN"),
    "half precision": (
        lambda t: {name: x.astype(np.float16) for name, x in t.items()},
        "is F16, the model is served as float32",
    ),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_what_vllm_would_take_without_a_word_is_refused(shelf, named, tmp_path, kind, monkeypatch):
    spoil, message = GARBAGE[kind]
    monkeypatch.setattr(files, "check_finite", lambda _: None)  # the trainer's own check
    store = Store(tmp_path, letter="a")
    answer = staged(shelf, store, named._replace(tensors=spoil(named.tensors)))
    assert not answer["ok"]
    assert answer["code"] == "garbage"
    assert message in answer["error"]
    assert [*(shelf._place.scratch / "adapters").iterdir()] == []


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"rank": 16}, "adapters of rank 16, and the server takes 8 at most: start it with a"),
        ({"rank": 0}, "adapters of rank 0"),
        ({"rank": True}, "adapters of rank True"),
        ({"alpha": float("nan")}, "adapters of alpha nan"),
        ({"alpha": "32"}, "adapters of alpha '32'"),
        ({"targets": ["q_proj", "embed"]}, "the model has no projection 'embed'"),
        ({"targets": "q_proj"}, "adapters beside 'q_proj'"),
        ({"targets": ["q_proj"]}, "has unknown 24 tensors"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(shelf, named, tmp_path, about, message):
    answer = staged(shelf, Store(tmp_path, letter="a"), named, **about)
    assert not answer["ok"]
    assert message in answer["error"]
