// The differences between the tensors a configuration needs and those files hold, as one message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "tensor/tensor_spec.h"

namespace dsmoe::store {

// Collects them and prints the first eight.
class TensorDifferences {
 public:
  void missing(const tensor::TensorSpec& spec) {
    ++missing_;
    add(fmt::format("{} {} is missing", spec.name, to_string(spec.shape)));
  }
  void extra(std::string_view name, const tensor::Shape& shape) {
    ++extra_;
    add(fmt::format("{} {} is extra", in_quotes(name), to_string(shape)));
  }
  // `expected` and `found`: shapes or types.
  void other(std::string_view name, std::string_view expected, std::string_view found) {
    add(fmt::format("{} should be {}, the file has {}", name, expected, found));
  }

  void throw_if_any(std::string_view what) const {
    if (count_ == 0) return;
    fail(ErrorKind::input,
         "{}: the weights are not those of the configuration ({} missing, {} extra, {} of another "
         "shape or type): {}{}",
         what, missing_, extra_, count_ - missing_ - extra_, text_,
         count_ > kMaxShown ? fmt::format("; and {} more", count_ - kMaxShown) : "");
  }

 private:
  static constexpr std::size_t kMaxShown = 8;

  void add(const std::string& difference) {
    if (++count_ > kMaxShown) return;
    text_ += (count_ > 1 ? "; " : "") + difference;
  }

  std::string text_;
  std::size_t count_ = 0;
  std::size_t missing_ = 0;
  std::size_t extra_ = 0;
};

}  // namespace dsmoe::store
