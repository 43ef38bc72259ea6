"""The worker extension's choices that no server here can show; pushes to vLLM are in tests/server."""

import sys
from pathlib import Path

import pytest

from ogrpo.rollout import extension


@pytest.fixture
def weight_sync(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(extension.__file__).parent))
    import ogrpo_weight_sync

    yield ogrpo_weight_sync
    for name in ("ogrpo_weight_sync", "ogrpo_adapters", "ogrpo_releases"):
        sys.modules.pop(name)


def test_vllms_reload_is_used_wherever_it_takes_tensors(weight_sync):
    def since_0_18(weights_iterator=None, weights_path=None, is_checkpoint_format=True): ...

    def second_runner_of_0_23(*args, **kwargs): ...

    def older(): ...

    assert weight_sync.takes_an_iterator(since_0_18)
    assert weight_sync.takes_an_iterator(second_runner_of_0_23)
    assert not weight_sync.takes_an_iterator(older)
    assert not weight_sync.takes_an_iterator(None)


def test_the_extension_shares_no_name_with_a_worker(weight_sync):
    """vLLM refuses one that does; every public name is its own."""
    names = [name for name in dir(weight_sync.WeightSync) if not name.startswith("__")]
    assert sorted(names) == ["ogrpo_describe", "ogrpo_load", "ogrpo_stage_adapter"]
