// Walks over the inventory; each parameter's rows go to where the other format has them.
#include "infer/convert.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "kernels/elements.h"
#include "model/file_layout.h"
#include "model/gguf_format.h"
#include "model/weight_files.h"
#include "store/folder_writer.h"
#include "store/gguf/gguf_writer.h"
#include "text/chat_template.h"
#include "text/text_files.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::infer {
namespace {

namespace fs = std::filesystem;
namespace gguf = store::gguf;
using gguf::TensorType;
using model::Kind;
using model::Parameter;
using tensor::DType;
using tensor::TensorView;

constexpr int64_t kPieceElements = int64_t{1} << 21;
constexpr int64_t kElementsAtATime = int64_t{1} << 14;
constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;

// What stands beside the weights and has a place in both formats.
constexpr std::string_view kTextFiles[] = {"tokenizer.json", "tokenizer_config.json",
                                           "chat_template.jinja"};

// Numbers [begin, begin + out.size()) of a tensor of any floating type.
void read_numbers(const TensorView& from, int64_t begin, std::span<float> out, ThreadPool& pool) {
  parallel_for(pool, std::ssize(out), kElementsAtATime, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      out[static_cast<std::size_t>(i)] =
          static_cast<float>(kernels::read_element(from.data, from.dtype, begin + i));
    }
  });
}

TensorType type_of(const Parameter& parameter, TensorType wanted) {
  const Kind kind = model::kind_of(parameter.role);
  if (parameter.shape.rank() == 1 || kind == Kind::router) return TensorType::F32;
  const bool is_table = kind == Kind::embedding || kind == Kind::head;
  return is_table && wanted == TensorType::Q4_0 ? TensorType::Q8_0 : wanted;
}

// As the format numbers what most tensors are.
int64_t file_type(TensorType type) {
  switch (type) {
    case TensorType::F32:
      return 0;
    case TensorType::F16:
      return 1;
    case TensorType::Q4_0:
      return 2;
    case TensorType::Q8_0:
      return 7;
    case TensorType::BF16:
      return 32;
    default:
      fail(ErrorKind::internal, "{} is not written", gguf::name_of(type));
  }
}

void add_text(const fs::path& source, const model::ModelConfig& config, gguf::Metadata& metadata) {
  const auto file = text::read_text_file(source, "tokenizer.json", kMaxTextBytes);
  if (!file) {
    metadata.text("tokenizer.ggml.model", "none");
    return;
  }
  const auto tokenizer = text::Tokenizer::from_file(source.string());
  const auto eos = config.eos_token_ids.empty()
                       ? std::nullopt
                       : std::optional<int64_t>(config.eos_token_ids.front());
  text::add_vocabulary({.tokenizer_json = file->bytes,
                        .what = file->what,
                        .frame = tokenizer.frame(),
                        .vocab_size = config.vocab_size,
                        .bos_token_id = config.bos_token_id,
                        .eos_token_id = eos},
                       metadata);
  if (const auto chat = text::find_chat_template(source)) {
    metadata.text("tokenizer.chat_template", chat->bytes);
  }
}

class GgufExport {
 public:
  GgufExport(const kernels::Context& context, std::string what, model::ParameterSource& source,
             const model::ModelConfig& config, gguf::Writer& writer)
      : pool_(*context.pool),
        what_(std::move(what)),
        source_(source),
        config_(config),
        writer_(writer) {}

  void write(const Parameter& parameter) {
    const TensorView all = source_.tensor(parameter).elements;
    for (const model::FilePiece& piece : model::pieces_of(config_.file_names, config_, parameter)) {
      write_piece(parameter, all, piece);
    }
    source_.release(parameter);
  }

  void write_zeros(const Parameter& parameter) {
    const std::vector<float> zeros(static_cast<std::size_t>(parameter.shape.num_elements()));
    const model::FilePiece piece = model::pieces_of(config_.file_names, config_, parameter).front();
    writer_.write(piece.tensor, 0, std::as_bytes(std::span(zeros)));
  }

