"""In-repo servers over tiny policies, which can be killed, restarted and made to lie."""

import dataclasses
import socket
import threading
from contextlib import ExitStack, suppress
from functools import partial

import numpy as np
import pytest

from ogrpo.rollout.endpoint import UNPUSHED, Endpoint, Service
from ogrpo.rollout.extension import ogrpo_releases as releases
from ogrpo.serving.bridge import embedded_model
from tests.rollout.vllm import world


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Keeps them: all modules of this folder run the same few, of a tiny model."""


class RawService(Service):
    """Reports log softmax(z) whatever the temperature, as vLLM does by default."""

    def _sample(self, prompts, options):
        return [self._raw(group) for group in super()._sample(prompts, options)]

    def _raw(self, group):
        rows = [np.concatenate([group.prompt_ids, c.token_ids]) for c in group.completions]
        start = len(group.prompt_ids) - 1
        scores = self.model.score_fn(self.params, rows)
        drawn = zip(group.completions, scores, strict=True)
        raw = [dataclasses.replace(c, log_probs=row[start:]) for c, row in drawn]
        return dataclasses.replace(group, completions=tuple(raw))

    def _top(self, prompt, body):
        return super()._top(prompt, {**body, "temperature": 1.0})


class Farm:
    """Starts protocol servers and ends them."""

    def __init__(self, folders, stack):
        self._folders, self._stack = folders, stack

    def start(
        self, *, tied=True, port=0, raw_log_probs=False, lora_rank=0, kind=None, **options
    ) -> Endpoint:
        model, params = self._model(tied)
        kind = kind or (RawService if raw_log_probs else Service)
        endpoint = Endpoint(kind(model, params, lora_rank=lora_rank), port=port, **options)
        endpoint.connections = []
        accept = endpoint._server.process_request

        def remember(request, address):
            endpoint.connections.append(request)
            accept(request, address)

        endpoint._server.process_request = remember
        thread = threading.Thread(target=endpoint.serve_forever, daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(endpoint.close)
        return endpoint

    def _model(self, tied):
        return embedded_model(
            str(self._folders[tied]),
            dtype="float32",
            eos_id=world.EOS,
            decode_fn=partial(world.TOKENIZER.decode, skip_special_tokens=False),
            batch_size=4,
        )

    def kill(self, endpoint):
        """What a client sees when the process dies: the port is closed, connections are cut."""
        endpoint.close()
        for connection in endpoint.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def restart(self, endpoint) -> Endpoint:
        """Another process on the same port, with the weights it was started from."""
        self.kill(endpoint)
        port = int(endpoint.url.rsplit(":", 1)[1])
        return self.start(port=port, lora_rank=endpoint.service.lora_rank)

    def reset(self, endpoint):
        """A restart so quick that no connection fails."""
        service = endpoint.service
        fresh, params = self._model(True)
        fresh.engine.publish(params, UNPUSHED)
        service.place, service.model, service.params = releases.Workplace(), fresh, params
        service.begin()


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    made = {}
    for tied in (True, False):
        config = world.decoder(tied=tied)
        params = world.make_params(config, 100)
        made[tied] = world.save(tmp_path_factory.mktemp("policy"), config, params)
    return made


@pytest.fixture
def farm(folders):
    with ExitStack() as stack:
        yield Farm(folders, stack)
