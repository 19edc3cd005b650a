// The optimiser's step: norm, clip, AdamW, re-placing.
#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/thread_pool.h"
#include "kernels/matmul.h"
#include "kernels/memory.h"
#include "kernels/optimizer.h"
#include "kernels/pack.h"
#include "kernels/table.h"

namespace dsmoe::train {
namespace {

// base^exponent by multiplication alone: the same bits everywhere.
double power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result *= base;
    base *= base;
  }
  return result;
}

TensorView flat(TensorView view) {
  view.shape = {view.num_elements()};
  return view;
}

// Element by element, so that any split gives the same bits.
void convert(ThreadPool& pool, const TensorView& from, const TensorView& to) {
  constexpr int64_t kGrain = 1 << 14;
  const TensorView source = flat(from);
  const TensorView target = flat(to);
  parallel_for(pool, source.dim(0), kGrain, [&](int64_t begin, int64_t end) {
    kernels::convert_elements(source.rows(begin, end), target.rows(begin, end));
  });
}

}  // namespace

Optimizer::Optimizer(const Context& context, const model::Model& model,
                     const model::GradientBuffers& gradients,
                     FunctionRef<bool(const std::string&)> trains, ParameterSource& initial,
                     const OptimizerRule& rule)
    : context_(context), model_(model), rule_(rule), arena_("optimiser", context.table->allocator) {
  std::map<std::string, model::NamedGradient> trained;
  for (const model::NamedGradient& named : gradients.named) trained[named.name] = named;
  const std::vector<model::Parameter>& parameters = model.parameters.inventory.parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    if (parameters[i].update != model::Update::by_load || !trains(name)) continue;
    trained[name] = {.name = name, .parameter = i};
  }
  std::vector<Placements> placements(parameters.size());
  for (const model::Placement& placement : model.parameters.placements) {
    placements[placement.parameter].push_back(&placement);
  }
  for (const auto& [name, gradient] : trained) {
    add_tensor(gradient, placements.at(gradient.parameter), initial);
  }
  for (const Place& place : places_) {
    if (place.gradient.gradient) host_sums_.push_back(0);
  }
  if (host_sums_.empty()) return;
  square_sums_ = arena_.tensor("norm", DType::F64, {static_cast<int64_t>(host_sums_.size())});
  if (context.table->optimizer_step != nullptr) {
    describe_for_device();
  } else {
    cut_into_pieces();
  }
}

namespace {

// Every place of a stored tensor: a vector or table as it lies, rows of a row-major matrix.
void add_places(const model::Placement& placement, kernels::OptimizerTensor& tensor) {
  const auto add = [&](const kernels::OptimizerPlace& place) {
    const int idx = tensor.places[0].data != nullptr ? 1 : 0;
    DSMOE_CHECK(tensor.places[idx].data == nullptr, "{}: more than two places", placement.name);
    tensor.places[idx] = place;
  };
  if (placement.values) {
    add({.data = placement.values.data, .dtype = placement.values.dtype});
  }
  if (const kernels::WeightStack& stack = placement.weight) {
    DSMOE_CHECK(stack.layout == kernels::WeightLayout::row_major && stack.k == tensor.columns &&
                    !placement.transposed,
                "{}: the model holds it in another order", placement.name);
    add({.data = static_cast<char*>(stack.matrix(placement.matrix_idx)) +
                 static_cast<std::size_t>(stack.index(placement.row_begin, 0)) *
                     tensor::size_of(stack.dtype),
         .dtype = stack.dtype});
  }
}

}  // namespace

void Optimizer::describe_for_device() {
  std::vector<kernels::OptimizerTensor> described;
  std::vector<int32_t> tensor_of_tile;
  constexpr int64_t kSide = kernels::kOptimizerTile;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const model::NamedGradient& gradient = places_[i].gradient;
    if (!gradient.gradient) continue;
    const TrainedTensor& tensor = tensors_[i];
    const bool is_matrix = tensor.master.shape.rank() == 2;
    kernels::OptimizerTensor entry{
        .weight = tensor.master.as<float>(),
        .gradient = gradient.gradient.as<float>(),
        .second_gradient = gradient.second_part ? gradient.second_part.as<float>() : nullptr,
        .first_moment = tensor.first_moment.as<float>(),
        .second_moment = tensor.second_moment.as<float>(),
        .rows = is_matrix ? tensor.master.dim(0) : 1,
        .columns = is_matrix ? tensor.master.dim(1) : tensor.master.num_elements(),
        .first_tile = static_cast<int64_t>(tensor_of_tile.size()),
        .weight_decay = places_[i].weight_decay,
        .stored = places_[i].stored,
        .clear_gradient = !gradient.is_assigned};
    for (const model::Placement* placement : places_[i].placements) add_places(*placement, entry);
    entry.num_tiles = (entry.rows + kSide - 1) / kSide * ((entry.columns + kSide - 1) / kSide);
    tensor_of_tile.insert(tensor_of_tile.end(), static_cast<std::size_t>(entry.num_tiles),
                          static_cast<int32_t>(described.size()));
    described.push_back(entry);
  }
  all_.square_sums = square_sums_;
  all_.tensors = arena_.tensor("list of tensors", DType::U8,
                               {static_cast<int64_t>(described.size()),
                                static_cast<int64_t>(sizeof(kernels::OptimizerTensor))});
  all_.tensor_of_tile =
      arena_.tensor("list of tensors", DType::I32, {static_cast<int64_t>(tensor_of_tile.size())});
  kernels::upload(context_, described.data(), all_.tensors);
  kernels::upload(context_, tensor_of_tile.data(), all_.tensor_of_tile);
}

