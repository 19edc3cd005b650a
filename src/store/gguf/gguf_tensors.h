// A GGUF file's tensors as numbers: where they are mapped, or taken out of their blocks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "store/gguf/gguf_file.h"
#include "tensor/tensor_source.h"
#include "tensor/tensor_spec.h"

namespace dsmoe::store::gguf {

// Throws one Error(input) that names missing, extra and mis-shaped tensors (the first eight, then a
// count). What `is_passed_over` may be there without being expected.
void check_tensors(const File& file, std::span<const tensor::TensorSpec> expected,
                   FunctionRef<bool(const TensorEntry&)> is_passed_over);
bool is_zero(const File& file, const TensorEntry& entry);

// Blocks become F32; of other types the numbers lie in the file.
class GgufTensors : public tensor::TensorSource {
 public:
  GgufTensors(File file, ThreadPool& pool) : file_(std::move(file)), pool_(pool) {}

  std::string what() const override { return file_.what(); }
  tensor::Shape shape(const std::string& name) override { return entry(name).shape; }
  tensor::TensorView tensor(const std::string& name) override;
  tensor::TensorView part(const std::string& name, int64_t first, int64_t count) override;
  void release(const std::string& name) override;
  void release_part(const std::string& name, int64_t first, int64_t count) override;

 private:
  const TensorEntry& entry(const std::string& name) const;

  File file_;
  ThreadPool& pool_;
  std::vector<float> numbers_;  // of `taken_out_`, all of it or some
  std::string whole_;           // the tensor that numbers_ holds all of
};

}  // namespace dsmoe::store::gguf
