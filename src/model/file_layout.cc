// Pieces from the entries of a name map, and parameters from pieces.
#include "model/file_layout.h"

#include <atomic>
#include <cstring>
#include <set>

#include "base/error.h"
#include "tensor/quantised.h"

namespace dsmoe::model {
namespace {

using tensor::TensorView;
using tensor::WeightCoding;

std::vector<RoleName> entries_of(NameMap names, Role role) {
  std::vector<RoleName> entries;
  for (const RoleName& entry : names) {
    if (entry.role == role) entries.push_back(entry);
  }
  DSMOE_CHECK(!entries.empty(), "the names have none for role {}", static_cast<int>(role));
  return entries;
}

// The rows one entry gives, as they lie in its tensor.
FilePiece piece_of(const RoleName& entry, const ModelConfig& config, const Parameter& parameter,
                   int64_t row_begin, int64_t rows) {
  const bool is_vector = parameter.shape.rank() == 1;
  const int64_t columns = is_vector ? 1 : parameter.shape[1];
  const int64_t file_rows = rows * entry.part.count;
  const bool transposed = entry.order == Order::transposed;
  FilePiece piece{.tensor = name_of(entry, parameter.layer, parameter.expert),
                  .shape = is_vector    ? tensor::Shape{file_rows}
                           : transposed ? tensor::Shape{columns, file_rows}
                                        : tensor::Shape{file_rows, columns},
                  .row_begin = row_begin,
                  .rows = rows,
                  .columns = columns,
                  .row_stride = transposed ? 1 : columns,
                  .column_stride = transposed ? file_rows : 1};
  piece.first = entry.part.index * rows * piece.row_stride;
  // One tensor for all experts of a layer.
  if (parameter.expert >= 0 && !names_expert(entry)) {
    piece.first += parameter.expert * piece.shape.num_elements();
    piece.shape = {config.n_routed_experts, piece.shape[0], piece.shape[1]};
  }
  return piece;
}

// Files hold row i of a head's first half beside row i of its second half.
void add_halves(const FilePiece& whole, int64_t head_dim, std::vector<FilePiece>& pieces) {
  const int64_t half = head_dim / 2;
  for (int64_t row = 0; row < whole.rows; row += half) {
    FilePiece& piece = pieces.emplace_back(whole);
    const int64_t head_begin = row / head_dim * head_dim;
    piece.row_begin = whole.row_begin + row;
    piece.rows = half;
    piece.first += (head_begin + (row == head_begin ? 0 : 1)) * whole.row_stride;
    piece.row_stride *= 2;
  }
}

}  // namespace

std::vector<FilePiece> pieces_of(NameMap names, const ModelConfig& config,
                                 const Parameter& parameter) {
  const std::vector<RoleName> entries = entries_of(names, parameter.role);
  const auto count = static_cast<int64_t>(entries.size());
  DSMOE_CHECK(parameter.shape[0] % count == 0, "{}: {} rows in {} tensors", parameter.name,
              parameter.shape[0], count);
  const int64_t rows = parameter.shape[0] / count;
  std::vector<FilePiece> pieces;
  for (int64_t i = 0; i < count; ++i) {
    const RoleName& entry = entries[static_cast<std::size_t>(i)];
    const FilePiece piece = piece_of(entry, config, parameter, i * rows, rows);
    if (entry.order == Order::rotary_pairs) {
      add_halves(piece, config.head_dim, pieces);
    } else {
      pieces.push_back(piece);
    }
  }
  DSMOE_CHECK(parameter.coding == WeightCoding::plain ||
                  (pieces.size() == 1 && pieces.front().shape == parameter.shape &&
                   pieces.front().is_contiguous()),
              "{}: coded weights lie as they are", parameter.name);
  return pieces;
}

std::vector<tensor::TensorSpec> file_tensors(NameMap names, const ModelConfig& config) {
  std::vector<tensor::TensorSpec> specs;
  std::set<std::string> listed;
  for (const Parameter& parameter : inventory(config).parameters) {
    for (const FilePiece& piece : pieces_of(names, config, parameter)) {
      if (!listed.insert(piece.tensor).second) continue;
      Parameter as_stored = parameter;
      as_stored.name = piece.tensor;
      as_stored.shape = piece.shape;
      for (tensor::TensorSpec& spec : stored_specs(config, as_stored)) {
        specs.push_back(std::move(spec));
      }
    }
  }
  return specs;
}

std::vector<tensor::TensorSpec> expected_tensors(const ModelConfig& config) {
  return file_tensors(config.file_names, config);
}

std::vector<tensor::TensorSpec> written_tensors(const ModelConfig& config) {
  return file_tensors(kDeepseekNames, config);
}

void FileParameters::expect(std::span<const Parameter* const> parameters) {
  std::vector<std::string> names;
  for (const Parameter* parameter : parameters) {
    for (const FilePiece& piece : pieces_of(names_, config_, *parameter)) {
      if (!names.empty() && names.back() == piece.tensor) continue;
      names.push_back(piece.tensor);
      if (parameter->coding != WeightCoding::plain) {
        names.push_back(tensor::scale_name(piece.tensor));
      }
    }
  }
  files_->expect(std::move(names));
}

StoredTensor FileParameters::tensor(const Parameter& parameter) {
  const std::vector<FilePiece> pieces = pieces_of(names_, config_, parameter);
  if (pieces.size() > 1 || !pieces.front().is_contiguous()) {
    return {.elements = gather(parameter, pieces)};
  }
  const FilePiece& piece = pieces.front();
  if (parameter.coding != WeightCoding::plain) {
    return {.elements = files_->tensor(piece.tensor),
            .scale = scales_of(parameter, tensor::scale_name(piece.tensor))};
  }
  check_shape(piece);
  TensorView view = files_->part(piece.tensor, piece.first, piece.rows * piece.columns);
  view.shape = parameter.shape;
  return {.elements = view};
}

void FileParameters::release(const Parameter& parameter) {
  for (const FilePiece& piece : pieces_of(names_, config_, parameter)) {
    // Of a tensor that others use too, only what is this one's.
    if (piece.shape.num_elements() == piece.rows * piece.columns) {
      files_->release(piece.tensor);
    } else if (piece.is_contiguous()) {
      files_->release_part(piece.tensor, piece.first, piece.rows * piece.columns);
    }
  }
  if (parameter.coding != WeightCoding::plain) {
    for (const FilePiece& piece : pieces_of(names_, config_, parameter)) {
      files_->release(tensor::scale_name(piece.tensor));
    }
  }
}

void FileParameters::release_rows(const Parameter& parameter, int64_t begin, int64_t end) {
  const std::vector<FilePiece> pieces = pieces_of(names_, config_, parameter);
  if (pieces.size() > 1 || !pieces.front().is_contiguous()) return;
  const int64_t row_elements =
      parameter.coding == WeightCoding::plain
          ? pieces.front().columns
          : tensor::coded_row_bytes(parameter.coding, pieces.front().columns);
  files_->release_part(pieces.front().tensor, pieces.front().first + begin * row_elements,
                       (end - begin) * row_elements);
}

void FileParameters::check_shape(const FilePiece& piece) const {
  const tensor::Shape found = files_->shape(piece.tensor);
  if (found == piece.shape) return;
  fail(ErrorKind::input, "{}: {} should be {}, the file has {}", files_->what(), piece.tensor,
       to_string(piece.shape), to_string(found));
}

TensorView FileParameters::gather(const Parameter& parameter,
                                  const std::vector<FilePiece>& pieces) {
  constexpr int64_t kRowsAtATime = 16;
  TensorView out;
  for (const FilePiece& piece : pieces) {
    const TensorView file = files_->tensor(piece.tensor);
    check_shape(piece);
    if (!out) {
      out = {.dtype = file.dtype, .shape = parameter.shape};
      gathered_.resize(out.num_bytes());
      out.data = gathered_.data();
    }
    if (file.dtype != out.dtype) {
      fail(ErrorKind::input, "{}: {} is {}, and {} of the same parameter is {}", files_->what(),
           pieces.front().tensor, tensor::name_of(out.dtype), piece.tensor,
           tensor::name_of(file.dtype));
    }
    const std::size_t size = tensor::size_of(out.dtype);
    const auto* from = static_cast<const std::byte*>(file.data);
    parallel_for(pool_, piece.rows, kRowsAtATime, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        std::byte* row = gathered_.data() +
                         static_cast<std::size_t>((piece.row_begin + r) * piece.columns) * size;
        for (int64_t c = 0; c < piece.columns; ++c) {
          const int64_t at = piece.first + r * piece.row_stride + c * piece.column_stride;
          std::memcpy(row + static_cast<std::size_t>(c) * size,
                      from + static_cast<std::size_t>(at) * size, size);
        }
      }
    });
  }
  return out;
}

