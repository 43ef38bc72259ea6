"""In-repo servers over tiny policies."""

from contextlib import ExitStack

import pytest

from ogrpo.rollout.endpoint import Endpoint, Service
from ogrpo.serving.bridge import embedded_model
from tests.rollout.vllm import world
from tests.rollout.vllm.stub import running


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Keeps them: all modules of this folder run the same few, of a tiny model."""


class Farm:
    """Starts protocol servers and ends them."""

    def __init__(self, folders, stack):
        self._folders, self._stack = folders, stack

    def start(self, *, tied=True, **options) -> Endpoint:
        model, params = embedded_model(
            str(self._folders[tied]),
            dtype="float32",
            eos_id=world.EOS,
            batch_size=4,
        )
        endpoint = Endpoint(Service(model, params), **options)
        self._stack.enter_context(running(endpoint))
        return endpoint


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return world.save_both(tmp_path_factory.mktemp)


@pytest.fixture
def farm(folders):
    with ExitStack() as stack:
        yield Farm(folders, stack)
