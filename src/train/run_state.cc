// Masters and moments to and from train_state.safetensors.
#include "train/run_state.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/engine_version.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "kernels/memory.h"
#include "kernels/table.h"
#include "model/file_layout.h"
#include "store/safetensors.h"
#include "store/shared_tensors.h"

namespace dsmoe::train {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 1;

struct StatePart {
  std::string name;
  TensorView view;
};

std::vector<StatePart> parts_of(const TrainedTensor& tensor) {
  std::vector<StatePart> parts{{"master." + tensor.name, tensor.master}};
  if (tensor.first_moment) {
    parts.push_back({"first_moment." + tensor.name, tensor.first_moment});
    parts.push_back({"second_moment." + tensor.name, tensor.second_moment});
  }
  return parts;
}

std::string device_of(const Context& context) {
  return context.table->device == tensor::Device::cpu ? "cpu" : "cuda";
}

// A device's tensor in host memory.
TensorView on_host(const Context& context, const TensorView& view, std::vector<std::byte>& buffer) {
  if (view.device == tensor::Device::cpu) return view;
  buffer.resize(view.num_bytes());
  kernels::download(context, view, buffer.data());
  TensorView host = view;
  host.data = buffer.data();
  host.device = tensor::Device::cpu;
  return host;
}

// "seed: the checkpoint has 1, this run has 2"
std::vector<std::string> differences(const Json& stored, const Json& wanted) {
  std::vector<std::string> found;
  const auto value = [](const Json& object, const std::string& key) {
    return object.is_object() && object.contains(key) ? object[key].dump() : "nothing";
  };
  Json keys = wanted;
  if (stored.is_object()) keys.update(stored);
  for (const auto& [key, ignored] : keys.items()) {
    const std::string before = value(stored, key), now = value(wanted, key);
    if (before != now) {
      found.push_back(fmt::format("{}: the checkpoint has {}, this run has {}", key, before, now));
    }
  }
  return found;
}

// The identity's differences, the config's key by key instead of its hash.
std::vector<std::string> identity_differences(const fs::path& folder, Json stored,
                                              const RunIdentity& identity) {
  if (stored.is_object() && !identity.former_data.empty() &&
      stored.value("data", Json()) == identity.former_data) {
    stored["data"] = identity.fixed.at("data");
  }
  std::vector<std::string> found = differences(stored, identity.fixed);
  const auto hash = std::find_if(found.begin(), found.end(), [](const std::string& difference) {
    return difference.starts_with("config: ");
  });
  if (hash == found.end()) return found;
  const fs::path path = folder / "config.json";
  const Json config = parse_json(read_small_file(path, model::kMaxConfigBytes), path.string());
  const std::vector<std::string> keys = differences(config, identity.config);
  if (keys.empty()) return found;
  const auto place = found.erase(hash);
  std::vector<std::string> lines;
  for (const std::string& key : keys) lines.push_back("config: " + key);
  found.insert(place, lines.begin(), lines.end());
  return found;
}

}  // namespace

