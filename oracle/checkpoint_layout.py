"""What a config.json means for the files: defaults, which layers are MoE, the name and shape of every tensor. Needs nothing."""

DEFAULTS = {
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False,
    "tie_word_embeddings": False, "n_routed_experts": None, "n_shared_experts": None, "num_experts_per_tok": None,
    "moe_layer_freq": 1, "first_k_dense_replace": 0, "norm_topk_prob": False, "scoring_func": "softmax",
    "topk_method": "greedy", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "aux_loss_alpha": 0.001,
    "seq_aux": True, "head_dim": None, "num_key_value_heads": None,
}


class Config(dict):
    """config.json with the class defaults of the released configuration; keys read as attributes."""

    def __init__(self, values):
        super().__init__({**DEFAULTS, **values})
        if self["num_key_value_heads"] is None:
            self["num_key_value_heads"] = self["num_attention_heads"]
        if self["head_dim"] is None:
            self["head_dim"] = self["hidden_size"] // self["num_attention_heads"]

    def __getattr__(self, key):
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None

    def is_moe(self, layer):
        return (self.n_routed_experts is not None and layer >= self.first_k_dense_replace
                and layer % self.moe_layer_freq == 0)


def weight_shapes(cfg):
    """{name: shape} of a checkpoint, in the order of the forward pass."""
    d, hd = cfg.hidden_size, cfg.head_dim
    shapes = {"model.embed_tokens.weight": (cfg.vocab_size, d)}

    def ffn(prefix, width):
        shapes.update({prefix + "gate_proj.weight": (width, d), prefix + "up_proj.weight": (width, d),
                       prefix + "down_proj.weight": (d, width)})

    for layer in range(cfg.num_hidden_layers):
        name = f"model.layers.{layer}."
        shapes[name + "input_layernorm.weight"] = shapes[name + "post_attention_layernorm.weight"] = (d,)
        for p, heads in (("q", cfg.num_attention_heads), ("k", cfg.num_key_value_heads), ("v", cfg.num_key_value_heads)):
            shapes[f"{name}self_attn.{p}_proj.weight"] = (heads * hd, d)
            if cfg.attention_bias:
                shapes[f"{name}self_attn.{p}_proj.bias"] = (heads * hd,)
        shapes[name + "self_attn.o_proj.weight"] = (d, cfg.num_attention_heads * hd)
        if cfg.attention_bias:
            shapes[name + "self_attn.o_proj.bias"] = (d,)
        if not cfg.is_moe(layer):
            ffn(name + "mlp.", cfg.intermediate_size)
            continue
        shapes[name + "mlp.gate.weight"] = (cfg.n_routed_experts, d)
        if cfg.topk_method == "noaux_tc":
            shapes[name + "mlp.gate.e_score_correction_bias"] = (cfg.n_routed_experts,)
        for i in range(cfg.n_routed_experts):
            ffn(f"{name}mlp.experts.{i}.", cfg.moe_intermediate_size)
        if cfg.n_shared_experts:
            ffn(name + "mlp.shared_experts.", cfg.n_shared_experts * cfg.moe_intermediate_size)
    shapes["model.norm.weight"] = (d,)
    if not cfg.tie_word_embeddings:
        shapes["lm_head.weight"] = (cfg.vocab_size, d)
    return shapes
