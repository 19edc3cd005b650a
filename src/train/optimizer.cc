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
                     const GradientSets& gradients, FunctionRef<bool(const std::string&)> trains,
                     ParameterSource& initial, const OptimizerRule& rule, const Sharing& sharing)
    : context_(context), model_(model), rule_(rule), arena_("optimiser", context.table->allocator) {
  std::map<std::string, model::NamedGradient> trained;
  for (const model::NamedGradient& named : gradients.first().named) trained[named.name] = named;
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
  std::map<std::string, std::vector<Range>> slices;  // this rank's, ascending
  if (sharing.group != nullptr) {
    share(gradients, placements, trains, sharing);
    for (const std::size_t own : ranks_->own()) {
      const Slice& slice = ranks_->all()[own];
      slices[ranks_->tensors()[slice.tensor].name].push_back(
          {.begin = slice.begin, .end = slice.end, .is_slice = true});
    }
  }
  for (const auto& [name, gradient] : trained) {
    const int64_t size = parameters[gradient.parameter].shape.num_elements();
    const std::vector<Range> whole{{.begin = 0, .end = size}};
    for (const Range& range : ranks_&& gradient.gradient ? slices[name] : whole)
      add_tensor(gradient, placements.at(gradient.parameter), initial, range);
  }
  if (ranks_) {
    cut_into_pieces();
    return;
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

void Optimizer::share(const GradientSets& gradients, std::span<const Placements> placements,
                      FunctionRef<bool(const std::string&)> trains, const Sharing& sharing) {
  DSMOE_CHECK(model_.operand != DType::F64 && context_.table->device == tensor::Device::cpu,
              "ranks share updates in fp32 and in host memory yet");
  std::vector<RankSlices::Tensor> all;
  for (const model::Parameter& parameter : model::inventory(model_.config).parameters) {
    if (parameter.update == model::Update::by_load || !trains(parameter.name)) continue;
    RankSlices::Tensor& tensor = all.emplace_back();
    tensor.name = parameter.name;
    tensor.sliced.size = parameter.shape.num_elements();
    tensor.stored = model::stored_type(parameter, model_.operand);
    const int64_t experts = model_.config.n_routed_experts, ranks = sharing.layout.expert_ranks;
    for (int64_t e = 0; parameter.expert >= 0 && e < ranks; ++e) {
      if (moe::first_expert(experts, e, ranks) <= parameter.expert) tensor.sliced.expert_rank = e;
    }
  }
  std::ranges::sort(all, {}, &RankSlices::Tensor::name);
  const std::vector<model::NamedGradient>& named = gradients.first().named;
  for (std::size_t i = 0; i < named.size(); ++i) {
    const auto tensor = std::ranges::lower_bound(all, named[i].name, {}, &RankSlices::Tensor::name);
    DSMOE_CHECK(tensor != all.end() && tensor->name == named[i].name, "{} is not in the model",
                named[i].name);
    tensor->shards = gradients.shards_of(i);
    tensor->placements = placements[named[i].parameter];
  }
  ranks_ = std::make_unique<RankSlices>(context_, *sharing.group, sharing.layout, std::move(all));
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
                           ParameterSource& initial, const Range& range) {
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

  TensorView source = initial.tensor(parameter).elements;
  const DType scalar = this->scalar();
  if (range.is_slice) source = flat(source).rows(range.begin, range.end);
  TrainedTensor tensor{.name = name,
                       .shape = parameter.shape,
                       .begin = range.begin,
                       .master = arena_.tensor("masters", scalar, source.shape)};
  if (gradient.gradient) {
    tensor.first_moment = arena_.tensor("moments", scalar, source.shape);
    tensor.second_moment = arena_.tensor("moments", scalar, source.shape);
  }
  if (range.is_slice) {
    place.gradient = {.name = name,
                      .parameter = gradient.parameter,
                      .gradient = arena_.tensor("sums of gradients", scalar, source.shape),
                      .second_part = {},
                      .is_assigned = true};
    place.values = place.stored == scalar
                       ? tensor.master
                       : arena_.tensor("rounded slices", place.stored, source.shape);
    slice_sums_.push_back(place.gradient.gradient);
    slice_values_.push_back(place.values);
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

void Optimizer::cut_into_pieces() {
  constexpr int64_t kElements = 1 << 16;
  std::size_t most_bytes = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!places_[i].gradient.gradient) continue;
    const auto idx = static_cast<int64_t>(sums_.size());
    if (!ranks_)
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
  const int64_t room =
      kernels::round_up(std::max<int64_t>(static_cast<int64_t>(most_bytes), 1), 64);
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
  if (ranks_) {
    ranks_->reduce(slice_sums_);
    return ranks_->norm(slice_sums_);
  }
  if (host_sums_.empty()) return 0;
  if (all_.tensors) {
    kernels::gradient_square_sums(context_, all_);
  } else {
    for (const Place& place : places_) model::join_tied(*context_.pool, place.gradient);
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
    if (is_rounded(piece.tensor) && ranks_) {
      update.rounded = rows(places_[piece.tensor].values);
    } else if (is_rounded(piece.tensor)) {
      update.rounded = {.data = rounded_pieces_.rows(thread_idx, thread_idx + 1).data,
                        .dtype = places_[piece.tensor].stored,
                        .shape = update.weight.shape};
    }
    kernels::adamw_step(context_, update);
    if (gradient.second_part) {
      const TensorView second = rows(gradient.second_part);
      kernels::zero(context_, second.data, second.num_bytes());
    }
    if (!ranks_) place(piece.tensor, update.rounded ? update.rounded : update.weight, piece.begin);
  });
  if (ranks_) ranks_->hand_out(slice_values_);
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
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    // The model of slices was made from the same checkpoint.
    if (!places_[i].values) place(i, stored(i), 0);
  }
}

}  // namespace dsmoe::train