namespace {

// A tensor of the state on its way into a file, whole or a slice.
void write_state(const Optimizer& optimizer, const TrainedTensor& tensor,
                 FunctionRef<void(const std::string& name, const TensorView& view)> write) {
  std::vector<std::byte> buffer;
  for (const StatePart& part : parts_of(tensor))
    write(part.name, on_host(optimizer.context(), part.view, buffer));
}

store::CheckpointContent content_of(const SaveRequest& request, const Optimizer& optimizer,
                                    const std::set<std::string>& trained) {
  store::CheckpointContent content{.model = model::written_tensors(request.config),
                                   .state_metadata = {{"format", "pt"},
                                                      {"train_state", std::to_string(kFormat)},
                                                      {"step", std::to_string(request.step)},
                                                      {"device", device_of(optimizer.context())},
                                                      {"engine", std::to_string(kEngineVersion)},
                                                      {"identity", request.identity.fixed.dump()},
                                                      {"plan", request.identity.plan.dump()}}};
  const tensor::DType scalar = optimizer.scalar();
  for (const model::Parameter& parameter : model::inventory(request.config).parameters) {
    if (!trained.contains(parameter.name)) continue;
    content.state.push_back({"master." + parameter.name, scalar, parameter.shape});
    if (parameter.update == model::Update::by_load) continue;
    for (const char* moment : {"first_moment.", "second_moment."})
      content.state.push_back({moment + parameter.name, scalar, parameter.shape});
  }
  return content;
}

// Names of all trained tensors; and those that ranks keep in slices.
std::set<std::string> sliced_names(const Optimizer& optimizer) {
  std::set<std::string> names;
  if (optimizer.ranks() == nullptr) return names;
  for (const RankSlices::Tensor& tensor : optimizer.ranks()->tensors()) names.insert(tensor.name);
  return names;
}
std::set<std::string> trained_names(const Optimizer& optimizer) {
  std::set<std::string> names = sliced_names(optimizer);
  for (const TrainedTensor& tensor : optimizer.tensors()) names.insert(tensor.name);
  return names;
}

// All but slices: what is whole here, and what does not train.
std::unique_ptr<store::CheckpointWriter> begin_checkpoint(const SaveRequest& request,
                                                          Optimizer& optimizer,
                                                          ParameterSource& frozen) {
  const std::set<std::string> trained = trained_names(optimizer), sliced = sliced_names(optimizer);
  auto writer = std::make_unique<store::CheckpointWriter>(request.run, request.step,
                                                          content_of(request, optimizer, trained));
  writer->add_file("config.json", request.config.to_json().dump(2) + "\n");
  for (const auto& [name, bytes] : request.files) writer->add_file(name, bytes);
  std::map<std::string, std::size_t> whole;
  for (std::size_t i = 0; i < optimizer.tensors().size(); ++i) {
    const TrainedTensor& tensor = optimizer.tensors()[i];
    if (sliced.contains(tensor.name)) continue;
    whole[tensor.name] = i;
    write_state(optimizer, tensor, [&](const std::string& name, const TensorView& view) {
      writer->write_state(name, view);
    });
  }
  for (const model::Parameter& parameter : model::inventory(request.config).parameters) {
    if (sliced.contains(parameter.name)) continue;
    if (const auto found = whole.find(parameter.name); found != whole.end()) {
      writer->write_model(parameter.name, optimizer.stored(found->second));
    } else {
      writer->write_model(parameter.name, frozen.tensor(parameter).elements);
      frozen.release(parameter);
    }
  }
  return writer;
}

// This rank's slices, into the files that the first rank has begun. Returns the bytes written.
uint64_t write_slices(Optimizer& optimizer, std::span<const fs::path> files) {
  const std::set<std::string> sliced = sliced_names(optimizer);
  store::SharedTensors shared(files);
  const auto write = [&](const std::string& name, const TensorView& view, int64_t begin) {
    shared.write(name, static_cast<uint64_t>(begin) * tensor::size_of(view.dtype),
                 std::span(static_cast<const std::byte*>(view.data), view.num_bytes()));
  };
  for (std::size_t i = 0; i < optimizer.tensors().size(); ++i) {
    const TrainedTensor& tensor = optimizer.tensors()[i];
    if (!sliced.contains(tensor.name)) continue;
    write_state(optimizer, tensor, [&](const std::string& name, const TensorView& view) {
      write(name, view, tensor.begin);
    });
    write(tensor.name, optimizer.stored(i), tensor.begin);
  }
  return shared.finish();
}

// The first rank's text comes to all.
std::string broadcast_text(comm::Group& group, std::string_view what, std::string text) {
  auto size = static_cast<int64_t>(text.size());
  group.broadcast(what, 0, std::as_writable_bytes(std::span(&size, 1)));
  text.resize(static_cast<std::size_t>(size));
  group.broadcast(what, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

void save_checkpoint(const SaveRequest& request, Optimizer& optimizer, ParameterSource& frozen) {
  if (optimizer.ranks() == nullptr) return begin_checkpoint(request, optimizer, frozen)->commit();

  comm::Group& group = optimizer.ranks()->group();
  std::unique_ptr<store::CheckpointWriter> writer;
  Json list = Json::array();
  if (group.rank() == 0) {
    writer = begin_checkpoint(request, optimizer, frozen);
    const std::set<std::string> sliced = sliced_names(optimizer);
    const auto is_sliced = [&](const std::string& name) { return sliced.contains(name); };
    const auto is_state_of_sliced = [&](const std::string& name) {
      return is_sliced(name.substr(name.find('.') + 1));
    };
    store::CheckpointWriter::SharedFiles files = writer->share(is_sliced, is_state_of_sliced);
    for (const fs::path& path : files.model) list.push_back(path.string());
    list.push_back(files.state.string());
  }
  const std::string text = broadcast_text(group, "files of the checkpoint", list.dump());
  std::vector<fs::path> files;
  for (const Json& path : parse_json(text, "files of the checkpoint"))
    files.emplace_back(path.get<std::string>());
  const uint64_t own = write_slices(optimizer, files);
  const std::vector<uint64_t> written = group.gather("parts of the checkpoint", own);
  if (writer) {
    uint64_t expected = 0;
    for (const RankSlices::Tensor& tensor : optimizer.ranks()->tensors()) {
      const auto size = static_cast<uint64_t>(tensor.sliced.size);
      expected += size * (3 * sizeof(float) + tensor::size_of(tensor.stored));
    }
    const uint64_t sum = std::accumulate(written.begin(), written.end(), uint64_t{0});
    DSMOE_CHECK(sum == expected, "ranks wrote {} bytes of a checkpoint, of {}", sum, expected);
    writer->commit();
  }
  group.barrier("the checkpoint is whole");
}

std::vector<std::string> restore_checkpoint(const Context& context, const fs::path& folder,
                                            const RunIdentity& identity, Optimizer& optimizer) {
  const fs::path path = folder / store::kTrainStateName;
  const auto file = store::SafetensorsFile::open(path);
  const auto text = [&](const std::string& key) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end()) {
      fail(ErrorKind::input, "{}: no \"{}\" in its metadata: not a training state", path.string(),
           key);
    }
    return found->second;
  };
  if (text("train_state") != std::to_string(kFormat)) {
    fail(ErrorKind::input, "{}: training state of format {}, this program reads {}", path.string(),
         text("train_state"), kFormat);
  }
  const std::vector<std::string> faults =
      identity_differences(folder, parse_json(text("identity"), path.string()), identity);
  if (!faults.empty()) {
    std::string list;
    for (const std::string& fault : faults) list += "\n  " + fault;
    fail(ErrorKind::input,
         "{}: the checkpoint belongs to another run:{}\nresume with the same options and files, or "
         "choose another --out",
         folder.string(), list);
  }
  const std::optional<int64_t> step = store::checkpoint_step(folder.filename().string());
  if (!step || text("step") != std::to_string(*step)) {
    fail(ErrorKind::input, "{}: holds step {}, which is not what the folder's name says",
         path.string(), text("step"));
  }
  std::vector<std::byte> buffer;
  for (const TrainedTensor& tensor : optimizer.tensors()) {
    for (const StatePart& part : parts_of(tensor)) {
      const store::TensorEntry& entry = file.at(part.name);
      if (entry.dtype != part.view.dtype || entry.shape != tensor.shape) {
        fail(ErrorKind::input, "{}: {} is {} {}, expected {} {}", path.string(), part.name,
             tensor::name_of(entry.dtype), to_string(entry.shape), tensor::name_of(part.view.dtype),
             to_string(tensor.shape));
      }
      buffer.resize(part.view.num_bytes());
      file.read(entry, buffer, static_cast<uint64_t>(tensor.begin) * tensor::size_of(entry.dtype));
      kernels::upload(context, buffer.data(), part.view);
    }
  }
  optimizer.resume_after(*step);
  const auto made_on = file.metadata().find("device");  // absent in states of earlier programs
  if (made_on != file.metadata().end() && made_on->second != device_of(context)) {
    log_warning("{} was made on {}, the run goes on on {}: with other bits than there",
                folder.string(), made_on->second, device_of(context));
  }
  const auto made_by = file.metadata().find("engine");  // absent likewise
  if (made_by != file.metadata().end() && made_by->second != std::to_string(kEngineVersion)) {
    log_warning(
        "{} was made by engine version {}, the run goes on with version {}: with other bits than "
        "there (CHANGELOG.md says why)",
        folder.string(), made_by->second, kEngineVersion);
  }
  return differences(parse_json(text("plan"), path.string()), identity.plan);
}

}  // namespace dsmoe::train
