import pytest

from tests.rollout.vllm import contract, world


@pytest.mark.parametrize("native", [True, False])
def test_log_probs_are_the_trainers_at_every_temperature(farm, native):
    config = world.decoder()
    params = world.make_params(config, 0)
    with contract.connect([farm.start(native=native).url], config) as engine:
        assert [found.native for found in engine.capabilities] == [native]
        engine.publish(params, 0)
        contract.check_log_probs(engine, config, params, (1.0, 0.7))
        contract.check_greedy(engine, config, params)


@pytest.mark.parametrize(("tied", "transport"), [(True, "url"), (False, "folder")])
def test_pushes_are_proven_one_after_the_other(farm, tied, transport):
    config = world.decoder(tied=tied)
    with contract.connect([farm.start(tied=tied).url], config, transport=transport) as engine:
        contract.check_pushes(engine, config)
        sent = engine.metrics()["sync/bytes_sent"]
        assert (sent > 0) == (transport == "url")


def test_completions_are_distributed_as_the_policy(farm):
    config = world.decoder()
    params = world.make_params(config, 0)
    with contract.connect([farm.start().url], config) as engine:
        engine.publish(params, 0)
        contract.check_distribution(engine, config, params)


@pytest.mark.parametrize("kind", contract.GARBAGE)
def test_garbage_is_refused_and_the_live_model_stays(farm, kind, monkeypatch):
    config = world.decoder()
    params = world.make_params(config, 0)
    with contract.connect([farm.start().url], config) as engine:
        contract.check_garbage(engine, config, params, kind, monkeypatch)


def test_a_server_with_another_tokenizer_is_refused(farm):
    contract.check_other_tokenizers(farm.start().url, world.decoder())


def test_a_diverged_policy_is_not_sent(farm):
    config = world.decoder()
    with contract.connect([farm.start().url], config) as engine:
        contract.check_trainer_refuses_nan(engine, config, world.make_params(config, 0))