 private:
  void write_piece(const Parameter& parameter, const TensorView& all,
                   const model::FilePiece& piece) {
    DSMOE_CHECK(piece.column_stride == 1, "{}: columns are apart", piece.tensor);
    const TensorType type = writer_.spec(piece.tensor).type;
    const int64_t step = std::max<int64_t>(1, kPieceElements / piece.columns);
    for (int64_t row = 0; row < piece.rows; row += step) {
      const int64_t rows = std::min(step, piece.rows - row);
      encode_rows(parameter, all, piece.row_begin + row, rows, piece.columns, type);
      const auto row_bytes = static_cast<std::size_t>(std::ssize(encoded_) / rows);
      const auto place = [&](int64_t r) {
        return static_cast<uint64_t>(gguf::num_bytes(type, piece.first + r * piece.row_stride));
      };
      if (piece.is_contiguous()) {
        writer_.write(piece.tensor, place(row), encoded_);
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) {
        writer_.write(
            piece.tensor, place(row + r),
            std::span(encoded_).subspan(static_cast<std::size_t>(r) * row_bytes, row_bytes));
      }
    }
  }

  void encode_rows(const Parameter& parameter, const TensorView& all, int64_t begin, int64_t rows,
                   int64_t columns, TensorType type) {
    numbers_.resize(static_cast<std::size_t>(rows * columns));
    read_numbers(all, begin * columns, numbers_, pool_);
    const float most = gguf::largest_magnitude(type);
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      if (std::fabs(numbers_[i]) <= most) continue;
      const auto at = begin * columns + static_cast<int64_t>(i);
      fail(ErrorKind::input, "{}: {}[{}, {}] is {}; {} holds finite numbers up to {}", what_,
           parameter.name, at / columns, at % columns, numbers_[i], gguf::name_of(type), most);
    }
    const gguf::BlockSize block = gguf::block_size(type);
    const int64_t blocks = std::ssize(numbers_) / block.elements;
    encoded_.resize(static_cast<std::size_t>(blocks * block.bytes));
    parallel_for(
        pool_, blocks, kElementsAtATime / block.elements, [&](int64_t first, int64_t last) {
          const auto at = [](int64_t i, int64_t size) {
            return static_cast<std::size_t>(i * size);
          };
          gguf::encode(
              type,
              std::span(numbers_).subspan(at(first, block.elements),
                                          at(last - first, block.elements)),
              std::span(encoded_).subspan(at(first, block.bytes), at(last - first, block.bytes)));
        });
  }

  ThreadPool& pool_;
  std::string what_;
  model::ParameterSource& source_;
  const model::ModelConfig& config_;
  gguf::Writer& writer_;
  std::vector<float> numbers_;
  std::vector<std::byte> encoded_;
};

std::vector<gguf::TensorSpec> gguf_specs(const model::Inventory& inventory,
                                         const model::ModelConfig& config, TensorType type) {
  std::vector<gguf::TensorSpec> specs;
  std::set<std::string> listed;
  for (const Parameter& parameter : inventory.parameters) {
    for (const model::FilePiece& piece : model::pieces_of(config.file_names, config, parameter)) {
      if (!listed.insert(piece.tensor).second) continue;
      specs.push_back(
          {.name = piece.tensor, .type = type_of(parameter, type), .shape = piece.shape});
    }
  }
  return specs;
}

bool was_cancelled(const std::atomic<bool>* cancelled) {
  return cancelled != nullptr && cancelled->load();
}

// What a folder of this type holds of a parameter: that type, or F32 where it would lose something.
DType folder_type(const Parameter& parameter, const TensorView& elements, DType of_folder) {
  const DType type = model::stored_type(parameter, of_folder);
  const bool is_matrix =
      parameter.shape.rank() == 2 && model::kind_of(parameter.role) != Kind::router;
  if (is_matrix || type == DType::F32) return type;
  std::vector<std::byte> kept(tensor::size_of(type));
  for (int64_t i = 0; i < elements.num_elements(); ++i) {
    const double value = kernels::read_element(elements.data, elements.dtype, i);
    kernels::write_element(kept.data(), type, 0, value);
    if (kernels::read_element(kept.data(), type, 0) != value) return DType::F32;
  }
  return type;
}

