"""The start of a run whose servers come and go."""

import io
import threading
from dataclasses import replace
from functools import partial

import pytest
from rich.console import Console

from ogrpo.config.train import Rollout, TrainConfig
from ogrpo.report.run_dir import RunDir
from ogrpo.rollout.endpoint import Endpoint, Service
from ogrpo.rollout.vllm import Unavailable
from ogrpo.serving.bridge import embedded_model
from ogrpo.setup.servers import connect
from tests.rollout.vllm import world


class Dying(Service):
    """A server that loses so many of its first requests for samples, as when it is killed."""

    deaths = 0

    def complete(self, body):
        if self.deaths:
            self.deaths -= 1
            raise ConnectionResetError("killed")
        return super().complete(body)


@pytest.fixture
def server(tmp_path):
    folder = world.save(tmp_path / "served", world.decoder(), world.make_params(world.decoder(), 0))
    model, params = embedded_model(
        str(folder),
        dtype="float32",
        eos_id=world.EOS,
        decode_fn=partial(world.TOKENIZER.decode, skip_special_tokens=False),
        batch_size=4,
    )
    endpoint = Endpoint(Dying(model, params))
    thread = threading.Thread(target=endpoint.serve_forever, daemon=True)
    thread.start()
    yield endpoint
    endpoint.close()
    thread.join()


def connected(server, tmp_path, seconds):
    """The engine, and what was said until it was there."""
    rollout = Rollout(url=(server.url,), wait=seconds, max_tokens=4)
    config = TrainConfig(rollout=rollout)
    config = replace(config, data=replace(config.data, prompt_length=4))
    console = Console(file=io.StringIO(), width=200)
    run = RunDir(tmp_path / "run")
    config = replace(config, model=replace(config.model, path=tmp_path / "served"))
    engine = connect(config, run, world.decoder(), {}, world.TOKENIZER, console)
    engine.close()
    return console.file.getvalue()


def test_a_server_that_dies_while_it_is_asked_what_it_can_is_asked_again(server, tmp_path, caplog):
    server.service.deaths = 1
    said = connected(server, tmp_path, seconds=60)
    assert f"{server.url} is given a rest" in caplog.text
    assert "log-probs" in said  # the table of what it can do
    assert server.service.deaths == 0


def test_a_server_that_keeps_dying_ends_the_wait(server, tmp_path):
    server.service.deaths = 10**6
    with pytest.raises(Unavailable, match=server.url):
        connected(server, tmp_path, seconds=0)
