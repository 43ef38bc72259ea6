"""In-repo servers over tiny policies, which can be made to lie."""

import dataclasses
import threading
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest

from ogrpo.rollout.endpoint import Endpoint, Service
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
        raw = [
            dataclasses.replace(
                c,
                log_probs=row[start:],
                top_log_probs=None if c.top_log_probs is None else c.top_log_probs * c.temperature,
            )
            for c, row in drawn
        ]
        return dataclasses.replace(group, completions=tuple(raw))


class Farm:
    """Starts protocol servers and ends them."""

    def __init__(self, folders, stack):
        self._folders, self._stack = folders, stack

    def start(self, *, tied=True, port=0, raw_log_probs=False, kind=None, **options) -> Endpoint:
        model, params = self._model(tied)
        kind = kind or (RawService if raw_log_probs else Service)
        endpoint = Endpoint(kind(model, params), port=port, **options)
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


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return world.save_both(tmp_path_factory.mktemp)


@pytest.fixture
def farm(folders):
    with ExitStack() as stack:
        yield Farm(folders, stack)