void Optimizer::add_tensor(const model::NamedGradient& gradient, const Placements& placements,
                           ParameterSource& initial) {
  const std::string& name = gradient.name;
  const model::Parameter& parameter = model_.parameters.inventory.parameters[gradient.parameter];
  DSMOE_CHECK(parameter.name == name, "the model has {} where gradients have {}", parameter.name,
              name);
  Place place{.placements = placements,
              .gradient = gradient,
              .stored = model::stored_type(parameter, model_.operand)};
  if (parameter.update == model::Update::decayed) {
    place.weight_decay = static_cast<float>(rule_.weight_decay);
  }
  for (int64_t layer = 0; layer < parameter.layer; ++layer) {
    if (model_.config.is_moe_layer(layer)) ++place.moe_layer_idx;
  }

  const TensorView source = initial.tensor(parameter).elements;
  const DType scalar = model_.operand == DType::F64 ? DType::F64 : DType::F32;
  TrainedTensor tensor{.name = name, .master = arena_.tensor("masters", scalar, source.shape)};
  if (gradient.gradient) {
    tensor.first_moment = arena_.tensor("moments", scalar, source.shape);
    tensor.second_moment = arena_.tensor("moments", scalar, source.shape);
  }
  std::vector<std::byte> values(tensor.master.num_bytes());
  TensorView host = tensor.master;
  host.data = values.data();
  host.device = tensor::Device::cpu;
  convert(*context_.pool, source, host);
  kernels::upload(context_, values.data(), tensor.master);
  initial.release(parameter);
  tensors_.push_back(tensor);
  places_.push_back(place);
}

void Optimizer::join_tied_gradients() {
  for (const Place& place : places_) {
    const TensorView& second = place.gradient.second_part;
    if (!second) continue;
    const TensorView& first = place.gradient.gradient;
    const auto add = [&]<class S>(S* sum, const S* part) {
      parallel_for(*context_.pool, first.num_elements(), 1 << 14, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) sum[i] += part[i];
      });
    };
    if (first.dtype == DType::F64) {
      add(first.as<double>(), second.as<double>());
    } else {
      add(first.as<float>(), second.as<float>());
    }
  }
}

void Optimizer::cut_into_pieces() {
  constexpr int64_t kElements = 1 << 16;
  std::size_t most_bytes = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!places_[i].gradient.gradient) continue;
    const auto idx = static_cast<int64_t>(sums_.size());
    sums_.push_back({.x = places_[i].gradient.gradient, .out = square_sums_.rows(idx, idx + 1)});
    const TensorView& master = tensors_[i].master;
    const int64_t rows = master.dim(0);
    const int64_t columns = master.num_elements() / std::max<int64_t>(rows, 1);
    // Whole panels where the tensor begins with one.
    const int64_t step = kernels::round_up(
        std::max<int64_t>(kElements / std::max<int64_t>(columns, 1), 1), kernels::kPanelWidth);
    for (int64_t begin = 0; begin < rows; begin += step) {
      pieces_.push_back({i, begin, std::min(rows, begin + step)});
      most_bytes = std::max(most_bytes, master.rows(begin, pieces_.back().end).num_bytes());
    }
  }
  const int64_t room = kernels::round_up(static_cast<int64_t>(most_bytes), 64);
  rounded_pieces_ =
      arena_.tensor("rounded pieces", DType::U8, {context_.pool->num_threads(), room});
}

// Tensor by tensor, by all threads where it is large; else a thread takes one after the other.
void Optimizer::sum_squares() {
  const auto is_large = [](const kernels::SumOfSquares& sum) {
    return sum.x.num_elements() > (int64_t{1} << 22);
  };
  for (const kernels::SumOfSquares& sum : sums_) {
    if (is_large(sum)) kernels::sum_of_squares(context_, sum);
  }
  in_turns(*context_.pool, sums_.size(), [&](std::size_t idx, int) {
    if (!is_large(sums_[idx])) kernels::sum_of_squares(context_, sums_[idx]);
  });
}

double Optimizer::gradient_norm() {
  if (host_sums_.empty()) return 0;
  if (all_.tensors) {
    kernels::gradient_square_sums(context_, all_);
  } else {
    join_tied_gradients();
    sum_squares();
  }
  kernels::download(context_, square_sums_, host_sums_.data());
  double total = 0;
  for (const double sum : host_sums_) total += sum;
  return std::sqrt(total);
}

