// Where files hold the parameters of the inventory: the names of a format (parameter_names.h),
// turned into pieces of a file's tensors, and a source that reads them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "model/parameter_source.h"
#include "tensor/tensor_source.h"
#include "tensor/tensor_spec.h"

namespace dsmoe::model {

// Rows of a parameter, and where they lie in a tensor of a file.
struct FilePiece {
  std::string tensor;
  tensor::Shape shape;    // of that tensor
  int64_t row_begin = 0;  // within the parameter
  int64_t rows = 0;
  int64_t columns = 1;
  int64_t first = 0;  // the tensor's element that is the piece's [0, 0]
  int64_t row_stride = 1, column_stride = 1;

  bool is_contiguous() const { return row_stride == columns && column_stride == 1; }
};

// All of the parameter's rows, ascending but for Order::rotary_pairs. Throws Error(internal) when
// the format has no name for its role.
std::vector<FilePiece> pieces_of(NameMap names, const ModelConfig& config,
                                 const Parameter& parameter);

// The tensors that files of the format hold, each once, in the order of the forward pass, in
// torch_dtype; a quantised weight is followed by its scales.
std::vector<tensor::TensorSpec> file_tensors(NameMap names, const ModelConfig& config);

// Those of the files that this program writes: every parameter under its own name.
std::vector<tensor::TensorSpec> written_tensors(const ModelConfig& config);

// Parameters from the tensors of files. What lies in one piece is used where it lies; the rest is
// gathered. Scales are checked: Error(input) names the first that no rule of its coding allows.
class FileParameters : public ParameterSource {
 public:
  FileParameters(std::unique_ptr<tensor::TensorSource> files, const ModelConfig& config,
                 ThreadPool& pool)
      : FileParameters(std::move(files), config.file_names, config, pool) {}
  FileParameters(std::unique_ptr<tensor::TensorSource> files, NameMap names,
                 const ModelConfig& config, ThreadPool& pool)
      : files_(std::move(files)), names_(names), config_(config), pool_(pool) {}

  void expect(std::span<const Parameter* const> parameters) override;
  StoredTensor tensor(const Parameter& parameter) override;
  void release(const Parameter& parameter) override;
  void release_rows(const Parameter& parameter, int64_t begin, int64_t end) override;

 private:
  void check_shape(const FilePiece& piece) const;
  tensor::TensorView gather(const Parameter& parameter, const std::vector<FilePiece>& pieces);
  tensor::TensorView scales_of(const Parameter& parameter, const std::string& name);

  std::unique_ptr<tensor::TensorSource> files_;
  NameMap names_;
  ModelConfig config_;
  ThreadPool& pool_;
  std::vector<std::byte> gathered_;
};

}  // namespace dsmoe::model
