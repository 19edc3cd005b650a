// Finds the template of a folder, and gives the template the variables transformers would give it.
#include "text/chat_template.h"

#include <cstdio>

#include "base/error.h"
#include "base/utf8.h"
#include "text/jinja/jinja_eval.h"
#include "text/text_files.h"
#include "text/tokenizer/tokenizer_config.h"

namespace dsmoe::text {
namespace {

// The one named "default" of a list of {name, template}.
const std::string& default_template(const Json& list, const std::string& what) {
  std::string names;
  for (const Json& entry : list) {
    const bool well_formed = entry.is_object() && entry.contains("name") &&
                             entry["name"].is_string() && entry.contains("template") &&
                             entry["template"].is_string();
    if (!well_formed) {
      fail(ErrorKind::input, "{}: expected a list of {{\"name\": string, \"template\": string}}",
           what);
    }
    const auto& name = entry["name"].get_ref<const std::string&>();
    if (name == "default") return entry["template"].get_ref<const std::string&>();
    names += fmt::format("{}{}", names.empty() ? "" : ", ", in_quotes(name));
  }
  fail(ErrorKind::input, "{}: no template is named \"default\"; found: {}", what,
       names.empty() ? "none" : names);
}

void check_messages(const OrderedJson& messages, const std::string& what) {
  if (!messages.is_array()) {
    fail(ErrorKind::input, "{}: messages must be a list, not {}", what, messages.type_name());
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) {
      fail(ErrorKind::input, "{}: messages[{}] must be an object, not {}", what, i,
           messages[i].type_name());
    }
  }
}

}  // namespace

ChatTemplate ChatTemplate::parse(std::string_view source, std::string_view what) {
  ChatTemplate result;
  result.source_ = source;
  result.parsed_ = std::make_shared<const jinja::Template>(jinja::parse(source, what));
  return result;
}

std::string ChatTemplate::render(const ChatInput& input) const {
  check_messages(input.messages, parsed_->what);
  if (!input.extra.is_object()) {
    fail(ErrorKind::input, "{}: extra variables must be an object, not {}", parsed_->what,
         input.extra.type_name());
  }
  OrderedJson variables = OrderedJson::object();
  variables["messages"] = input.messages;
  variables["add_generation_prompt"] = input.add_generation_prompt;
  // transformers always passes these two, as None when there are none: `is defined` holds for both.
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  if (input.bos_token) variables["bos_token"] = *input.bos_token;
  if (input.eos_token) variables["eos_token"] = *input.eos_token;
  for (const auto& [name, value] : input.extra.items()) variables[name] = value;
  return jinja::render(*parsed_, variables, {.today = date_});
}

std::optional<TextFile> find_chat_template(const std::filesystem::path& model) {
  if (auto file = read_text_file(model, "chat_template.jinja", jinja::kMaxTemplateBytes)) {
    return file;
  }
  const auto config = read_tokenizer_config(model);
  if (!config || !config->contains("chat_template")) return std::nullopt;
  const Json& entry = (*config)["chat_template"];
  const std::string what = (model / kTokenizerConfigFile).string() + ": chat_template";
  if (entry.is_null()) return std::nullopt;
  if (entry.is_string()) return TextFile{.bytes = entry.get<std::string>(), .what = what};
  if (entry.is_array()) return TextFile{.bytes = default_template(entry, what), .what = what};
  fail(ErrorKind::input, "{}: must be a string or a list, not {}", what, entry.type_name());
}

std::optional<ChatTemplate> load_chat_template(const std::filesystem::path& model) {
  const auto found = find_chat_template(model);
  if (!found) return std::nullopt;
  return ChatTemplate::parse(found->bytes, found->what);
}

std::chrono::year_month_day parse_date(const std::string& text) {
  using namespace std::chrono;
  if (text == "today") return floor<days>(system_clock::now());
  int y = 0, m = 0, d = 0, end = 0;
  const bool is_read = std::sscanf(text.c_str(), "%4d-%2d-%2d%n", &y, &m, &d, &end) == 3;
  const year_month_day date{year(y), month(static_cast<unsigned>(m)),
                            day(static_cast<unsigned>(d))};
  if (is_read && end == 10 && text.size() == 10 && y >= 1970 && m > 0 && d > 0 && date.ok()) {
    return date;
  }
  fail(ErrorKind::usage, "{}: expected a day such as 2026-11-20, or today", in_quotes(text));
}

std::string_view deepseek_chat_template() {
  return R"({{- bos_token -}}
{%- for message in messages -%}
  {%- if message['role'] == 'user' -%}
    {{- 'User: ' + message['content'] + '\n\n' -}}
  {%- elif message['role'] == 'assistant' -%}
    {{- 'Assistant: ' + message['content'] + eos_token -}}
  {%- elif message['role'] == 'system' -%}
    {{- message['content'] + '\n\n' -}}
  {%- else -%}
    {{- raise_exception('the roles are system, user and assistant, not ' ~ message['role']) -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- 'Assistant:' -}}
{%- endif -%}
)";
}

}  // namespace dsmoe::text
