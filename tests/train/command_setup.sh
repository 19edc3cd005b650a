# A tiny config and corpus, and ways to call the program: sourced by the scripts beside it.
set -u
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$work/config.json" <<'JSON'
{"model_type": "deepseek", "architectures": ["DeepseekForCausalLM"], "torch_dtype": "bfloat16", "vocab_size": 300,
 "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24,
 "moe_intermediate_size": 8, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
 "first_k_dense_replace": 1, "max_position_embeddings": 64, "initializer_range": 0.1, "bos_token_id": 0, "eos_token_id": 1}
JSON
for i in $(seq 1 60); do
  echo "the $i little foxes ran over $((i * 7 % 13)) hills and $((i * 5 % 11)) rivers<|endoftext|>"
done > "$work/corpus.txt"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
# Becomes the program, so that after `become_train ... &` signals to $! reach it. A few rows per step: milliseconds.
become_train() { # RUN STEPS [more]
  local run=$1 steps=$2
  shift 2
  exec "$program" train --config "$work/config.json" --data "$work/corpus.txt" --out "$run" --steps "$steps" --batch 4 \
    --seq 32 --threads 1 --quiet "$@"
}
train() { (become_train "$@"); }
# Byte-equal model and state.
same() {
  diff -r "$1" "$2" > /dev/null || fail "$1 and $2 differ"
}
