import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.vllm import Refused
from tests.rollout.vllm import contract, world

CONFIG = world.decoder()


@pytest.fixture
def engine(farm):
    with contract.connect([farm.start().url], CONFIG) as engine:
        yield engine


@pytest.mark.parametrize("native", [True, False])
def test_log_probs_are_the_trainers_at_every_temperature(farm, native):
    with contract.connect([farm.start(native=native).url], CONFIG) as engine:
        assert [capability.native for capability in engine.capabilities] == [native]
        contract.check_log_probs(engine, CONFIG, (1.0, 0.7))
        with pytest.raises(Refused, match="raise its --max-model-len"):
            engine.generate(world.PROMPTS, Sampling(1.0, world.POSITIONS, 4), 1)


@pytest.mark.parametrize(("tied", "transport"), [(True, "url"), (False, "folder")])
def test_pushes_are_proven_one_after_the_other(farm, tied, transport):
    config = world.decoder(tied=tied)
    with contract.connect([farm.start(tied=tied).url], config, transport=transport) as engine:
        contract.check_pushes(engine, config)
        sent = engine.metrics()["sync/bytes_sent"]
        assert (sent > 0) == (transport == "url")


def test_completions_are_distributed_as_the_policy(engine):
    contract.check_distribution(engine, CONFIG)


@pytest.mark.parametrize("kind", contract.GARBAGE)
def test_garbage_is_refused_and_the_live_model_stays(engine, kind, monkeypatch):
    contract.check_garbage(engine, CONFIG, contract.GARBAGE[kind], monkeypatch)
