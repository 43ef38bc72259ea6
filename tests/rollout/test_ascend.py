"""The bridge's assumptions on vLLM-Ascend, held to the sources of its releases: nothing runs on an NPU.

Each release's own code of a weight update is run over what `ogrpo-serve --device ascend` sets.
"""

import ast
import hashlib
import json
import os
import tarfile
import tomllib
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from ogrpo.rollout.extension import ogrpo_serve
from tests.rollout.test_serve import ASCEND, built

ROOT = Path(__file__).resolve().parents[2]
INDEX = "https://files.pythonhosted.org/packages/"
RELEASES = {
    "0.23.0.post1": (  # what pip picks
        "ab/7a/32a1b1f13467fb7372588206fa1ffb735f28dcd8504d562f5c7ccdbd90d0",
        "a3b9f4a5dd7aa50c37e03d1f35937c4ae5aeacc49b734cac74d59ce5757738e1",
    ),
    "0.26.0rc1": (  # the last that reads VLLM_ASCEND_ENABLE_NZ
        "c4/c6/4fc1ff901fed6c3227ac1017864c11ed1247a583c5e7a5392d44744aaeec",
        "647533d9ae77ae765c2c4b88eaa8f2cfcde56cc7621e393e3be63bfb7303d6b3",
    ),
    "0.27.1rc1": (  # the first that does not
        "a1/25/ee50a0d4f9ccd1540c86d0efa6da517ca996dfd72e3c900207e47f70b90b",
        "6fa8b357b624df4c8810c445da24082a9147009d8fe1db33eff815c8ab9805f0",
    ),
    "0.30.0rc2": (  # the newest
        "d1/aa/38f9018eaf20ef60786c4fdc9182e9312719257b002b0533ca028f61bf05",
        "05cb51448c0cd174ea338b16ebbfc8e215f44b373ea2a0d65f1314523a01152f",
    ),
}


@pytest.fixture(scope="module", params=RELEASES)
def release(request):
    """A release: its version, and the source of its worker."""
    version = request.param
    place, sha256 = RELEASES[version]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ogrpo" / "sdists"
    file = cache / f"vllm_ascend-{version}.tar.gz"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        try:
            with urllib.request.urlopen(f"{INDEX}{place}/{file.name}", timeout=60) as reply:
                raw = reply.read()
        except OSError as error:
            pytest.skip(f"!!!!! THE INDEX IS OUT OF REACH, {file.name} WAS NOT READ: {error}")
        assert hashlib.sha256(raw).hexdigest() == sha256
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(raw)
        fresh.rename(file)
    with tarfile.open(file) as packed:
        worker = packed.extractfile(f"vllm_ascend-{version}/vllm_ascend/worker/worker.py")
        return version, worker.read().decode()


def additional(made):
    return json.loads(made.arguments[made.arguments.index("--additional-config") + 1])


def worker_of(source, settings, environment, engine):
    """vLLM-Ascend's worker with its own code of a weight update, over our settings and engine."""
    (worker,) = (n for n in ast.parse(source).body if getattr(n, "name", "") == "NPUWorker")
    names = {"_check_weight_transfer_engine", "_check_nz_disabled"}
    names |= {f"{name}_weight_update" for name in ("start", "finish")} | {"update_weights"}
    worker.body = [n for n in worker.body if isinstance(n, ast.FunctionDef) and n.name in names]
    assert {n.name for n in worker.body} == names
    for node in worker.body:
        node.decorator_list, node.returns = [], None
    worker.bases = []
    nz = int(environment.get("VLLM_ASCEND_ENABLE_NZ", 1))
    scope = {
        "torch": SimpleNamespace(
            device=lambda _: nullcontext(), npu=SimpleNamespace(synchronize=lambda: None)
        ),
        "envs_ascend": SimpleNamespace(VLLM_ASCEND_ENABLE_NZ=nz),
        # 0.23 to 0.26 fall back to the variable, later ones to 1.
        "get_ascend_config": lambda: SimpleNamespace(**{"weight_nz_mode": 1, **settings}),
    }
    module = ast.Module([ast.parse("from __future__ import annotations").body[0], worker], [])
    exec(compile(module, "NPUWorker", "exec"), scope)
    made = scope["NPUWorker"]()
    made.weight_transfer_engine, made._weight_update_active, made.device = engine, False, "npu:0"
    model = SimpleNamespace(load_weights=None)
    made.model_runner = SimpleNamespace(model=model, reset_lora_state=lambda: None)
    return made


@pytest.mark.slow
def test_a_weight_update_is_taken_with_what_ogrpo_serve_sets(release):
    version, source = release
    made, updates = built("M", *ASCEND, version=version), []
    engine = SimpleNamespace(  # the calls that `ogrpo_transfer.ReleaseEngine` answers
        parse_update_info=lambda update: update,
        start_weight_update=lambda: None,
        finish_weight_update=lambda: None,
        receive_weights=lambda update, **_: updates.append(update),
        # vLLM's base class parses, and calls the one above.
        update_weights=lambda update, **_: updates.append(update),
    )
    worker = worker_of(source, additional(made), made.environment, engine)
    # vLLM up to 0.26 passes on what the trainer says; the worker's default would be True.
    start = {"is_checkpoint_format": False} if version < "0.27" else {}
    worker.start_weight_update(**start)
    worker.update_weights({"version": 1})
    worker.update_weights({"version": 1, "install": True})
    worker.finish_weight_update()
    assert [update.get("install", False) for update in updates] == [False, True]


def test_the_extra_goes_as_far_as_sources_were_read():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least, newest = (tuple(map(int, v.split(".")[:2])) for v in (min(RELEASES), max(RELEASES)))
    assert newest == ogrpo_serve.ASCEND_UNTIL
    assert least == ogrpo_serve.OLDEST
    needs = [f"vllm-ascend>=0.{least[1]},<0.{newest[1] + 1}"]
    assert project["optional-dependencies"]["serve-ascend"] == needs


def test_an_operators_own_additional_config_is_kept_beside_ours():
    for more in (["--additional-config", '{"a": 1}'], ['--additional-config={"a": 1}']):
        made = built("M", *ASCEND, "--", *more, "--block-size", "32", version="0.30.0")
        assert additional(made) == {"a": 1, "weight_nz_mode": 0}
        assert made.arguments[-2:] == ["--block-size", "32"]
        assert sum(text.startswith("--additional-config") for text in made.arguments) == 1
