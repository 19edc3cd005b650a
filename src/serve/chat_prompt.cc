// The template's errors become the request's.
#include "serve/chat_prompt.h"

#include "serve/api_error.h"

namespace dsmoe::serve {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// The prompt ends where the text of the last message does: the answer goes on with it. Templates
// may trim a text and write an end behind it; both are undone as transformers does.
std::string cut_behind_last(std::string prompt, const OrderedJson& messages) {
  const OrderedJson& content = messages.back()["content"];
  const std::string text = content.is_string() ? content.get<std::string>() : "";
  const std::string_view core = trim(text);
  const std::size_t at = core.empty() ? std::string::npos : prompt.rfind(core);
  if (at == std::string::npos) {
    refuse("continue_final_message",
           "continue_final_message: the last message has no text that the template shows as it is");
  }
  const std::size_t leading = static_cast<std::size_t>(core.data() - text.data());
  const std::string_view to_the_end = std::string_view(text).substr(leading);
  const bool is_whole = std::string_view(prompt).substr(at).starts_with(to_the_end);
  prompt.resize(at + (is_whole ? to_the_end.size() : core.size()));
  return prompt;
}

// The message behind "t.jinja: line 3, column 5: ...": where templates lie is nobody's business.
std::string reason_of(const std::string& text) {
  const std::size_t at = text.find(": line ");
  return at == std::string::npos ? text : text.substr(at + 2);
}

text::ToolMessages messages_for(const ChatRequest& chat, const ServedModel& model) {
  try {
    return text::with_tools(model.tool_form(), chat.messages, chat.tools.given);
  } catch (const Error& e) {
    const std::string text = e.what();
    throw ApiError(400, text, text.substr(0, text.find(": ")));
  }
}

std::string render_messages(const ChatRequest& chat, const ServedModel& model) {
  text::ToolMessages given = messages_for(chat, model);
  OrderedJson extra =
      chat.template_arguments.is_null() ? OrderedJson::object() : chat.template_arguments;
  if (!given.tools.is_null()) extra["tools"] = std::move(given.tools);
  try {
    return model.text().chat_template->render({.messages = std::move(given.messages),
                                               .add_generation_prompt = chat.add_generation_prompt,
                                               .bos_token = model.text().special.bos,
                                               .eos_token = model.text().special.eos,
                                               .extra = std::move(extra)});
  } catch (const Error& e) {
    throw ApiError(
        400, "messages: this model's chat template does not take them: " + reason_of(e.what()),
        "messages")
        .quoting();
  }
}

}  // namespace

std::string render_chat(const ChatRequest& chat, const ServedModel& model) {
  if (!model.text().chat_template) {
    throw ApiError(400,
                   "this model has no chat template; use /v1/completions, or start the server "
                   "with --chat-template FILE",
                   "messages");
  }
  const std::string prompt = render_messages(chat, model);
  return chat.continue_final_message ? cut_behind_last(prompt, chat.messages) : prompt;
}

}  // namespace dsmoe::serve
