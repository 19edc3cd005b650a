// A conversation -> the prompt text a model was trained on, through its Hugging Face chat template.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/text_files.h"

namespace dsmoe::text {

namespace jinja {
struct Template;
struct Limits;
}  // namespace jinja

// Order matters to a template that prints or walks a dict. Json converts to it, with its keys
// sorted.
using dsmoe::OrderedJson;

struct ChatInput {
  OrderedJson messages =
      OrderedJson::array();  // of objects: role, content, whatever else the template reads
  bool add_generation_prompt = true;
  std::optional<std::string> bos_token = {};  // nullopt: undefined in the template
  std::optional<std::string> eos_token = {};
  OrderedJson extra = OrderedJson::object();  // further variables; they win over all of the above
};

// Immutable; render() may run in several threads at once. docs/chat-templates.md lists the
// supported Jinja.
class ChatTemplate {
 public:
  // `what` names the template in messages: a file name. Throws Error(input) with line and column
  // for what is malformed or not supported.
  static ChatTemplate parse(std::string_view source, std::string_view what);

  // Throws Error(input) when the template refuses the conversation, uses what is undefined, or
  // exceeds its limits (about 100 ms of work for a short conversation, more for a long one; 64 MiB
  // of output).
  std::string render(const ChatInput& input) const;

  const std::string& source() const { return source_; }

  // The day that strftime_now tells; without one a template has no such function.
  void set_date(std::optional<std::chrono::year_month_day> date) { date_ = date; }

 private:
  std::string source_;
  std::optional<std::chrono::year_month_day> date_;
  std::shared_ptr<const jinja::Template> parsed_;
};

// The source of a model's template: chat_template.jinja, else "chat_template" of
// tokenizer_config.json (a string, or a list of {name, template} with one named "default"), or what
// a GGUF file's metadata holds; nullopt when there is none.
std::optional<TextFile> find_chat_template(const std::filesystem::path& model);
std::optional<ChatTemplate> load_chat_template(const std::filesystem::path& model);

// "2026-11-20", or "today", which is that of UTC; throws Error(usage).
std::chrono::year_month_day parse_date(const std::string& text);

// The format DeepSeek's chat models were trained on; `train` writes it into the folders it makes.
std::string_view deepseek_chat_template();

}  // namespace dsmoe::text
