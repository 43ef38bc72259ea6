"""One update of Tunix: its model, its GRPO loss, its trainer's jitted step; run by `update.py`.

The step is called as `PeftTrainer.train` calls it, without that loop's progress bar, logging and
checkpoints.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.models.qwen2.model import ModelConfig, Qwen2, RematConfig
from tunix.models.qwen2.params import create_model_from_safe_tensors
from tunix.rl import function_registry
from tunix.rl.grpo.grpo_learner import GRPOConfig, TrainExample
from tunix.rl.trainer import Trainer
from tunix.sft.peft_trainer import TrainingConfig
from update_cases import ADAM, EPSILON, MAX_GRAD_NORM, draw_weight
from worker import Clock, Job

PAD, EOS = 0, 1


def make_model(job: Job) -> Qwen2:
    shape = job.shape
    config = ModelConfig(
        num_layers=shape.layers,
        vocab_size=shape.vocabulary,
        embed_dim=shape.width,
        hidden_dim=shape.intermediate,
        num_heads=shape.heads,
        head_dim=shape.head_dim,
        num_kv_heads=shape.kv_heads,
        rope_theta=1_000_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
        remat_config=RematConfig[job.settings.remat.upper()],
    )
    if weights := job.fields.get("weights"):
        return create_model_from_safe_tensors(weights, config, dtype=jnp.float32)
    return random_model(config)


def random_model(config: ModelConfig) -> Qwen2:
    """Weights as its peers start with; its own start has MLPs of zeros and embeddings from N(0, 1).

    The arrays are filled one by one from the abstract model, as Tunix's loader does.
    """
    rng = np.random.default_rng(0)
    graph, shapes = nnx.split(nnx.eval_shape(lambda: Qwen2(config, rngs=nnx.Rngs(params=0))))

    def draw(path, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.asarray(draw_weight(rng, jax.tree_util.keystr(path), leaf.shape))

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(draw, shapes))


def make_trainer(job: Job) -> Trainer:
    """The trainer as `GRPOLearner.__init__` sets it up."""
    algorithm = GRPOConfig(num_generations=job.shape.group, beta=0.0, epsilon=EPSILON)
    algorithm.temperature = 1.0
    loss_fn = function_registry.get_policy_loss_fn(algorithm.policy_loss_fn)
    adamw = optax.adamw(**ADAM, weight_decay=0.0)
    trainer = Trainer(
        make_model(job),
        optax.chain(optax.clip_by_global_norm(MAX_GRAD_NORM), adamw),
        TrainingConfig(eval_every_n_steps=1),
        custom_checkpoint_metadata_fn=dict,
    )
    trainer.with_loss_fn(
        lambda model, train_example, algo_config: loss_fn(
            model, train_example, algo_config=algo_config, pad_id=PAD, eos_id=EOS
        ),
        has_aux=True,
    )
    return trainer.with_gen_model_input_fn(
        lambda example: {"train_example": example, "algo_config": algorithm}
    )


def make_example(job: Job) -> TrainExample:
    arrays, group = job.batch(), job.shape.group
    prompts = jnp.asarray(arrays["prompt_ids"].repeat(group, axis=0))
    tokens, old = (
        jnp.asarray(arrays[name].reshape(len(prompts), -1))
        for name in ("completion_ids", "behavior_log_probs")
    )
    return TrainExample(
        prompt_ids=prompts,
        prompt_mask=prompts != PAD,
        completion_ids=tokens,
        completion_mask=tokens != PAD,
        advantages=jnp.asarray(arrays["advantages"].reshape(-1)),
        ref_per_token_logps=None,
        old_per_token_logps=old,
    )


def main(job: Job) -> None:
    trainer, example = make_trainer(job), make_example(job)
    step, _ = trainer.jit_train_and_eval_step(cache_nnx_graph=True)
    clock, more = Clock(job, "google-tunix", "jax", "jaxlib", "flax", "optax", "numpy"), True
    while more:
        loss, _, norm = jax.block_until_ready(step(example))
        more = clock.tick(loss, norm)


if __name__ == "__main__":
    main(Job())
