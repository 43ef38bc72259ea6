"""One update of ogrpo, as the trainer composes it on one device; run by `update.py`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from update_cases import ADAM, ALPHA, EPSILON, MAX_GRAD_NORM, TARGETS, draw_adapter, draw_weight
from worker import Clock, Job

from ogrpo.batch import Batch, tokens_only
from ogrpo.core.algorithms import ALGORITHMS
from ogrpo.kernels import attention
from ogrpo.kernels.log_probs import KERNELS, choose
from ogrpo.learner.memory import give_back_after_compiling
from ogrpo.learner.state import adam, hypers, init_state
from ogrpo.learner.update import UpdateSpec, make_update
from ogrpo.policy import DecoderConfig, Params, load_pretrained, save_pretrained
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.lora import SplitParams, split
from ogrpo.setup.devices import REMAT, make_policy_fn


def make_decoder(job: Job) -> DecoderConfig:
    shape = job.shape
    return DecoderConfig(
        architecture="Qwen2ForCausalLM",
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.intermediate,
        num_layers=shape.layers,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rope_theta=1_000_000.0,
        rms_norm_eps=1e-6,
        tie_embeddings=True,
        max_positions=shape.prompt + shape.completion,
    )


def make_spec(decoder: DecoderConfig, settings: Any) -> UpdateSpec:
    policy_fn = make_policy_fn(
        decoder,
        keep_fn=REMAT[settings.remat],
        log_probs_fn=KERNELS[choose(settings.kernels, decoder.vocab_size)],
        attention_fn=attention.kernel(settings.attention),
    )
    algorithm = ALGORITHMS["off_policy_grpo"]
    return UpdateSpec(policy_fn=policy_fn, algorithm=algorithm, reads=frozenset())


def measure(job: Job) -> None:
    give_back_after_compiling()
    decoder = make_decoder(job)
    weights = job.fields.get("weights")
    params = load_pretrained(weights, jnp.float32)[1] if weights else random_params(decoder)
    rate = ADAM["learning_rate"]
    betas = {name: value for name, value in ADAM.items() if name != "learning_rate"}
    optimizer = adam(**betas, weight_decay=0.0, max_grad_norm=MAX_GRAD_NORM)
    rank = job.settings.lora
    update = make_update(optimizer, make_spec(decoder, job.settings))
    knobs = hypers(rate, 1.0, {"eps_low": EPSILON, "eps_high": EPSILON, "beta": 0.0})
    trained, frozen = adapted(params, rank) if rank else (params, ())
    state, batch = init_state(trained, optimizer, frozen=frozen), make_batch(job)
    del params, trained
    clock, more = Clock(job, "ogrpo", "jax", "jaxlib", "flax", "optax", "numpy"), True
    while more:
        state, metrics = jax.block_until_ready(update(state, batch, knobs))
        more = clock.tick(metrics["loss"], metrics["grad_norm"])


def adapted(params: Params, rank: int) -> SplitParams:
    """Adapters alone trained, with the A of all systems."""
    adapters = split(params, jax.random.key(0), rank=rank, alpha=ALPHA, targets=TARGETS)

    def draw(path, leaf: jax.Array) -> jax.Array:
        *_, target, _, side = (key.key for key in path)
        if side == "b":
            return leaf
        layers, *shape = leaf.shape
        return jnp.asarray(np.stack([draw_adapter(target, n, shape) for n in range(layers)]))

    return adapters._replace(trained=jax.tree_util.tree_map_with_path(draw, adapters.trained))


def random_params(decoder: DecoderConfig) -> Params:
    rng = np.random.default_rng(0)

    def draw(path, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.asarray(draw_weight(rng, jax.tree_util.keystr(path), leaf.shape))

    return jax.tree_util.tree_map_with_path(draw, param_shapes(decoder))


def make_batch(job: Job) -> Batch:
    arrays = job.batch()
    tokens = tokens_only(
        prompt_ids=arrays["prompt_ids"],
        prompt_mask=np.ones_like(arrays["prompt_ids"], bool),
        completion_ids=arrays["completion_ids"],
        completion_mask=np.ones_like(arrays["completion_ids"], bool),
    )
    batch = tokens._replace(
        behavior_log_probs=arrays["behavior_log_probs"], rewards=arrays["rewards"]
    )
    return jax.tree.map(jnp.asarray, batch)


if __name__ == "__main__":
    job = Job()
    if "save" in job.fields:  # the weights that all systems are checked with
        decoder = make_decoder(job)
        save_pretrained(job.fields["save"], decoder, random_params(decoder))
        job.answer({})
    else:
        measure(job)