double Optimizer::step(double lr) {
  const FlushDenormals flush;
  const double norm = gradient_norm();
  if (!std::isfinite(norm)) {
    fail(ErrorKind::input,
         "step {}: the gradient's norm is {}: training has diverged; resume from the last "
         "checkpoint with a lower --lr",
         steps_done_ + 1, norm);
  }
  const double scale = rule_.clip > 0 && norm > rule_.clip ? rule_.clip / norm : 1.0;
  ++steps_done_;
  kernels::AdamwStep update{.gradient_scale = static_cast<float>(scale),
                            .lr = static_cast<float>(lr),
                            .beta1 = static_cast<float>(rule_.beta1),
                            .beta2 = static_cast<float>(rule_.beta2),
                            .eps = static_cast<float>(rule_.eps)};
  // From the rounded betas, which the moments are made with.
  update.correction1 = static_cast<float>(1 - power(update.beta1, steps_done_));
  update.correction2 = static_cast<float>(1 - power(update.beta2, steps_done_));
  if (all_.tensors) {
    all_.rule = update;
    kernels::optimizer_step(context_, all_);
  } else {
    step_pieces(update);
  }
  return norm;
}

void Optimizer::step_pieces(const kernels::AdamwStep& rule) {
  in_turns(*context_.pool, pieces_.size(), [&](std::size_t idx, int thread_idx) {
    const Piece& piece = pieces_[idx];
    const TrainedTensor& tensor = tensors_[piece.tensor];
    const model::NamedGradient& gradient = places_[piece.tensor].gradient;
    const auto rows = [&](const TensorView& view) { return view.rows(piece.begin, piece.end); };
    kernels::AdamwStep update = rule;
    update.weight = rows(tensor.master);
    update.gradient = rows(gradient.gradient);
    update.first_moment = rows(tensor.first_moment);
    update.second_moment = rows(tensor.second_moment);
    update.weight_decay = places_[piece.tensor].weight_decay;
    update.clear_gradient = !gradient.is_assigned;
    if (is_rounded(piece.tensor)) {
      update.rounded = {.data = rounded_pieces_.rows(thread_idx, thread_idx + 1).data,
                        .dtype = places_[piece.tensor].stored,
                        .shape = update.weight.shape};
    }
    kernels::adamw_step(context_, update);
    if (gradient.second_part) {
      const TensorView second = rows(gradient.second_part);
      kernels::zero(context_, second.data, second.num_bytes());
    }
    place(piece.tensor, update.rounded ? update.rounded : update.weight, piece.begin);
  });
}

TensorView Optimizer::stored(std::size_t idx) {
  TensorView master = tensors_[idx].master;
  if (master.device != tensor::Device::cpu) {
    downloaded_.resize(std::max(downloaded_.size(), master.num_bytes()));
    kernels::download(context_, master, downloaded_.data());
    master.data = downloaded_.data();
    master.device = tensor::Device::cpu;
  }
  if (!is_rounded(idx)) return master;
  TensorView stored{.dtype = places_[idx].stored, .shape = master.shape};
  rounded_.resize(std::max(rounded_.size(), stored.num_bytes()));
  stored.data = rounded_.data();
  if (tensors_[idx].master.device == tensor::Device::cpu) {
    kernels::round_values(context_, {.x = master, .out = stored});
  } else {
    convert(*context_.pool, master, stored);
  }
  return stored;
}

void Optimizer::place(std::size_t idx, const TensorView& values, int64_t row_begin) const {
  for (const model::Placement* placement : places_[idx].placements) {
    model::place_tensor(context_, *placement, {.elements = values, .row_begin = row_begin});
  }
}

void Optimizer::update_selection_bias(std::span<const std::vector<int64_t>> load) {
  const FlushDenormals flush;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (places_[i].gradient.gradient) continue;
    const std::vector<int64_t>& counts = load[static_cast<std::size_t>(places_[i].moe_layer_idx)];
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    const auto num_experts = static_cast<int64_t>(counts.size());
    const auto move = [&]<class S>(S* bias) {
      for (int64_t e = 0; e < num_experts; ++e) {
        const int64_t excess = counts[static_cast<std::size_t>(e)] * num_experts - total;
        if (excess != 0) bias[e] += static_cast<S>(excess < 0 ? rule_.bias_rate : -rule_.bias_rate);
      }
    };
    const TensorView& master = tensors_[i].master;
    if (master.device != tensor::Device::cpu) {
      std::vector<float> bias(counts.size());
      kernels::download(context_, master, bias.data());
      move(bias.data());
      kernels::upload(context_, bias.data(), master);
    } else if (master.dtype == DType::F64) {
      move(master.as<double>());
    } else {
      move(master.as<float>());
    }
    place(i, stored(i), 0);
  }
}

void Optimizer::resume_after(int64_t steps_done) {
  steps_done_ = steps_done;
  for (std::size_t i = 0; i < tensors_.size(); ++i) place(i, stored(i), 0);
}

}  // namespace dsmoe::train
