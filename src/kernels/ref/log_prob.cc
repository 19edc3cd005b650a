// Log-softmax at one id per row, and the arg max.
#include "kernels/ref/ref.h"
#include "kernels/ref/scalar.h"

namespace dsmoe::kernels::ref {

void log_prob_forward(const Context&, const LogProbForward& args) {
  with_operand(args.logits.dtype, [&]<class S>() {
    if constexpr (!std::is_same_v<S, Bf16>) {
      const int64_t vocabulary = args.logits.dim(1);
      for (int64_t r = 0; r < args.logits.dim(0); ++r) {
        const S* s = args.logits.as<S>() + r * vocabulary;
        const S max = row_max<S>(vocabulary, [&](int64_t v) { return s[v]; });
        const S sum = row_sum<S>(vocabulary, [&](int64_t v) { return exp(s[v] - max); });
        const int32_t target = args.target.as<int32_t>()[r];
        args.log_prob.as<S>()[r] = target < 0 ? S(0) : (s[target] - max) - log(sum);
        if (!args.argmax) continue;
        int32_t best = 0;
        for (int64_t v = 1; v < vocabulary; ++v) {
          if (s[v] > s[best]) best = static_cast<int32_t>(v);
        }
        args.argmax.as<int32_t>()[r] = best;
      }
    }
  });
}

void argmax_forward(const Context&, const ArgmaxForward& args) {
  with_operand(args.logits.dtype, [&]<class S>() {
    if constexpr (!std::is_same_v<S, Bf16>) {
      const int64_t vocabulary = args.logits.dim(1);
      for (int64_t r = 0; r < args.logits.dim(0); ++r) {
        const S* s = args.logits.as<S>() + r * vocabulary;
        int32_t best = 0;
        bool finite = true;
        for (int64_t v = 0; v < vocabulary; ++v) {
          finite = finite && std::isfinite(s[v]);
          if (s[v] > s[best]) best = static_cast<int32_t>(v);
        }
        args.index.as<int32_t>()[r] = finite ? best : -1;
      }
    }
  });
}

void cross_entropy_backward(const Context&, const CrossEntropyBackward& args) {
  with_operand(args.d_logits.dtype, [&]<class Operand>() {
    using S = Scalar<Operand>;
    const int64_t vocabulary = args.logits.dim(1);
    const S scale = static_cast<S>(args.scale);
    for (int64_t r = 0; r < args.logits.dim(0); ++r) {
      const S* s = args.logits.as<S>() + r * vocabulary;
      Operand* d_logits = args.d_logits.as<Operand>() + r * vocabulary;
      const int32_t target = args.target.as<int32_t>()[r];
      if (target < 0) {
        args.log_prob.as<S>()[r] = 0;
        for (int64_t v = 0; v < vocabulary; ++v) d_logits[v] = round_to<Operand>(S(0));
        continue;
      }
      const S max = row_max<S>(vocabulary, [&](int64_t v) { return s[v]; });
      const S sum = row_sum<S>(vocabulary, [&](int64_t v) { return exp(s[v] - max); });
      args.log_prob.as<S>()[r] = (s[target] - max) - log(sum);
      for (int64_t v = 0; v < vocabulary; ++v) {
        const S p = exp(s[v] - max) / sum;
        d_logits[v] = round_to<Operand>((v == target ? p - S(1) : p) * scale);
      }
    }
  });
}

}  // namespace dsmoe::kernels::ref
