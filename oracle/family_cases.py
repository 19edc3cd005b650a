"""Tiny models of the types that `transformers` has classes for: eight shapes each, odd on purpose. Needs nothing."""


def base(**changes):
    return {"vocab_size": 31, "hidden_size": 20, "intermediate_size": 22, "moe_intermediate_size": 7, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "num_experts_per_tok": 2,
            "rope_theta": 10000.0, "bos_token_id": 0, "eos_token_id": 1, **changes}


def yarn(factor, **changes):
    return {"rope_type": "yarn", "rope_theta": 10000.0, "factor": factor, "original_max_position_embeddings": 32,
            "beta_fast": 32, "beta_slow": 1, **changes}


# name -> (config, tokens)
def qwen3(**changes):
    return base(**{"num_experts": 5, "norm_topk_prob": True, "head_dim": 8, **changes})


def qwen2(**changes):
    return base(**{"num_experts": 5, "shared_expert_intermediate_size": 9, "hidden_size": 24, **changes})


def glm4(**changes):
    return base(**{"n_routed_experts": 6, "n_shared_experts": 1, "head_dim": 8, "first_k_dense_replace": 1, **changes})


def latent(**changes):
    return base(**{"num_key_value_heads": 4, "n_routed_experts": 6, "n_shared_experts": 1, "first_k_dense_replace": 1,
                   "kv_lora_rank": 12, "q_lora_rank": None, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
                   "n_group": 1, "topk_group": 1, **changes})


CASES = {
    "qwen3_moe": [
        (qwen3(), 24),
        (qwen3(num_key_value_heads=1, head_dim=10, num_experts_per_tok=3), 70),
        (qwen3(num_attention_heads=3, num_key_value_heads=3, head_dim=6, hidden_size=22, norm_topk_prob=False), 19),
        (qwen3(num_hidden_layers=4, decoder_sparse_step=2), 21),
        (qwen3(num_hidden_layers=3, mlp_only_layers=[1]), 17),
        (qwen3(attention_bias=True, rms_norm_eps=1e-3, tie_word_embeddings=True), 23),
        (qwen3(rope_parameters=yarn(4.0), head_dim=12), 90),
        (qwen3(rope_parameters={"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}, num_experts=9,
               num_experts_per_tok=4, moe_intermediate_size=5), 33),
    ],
    "qwen2_moe": [
        (qwen2(), 24),
        (qwen2(num_key_value_heads=4, shared_expert_intermediate_size=17), 70),
        (qwen2(norm_topk_prob=True, num_experts_per_tok=3), 19),
        (qwen2(qkv_bias=False, num_attention_heads=3, num_key_value_heads=1, hidden_size=18), 21),
        (qwen2(num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3]), 17),
        (qwen2(tie_word_embeddings=True, rms_norm_eps=1e-5, num_experts=7), 23),
        (qwen2(rope_theta=1e6, num_experts=4, num_experts_per_tok=4), 66),
        (qwen2(num_experts_per_tok=1, shared_expert_intermediate_size=3), 20),
    ],
    "glm4_moe": [
        (glm4(), 24),
        (glm4(use_qk_norm=True, attention_bias=True), 70),
        (glm4(partial_rotary_factor=1.0, n_group=2, topk_group=1, routed_scaling_factor=2.5), 19),
        (glm4(head_dim=12, num_key_value_heads=1, n_shared_experts=2, num_experts_per_tok=3), 21),
        (glm4(norm_topk_prob=False, routed_scaling_factor=1.7, num_experts_per_tok=1), 17),
        (glm4(tie_word_embeddings=True, rms_norm_eps=1e-3, n_group=3, topk_group=2, use_qk_norm=True), 23),
        (glm4(first_k_dense_replace=0, num_attention_heads=3, num_key_value_heads=3, head_dim=16, partial_rotary_factor=0.25), 66),
        (glm4(num_hidden_layers=3, first_k_dense_replace=2, n_routed_experts=9, n_group=3, topk_group=1,
              num_experts_per_tok=3, attention_bias=True), 20),
    ],
    "deepseek_v2": [
        (latent(), 24),
        (latent(q_lora_rank=9), 70),
        (latent(topk_method="group_limited_greedy", n_group=3, topk_group=2, routed_scaling_factor=2.5), 19),
        (latent(num_attention_heads=3, num_key_value_heads=3, hidden_size=18, v_head_dim=11, kv_lora_rank=8), 21),
        (latent(rope_parameters=yarn(40.0, mscale=0.707, mscale_all_dim=0.707)), 90),
        (latent(q_lora_rank=5, qk_rope_head_dim=6, qk_nope_head_dim=4, n_shared_experts=2, tie_word_embeddings=True), 23),
        (latent(first_k_dense_replace=0, num_experts_per_tok=6, rms_norm_eps=1e-3), 66),
        (latent(num_experts_per_tok=1, q_lora_rank=16, kv_lora_rank=16, v_head_dim=16, qk_nope_head_dim=16,
                qk_rope_head_dim=16), 20),
    ],
    "deepseek_v3": [
        (latent(), 24),
        (latent(q_lora_rank=9, n_group=2, topk_group=1), 70),
        (latent(rope_interleave=False, q_lora_rank=8), 19),
        (latent(num_attention_heads=3, num_key_value_heads=3, hidden_size=18, v_head_dim=11, kv_lora_rank=7), 21),
        (latent(rope_parameters=yarn(40.0, mscale=1.0, mscale_all_dim=1.0), q_lora_rank=10), 90),
        (latent(n_shared_experts=2, tie_word_embeddings=True, routed_scaling_factor=2.446, rms_norm_eps=1e-3), 23),
        (latent(first_k_dense_replace=0, norm_topk_prob=False, num_experts_per_tok=1), 66),
        (latent(n_routed_experts=9, n_group=3, topk_group=2, num_experts_per_tok=4, q_lora_rank=16, kv_lora_rank=16,
                v_head_dim=16, qk_nope_head_dim=16, qk_rope_head_dim=16), 20),
    ],
    "glm4_moe_lite": [
        (latent(q_lora_rank=9), 24),
        (latent(q_lora_rank=None), 70),
        (latent(q_lora_rank=11, num_attention_heads=5, num_key_value_heads=5, v_head_dim=8), 19),
        (latent(q_lora_rank=8, mlp_layer_types=["sparse", "dense", "sparse"], num_hidden_layers=3), 21),
        (latent(q_lora_rank=8, n_group=2, topk_group=2, norm_topk_prob=False), 17),
        (latent(q_lora_rank=6, tie_word_embeddings=True, kv_lora_rank=5, n_shared_experts=3), 23),
        (latent(q_lora_rank=7, rope_theta=1e6, num_experts_per_tok=4, rms_norm_eps=1e-3), 66),
        (latent(q_lora_rank=16, kv_lora_rank=16, v_head_dim=16, qk_nope_head_dim=16, qk_rope_head_dim=16), 20),
    ],
}

# One training step of these cases, too.
TRAINED = {"qwen3_moe": [0, 5], "qwen2_moe": [0, 2], "glm4_moe": [1, 2], "deepseek_v2": [4, 5], "deepseek_v3": [1, 2],
           "glm4_moe_lite": [0, 3]}
