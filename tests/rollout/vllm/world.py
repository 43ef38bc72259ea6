"""A tiny policy that any server can serve, and what the trainer itself thinks of samples of it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.data.tokenizer import word_level
from ogrpo.policy import save_pretrained
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.log_probs import flat_logits
from ogrpo.system.files import write_json
from tests.policy.tiny import make_config

TOKENIZER = word_level([f"w{n}" for n in range(13)])
EOS = TOKENIZER.eos_id
VOCAB = 16
POSITIONS = 128
PROMPTS = [np.array(ids, np.int32) for ids in ([1, 2, 3], [4, 5], [6], [7, 8, 9, 10])]


def decoder(*, tied=True):
    """Head size 32 is the least that vLLM serves."""
    heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 32, "tie_embeddings": tied}
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": VOCAB}
    return make_config(**sizes, **heads, max_positions=POSITIONS)


def make_params(config, seed):
    """Every tensor random, logits of order one; two seeds are nats apart."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name = jax.tree_util.keystr(path)
        center, scale = (1.0, 0.2) if "norm" in name else (0.0, 0.12)
        return jnp.asarray(rng.normal(center, scale, leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, param_shapes(config))


def save(folder, config, params):
    save_pretrained(folder, config, params, extra_fields={"eos_token_id": EOS})
    write_json(folder / "generation_config.json", {"eos_token_id": [EOS, 3]})  # as chat models have
    TOKENIZER.save(folder)
    return folder


def save_both(make_folder):
    """Folders of first weights, tied and untied."""
    configs = [decoder(tied=tied) for tied in (True, False)]
    return {c.tie_embeddings: save(make_folder("policy"), c, make_params(c, 100)) for c in configs}


@partial(jax.jit, static_argnames="config")
def _law(params, ids, mask, temperature, *, config):
    """log softmax(z / T) of the token after each place of each row."""
    return jax.nn.log_softmax(flat_logits(params, config, ids, mask) / temperature)


def _laws(config, params, rows, temperature):
    ids = np.zeros((-(-len(rows) // 16) * 16, 64), np.int32)
    lengths = np.ones((len(ids), 1), np.int32)
    for n, row in enumerate(rows):
        ids[n, : len(row)], lengths[n] = row, len(row)
    mask = np.arange(ids.shape[1])[None] < lengths
    return np.asarray(_law(params, ids, mask, np.float32(temperature), config=config))


def log_probs(config, params, groups, temperature):
    """The trainer's log-probs of every completion, one after the other."""
    pairs = [(len(g.prompt_ids), g.prompt_ids, c.token_ids) for g in groups for c in g.completions]
    laws = _laws(config, params, [np.concatenate(ids) for _, *ids in pairs], temperature)
    return [
        law[start - 1 : start - 1 + len(drawn)][np.arange(len(drawn)), drawn]
        for law, (start, _, drawn) in zip(laws, pairs, strict=False)
    ]


def worst_gap(config, params, groups, temperature=1.0):
    """The largest difference between a server's log-probs and the trainer's, in nats."""
    trained = log_probs(config, params, groups, temperature)
    drawn = [c.log_probs for g in groups for c in g.completions]
    return max(np.abs(a - b).max(initial=0.0) for a, b in zip(trained, drawn, strict=True))


def next_token_probs(config, params, prompt):
    return np.exp(_laws(config, params, [prompt], 1.0)[0, len(prompt) - 1])