void write_parameter(const Parameter& parameter, const TensorView& all, DType type,
                     store::FolderWriter& writer, ThreadPool& pool) {
  const int64_t columns = parameter.shape.rank() == 2 ? parameter.shape[1] : 1;
  const int64_t rows = parameter.shape[0];
  const int64_t step = std::max<int64_t>(1, kPieceElements / columns);
  const auto from_size = static_cast<int64_t>(tensor::size_of(all.dtype));
  const auto size = static_cast<int64_t>(tensor::size_of(type));
  std::vector<std::byte> bytes;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin) * columns;
    const auto* from = static_cast<const std::byte*>(all.data) + begin * columns * from_size;
    if (all.dtype == type) {
      writer.write(parameter.name, {from, static_cast<std::size_t>(count * size)});
      continue;
    }
    bytes.resize(static_cast<std::size_t>(count * size));
    parallel_for(pool, count, kElementsAtATime, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        kernels::write_element(bytes.data(), type, i, kernels::read_element(from, all.dtype, i));
      }
    });
    writer.write(parameter.name, bytes);
  }
}

}  // namespace

Outcome write_gguf(const kernels::Context& context, const fs::path& source, const fs::path& target,
                   const GgufOptions& options, ConvertProgress progress) {
  const model::ModelConfig config = model::read_config(source);
  const model::GgufModel written = model::gguf_model(config, source.string());
  model::FileParameters parameters(model::open_weights(source, config, *context.pool).tensors,
                                   config, *context.pool);
  gguf::Metadata metadata;
  model::add_config(written, config, metadata);
  metadata.integer("general.file_type", file_type(options.type));
  if (gguf::is_quantised(options.type)) metadata.integer("general.quantization_version", 2);
  add_text(source, config, metadata);
  const model::Inventory inventory = model::inventory(written.config);
  gguf::Writer writer(target, metadata, gguf_specs(inventory, written.config, options.type));
  GgufExport output(context, source.string(), parameters, written.config, writer);
  const auto total = std::ssize(inventory.parameters);
  for (int64_t i = 0; i < total; ++i) {
    if (was_cancelled(options.cancelled)) return Outcome::cancelled;
    const Parameter& parameter = inventory.parameters[static_cast<std::size_t>(i)];
    const bool is_made_up = parameter.role == model::Role::selection_bias &&
                            config.topk_method != model::TopkMethod::noaux_tc;
    if (is_made_up) {
      output.write_zeros(parameter);
    } else {
      output.write(parameter);
    }
    progress(i + 1);
  }
  writer.finish();
  return Outcome::done;
}

Outcome write_folder(const kernels::Context& context, const fs::path& source,
                     const fs::path& target, const FolderOptions& options,
                     ConvertProgress progress) {
  const model::ModelConfig config = model::read_config(source);
  model::FileParameters parameters(model::open_weights(source, config, *context.pool).tensors,
                                   config, *context.pool);
  const model::Inventory inventory = model::inventory(config);
  model::ModelConfig written = config;
  std::vector<DType> types;
  std::vector<tensor::TensorSpec> specs;
  const auto gguf_file = gguf::File::open(source);
  const bool has_blocks = std::ranges::any_of(
      gguf_file.tensors(), [](const auto& entry) { return gguf::is_quantised(entry.type); });
  written.torch_dtype = options.type.value_or(has_blocks ? DType::F32 : config.torch_dtype);
  for (const Parameter& parameter : inventory.parameters) {
    const bool is_small =
        parameter.shape.rank() == 1 || model::kind_of(parameter.role) == Kind::router;
    const TensorView elements = is_small ? parameters.tensor(parameter).elements : TensorView{};
    types.push_back(folder_type(parameter, elements, written.torch_dtype));
    specs.push_back({.name = parameter.name, .dtype = types.back(), .shape = parameter.shape});
  }
  store::FolderWriter writer(target, specs);
  writer.add_file("config.json", written.to_json().dump(2) + "\n");
  for (const std::string_view name : kTextFiles) {
    if (auto file = text::read_text_file(source, name, kMaxTextBytes)) {
      writer.add_file(std::string(name), file->bytes);
    }
  }
  const auto total = std::ssize(inventory.parameters);
  for (int64_t i = 0; i < total; ++i) {
    if (was_cancelled(options.cancelled)) return Outcome::cancelled;
    const auto idx = static_cast<std::size_t>(i);
    const Parameter& parameter = inventory.parameters[idx];
    write_parameter(parameter, parameters.tensor(parameter).elements, types[idx], writer,
                    *context.pool);
    parameters.release(parameter);
    progress(i + 1);
  }
  writer.commit();
  return Outcome::done;
}

}  // namespace dsmoe::infer