TensorView FileParameters::scales_of(const Parameter& parameter, const std::string& name) {
  constexpr int64_t kScalesAtATime = 1 << 14;
  const TensorView scales = files_->tensor(name);
  const auto* bytes = static_cast<const std::byte*>(scales.data);
  const auto scale_at = [&](int64_t i) {
    tensor::Bf16 scale{};
    std::memcpy(&scale, bytes + 2 * i, sizeof scale);
    return scale;
  };
  std::atomic<int64_t> first_bad{scales.num_elements()};
  parallel_for(pool_, scales.num_elements(), kScalesAtATime, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (tensor::is_valid_scale(parameter.coding, scale_at(i))) continue;
      int64_t known = first_bad.load();
      while (i < known && !first_bad.compare_exchange_weak(known, i)) {
      }
      return;
    }
  });
  const int64_t i = first_bad.load();
  if (i == scales.num_elements()) return scales;
  const int64_t groups = scales.dim(1);
  fail(ErrorKind::input, "{}: {}: the scale of row {}, group {} is {}; scales of {} are {}",
       files_->what(), name, i / groups, i % groups, tensor::to_float(scale_at(i)),
       tensor::name_of(parameter.coding), tensor::scale_rule(parameter.coding));
}

}  // namespace dsmoe::model
