// Masters and moments to and from train_state.safetensors.
#include "train/run_state.h"

#include <algorithm>

#include "base/engine_version.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "kernels/memory.h"
#include "kernels/table.h"
#include "model/file_layout.h"
#include "store/safetensors.h"

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

void save_checkpoint(const SaveRequest& request, Optimizer& optimizer, ParameterSource& frozen) {
  store::CheckpointContent content{.model = model::written_tensors(request.config),
                                   .state_metadata = {{"format", "pt"},
                                                      {"train_state", std::to_string(kFormat)},
                                                      {"step", std::to_string(request.step)},
                                                      {"device", device_of(optimizer.context())},
                                                      {"engine", std::to_string(kEngineVersion)},
                                                      {"identity", request.identity.fixed.dump()},
                                                      {"plan", request.identity.plan.dump()}}};
  std::map<std::string, std::size_t> trained;
  for (std::size_t i = 0; i < optimizer.tensors().size(); ++i) {
    trained[optimizer.tensors()[i].name] = i;
    for (const StatePart& part : parts_of(optimizer.tensors()[i])) {
      content.state.push_back({part.name, part.view.dtype, part.view.shape});
    }
  }
  store::CheckpointWriter writer(request.run, request.step, std::move(content));
  writer.add_file("config.json", request.config.to_json().dump(2) + "\n");
  for (const auto& [name, bytes] : request.files) writer.add_file(name, bytes);
  std::vector<std::byte> buffer;
  for (const TrainedTensor& tensor : optimizer.tensors()) {
    for (const StatePart& part : parts_of(tensor)) {
      writer.write_state(part.name, on_host(optimizer.context(), part.view, buffer));
    }
  }
  for (const model::Parameter& parameter : model::inventory(request.config).parameters) {
    const auto found = trained.find(parameter.name);
    if (found != trained.end()) {
      writer.write_model(parameter.name, optimizer.stored(found->second));
    } else {
      writer.write_model(parameter.name, frozen.tensor(parameter).elements);
      frozen.release(parameter);
    }
  }
  writer.commit();
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
      if (entry.dtype != part.view.dtype || entry.shape != part.view.shape) {
        fail(ErrorKind::input, "{}: {} is {} {}, expected {} {}", path.string(), part.name,
             tensor::name_of(entry.dtype), to_string(entry.shape), tensor::name_of(part.view.dtype),
             to_string(part.view.shape));
      }
      buffer.resize(part.view.num_bytes());
      file.read(entry, buffer);
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
