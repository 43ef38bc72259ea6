"""Small GGUF files, written with the format's own package as llama.cpp's converter writes them."""

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from ogrpo.policy import DecoderConfig
from ogrpo.policy.pretrained import to_tensors
from tests.policy.tiny import make_config

KINDS = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
NAMES = {
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "1 2", "Ġ Ġ", "Ċ Ċ", "' s"]
SPECIAL = ["<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = [*ALPHABET, *("".join(m.split()) for m in MERGES), *SPECIAL, "<tool>"]
VOCAB = 288
"""With unused ids behind the tokens, as Qwen's files have them."""


def small_config(family: str, **changes) -> DecoderConfig:
    fields = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "head_dim": 16 if family == "Qwen3" else 8,
        "rope_scaling": None,
        "tie_embeddings": family != "Qwen2",
    }
    return make_config(family, **{**fields, **changes})


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of q and k in llama models."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def q4_k_blocks(weight: np.ndarray, _) -> np.ndarray:
    """Any blocks of Q4_K, which gguf reads and does not write: the weight's bytes, small scales."""
    blocks = weight.view(np.uint8).reshape(len(weight), -1, 4 * 256)[..., :144].copy()
    blocks[..., :4] = np.float16([1.8e-4, 1.3e-3]).view(np.uint8)
    return blocks.reshape(len(weight), -1)


def write_gguf(
    path, config, params, kind="", quantisation="F32", pre="qwen2", fields=(), without=(), extra=()
):
    """`fields` are further numbers and texts by name; `without` and `extra` are tensors."""
    kind = kind or KINDS[config.architecture]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    unused = [f"[PAD{n}]" for n in range(len(TOKENS), config.vocab_size)]
    writer.add_token_list([*TOKENS, *unused])
    special = {**dict.fromkeys(SPECIAL, 3), "<tool>": 4}
    writer.add_token_types([special.get(token, 1) for token in TOKENS] + [5] * len(unused))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(TOKENS.index("<|im_start|>"))
    writer.add_eos_token_id(TOKENS.index("<|im_end|>"))
    writer.add_pad_token_id(TOKENS.index("<|im_end|>"))
    writer.add_chat_template(CHAT)
    for name, value in dict(fields).items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(name.replace("KIND", kind), value)
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    for name, weight in {**to_tensors(config, params), **dict(extra)}.items():
        *prefix, module, of = name.split(".")
        if kind == "llama" and module in heads:
            weight = interleaved(weight, heads[module])
        layer = f"blk.{prefix[2]}." if len(prefix) > 2 else ""
        theirs = f"{layer}{NAMES.get(module, module)}.{of}"
        if theirs in without:
            continue
        weight = np.ascontiguousarray(weight, np.float32)
        stored = gguf.GGMLQuantizationType[quantisation if weight.ndim > 1 else "F32"]
        quantize = q4_k_blocks if stored.name == "Q4_K" else gguf.quants.quantize
        data = quantize(weight, stored)
        writer.add_tensor(theirs, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
