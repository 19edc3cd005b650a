// dsmoe chat: a conversation in a terminal; what was said stays in the KV cache.
#include <filesystem>
#include <optional>
#include <set>

#include "base/atomic_file.h"
#include "base/log.h"
#include "base/readable.h"
#include "commands/command.h"
#include "commands/generate_options.h"
#include "commands/options.h"
#include "commands/text_side.h"
#include "commands/token_list.h"
#include "infer/sequence/stop.h"
#include "terminal/interrupt.h"
#include "terminal/line_editor.h"
#include "terminal/output.h"
#include "text/chat_template.h"
#include "text/reasoning.h"
#include "text/tokenizer/tokenizer_config.h"

namespace dsmoe::app {
namespace {

struct ChatCommand {
  CommonOptions common;
  SamplingFlags sampling;
  std::string chat_template, template_date, system;
};

constexpr std::string_view kHelp =
    "  /reset      forget the conversation\n"
    "  /save FILE  write the conversation as JSON\n"
    "  /help       this list\n"
    "  /exit       leave (or ctrl-d)\n"
    "  ctrl-c stops an answer; up and down recall what was typed\n";

text::ChatTemplate find_template(const ChatCommand& command) {
  if (!command.chat_template.empty()) {
    return text::ChatTemplate::parse(read_text_file(command.chat_template), command.chat_template);
  }
  auto found = text::load_chat_template(command.common.model);
  if (!found) {
    fail(ErrorKind::input,
         "{}: no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); "
         "name one with --chat-template FILE",
         command.common.model);
  }
  return std::move(*found);
}

text::ChatTemplate load_template(const ChatCommand& command) {
  text::ChatTemplate found = find_template(command);
  if (!command.template_date.empty()) found.set_date(text::parse_date(command.template_date));
  return found;
}

class Chat {
 public:
  Chat(const ChatCommand& command, infer::Session& session, const TextSide& text,
       infer::GenerateOptions options)
      : command_(command),
        session_(session),
        text_(text),
        options_(std::move(options)),
        template_(load_template(command)),
        special_(text::load_special_tokens(command.common.model)) {
    reset();
  }

  int run() {
    const InterruptScope interrupt;
    options_.cancelled = &InterruptScope::flag();
    if (editor_.is_terminal()) {
      log_info("{}: /help lists commands, ctrl-d leaves", command_.common.model);
    }
    for (;;) {
      InterruptScope::clear();
      const LineEditor::Result line = editor_.read("> ");
      if (line.state == LineState::interrupted) {
        if (!editor_.is_terminal()) return kInterrupted;
        continue;
      }
      if (line.state == LineState::closed) return InterruptScope::flag() ? kInterrupted : kDone;
      if (line.text.find_first_not_of(' ') == std::string::npos) continue;
      if (line.text == "/exit" || line.text == "/quit") return kDone;
      // A turn that fails must not end the conversation: the third place that catches.
      try {
        if (line.text.starts_with('/')) {
          obey(line.text);
        } else if (!answer(line.text)) {
          return kInterrupted;
        }
      } catch (const Error& e) {
        if (e.kind() == ErrorKind::internal || !editor_.is_terminal()) throw;
        log_warning("{}", e.what());
      }
    }
  }

 private:
  void reset() {
    messages_ = OrderedJson::array();
    saved_.clear();
    if (!command_.system.empty()) add("system", command_.system);
  }

  void add(const char* role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }

  void obey(const std::string& line) {
    const std::size_t space = line.find(' ');
    const std::string word = line.substr(0, space);
    const std::size_t rest = line.find_first_not_of(' ', space);
    const std::string argument =
        space == std::string::npos || rest == std::string::npos ? "" : line.substr(rest);
    if (word == "/reset") {
      reset();
      log_info("the conversation is forgotten");
    } else if (word == "/help") {
      print("{}", kHelp);
      flush_output();
    } else if (word == "/save") {
      save(argument);
    } else {
      fail(ErrorKind::input, "{}: no such command; /help lists them", word);
    }
  }

  // Never over a file that was there before this conversation.
  void save(const std::string& file) {
    if (file.empty()) fail(ErrorKind::input, "/save needs a file name: /save chat.json");
    if (messages_.empty() || messages_.back()["role"] == "system") {
      fail(ErrorKind::input, "nothing was said yet: there is nothing to save");
    }
    if (saved_.count(file) == 0 && std::filesystem::exists(file)) {
      fail(ErrorKind::input, "{} exists; choose another name", file);
    }
    atomic_write_file(file,
                      messages_.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
    saved_.insert(file);
    log_info("{}: {} messages", file, messages_.size());
  }

  std::string prompt_with(const std::string& user) {
    OrderedJson messages = messages_;
    messages.push_back({{"role", "user"}, {"content", user}});
    return template_.render(
        {.messages = messages, .bos_token = special_.bos, .eos_token = special_.eos});
  }

  // In a terminal thoughts are dim and no part of what was said; elsewhere the answer is shown as
  // it comes.
  std::optional<text::ReasoningReader> reasoning_of(const std::string& prompt) const {
    const text::ReasoningMarkers* markers = text::find_reasoning(template_.source());
    if (markers == nullptr || !stdout_has_colour()) return std::nullopt;
    return text::ReasoningReader(*markers, text::opens_reasoning(*markers, prompt));
  }

  // False when there is no terminal and the answer was interrupted.
  bool answer(const std::string& user) {
    const std::string rendered = prompt_with(user);
    const std::vector<int32_t> prompt = text_.encode(rendered, AroundText::nothing);
    if (static_cast<int64_t>(prompt.size()) > session_.max_positions()) {
      fail(ErrorKind::input,
           "the conversation has {} tokens, the context holds {}; /reset starts a new one",
           prompt.size(), session_.max_positions());
    }
    TextSide::Stream stream(text_);
    infer::StopStrings stops(command_.sampling.stops);
    std::string said, thought;
    const auto say = [&](std::string piece) {
      if (said.empty()) piece.erase(0, piece.find_first_not_of(" \n"));  // templates end before it
      said += piece;
      write_output(for_terminal(piece));
      flush_output();
    };
    std::optional<text::ReasoningReader> reasoning = reasoning_of(rendered);
    const auto show_parts = [&](const text::SplitAnswer& part) {
      if (!part.reasoning.empty()) {
        thought += part.reasoning;
        print("\x1b[2m{}\x1b[0m", for_terminal(part.reasoning));
        flush_output();
      }
      if (part.text.empty()) return;
      if (said.empty() && !thought.empty()) print("\n\n");
      say(part.text);
    };
    const auto show = [&](std::string piece) {
      if (!reasoning) return say(std::move(piece));
      show_parts(reasoning->push(piece));
    };
    const infer::Generation generation =
        infer::generate(session_, prompt, options_, [&](int32_t token) {
          show(stops.push(stream.push(token)));
          return stops.stopped() ? infer::Next::stop : infer::Next::more;
        });
    if (!stops.stopped()) show(stops.push(stream.finish()));
    if (!stops.stopped()) show(stops.finish());
    if (reasoning) show_parts(reasoning->finish());
    const bool cancelled = generation.reason == infer::FinishReason::cancelled;
    print("{}\n\n", cancelled ? " [stopped]" : "");
    flush_output();
    log_info("{}", describe_speed(generation, options_.seed));
    if (generation.reason == infer::FinishReason::context) {
      log_info("the context of {} tokens is full: the answer ends there; /reset starts a new one",
               session_.max_positions());
    }
    add("user", user);
    add("assistant", said);
    if (!thought.empty()) messages_.back()["reasoning_content"] = thought;
    return !cancelled || editor_.is_terminal();
  }

  const ChatCommand& command_;
  infer::Session& session_;
  const TextSide& text_;
  infer::GenerateOptions options_;
  text::ChatTemplate template_;
  text::SpecialTokenTexts special_;
  LineEditor editor_;
  OrderedJson messages_;
  std::set<std::string> saved_;
};

int run_chat(const ChatCommand& command) {
  if (command.common.quiet) set_log_level(LogLevel::quiet);
  const model::ModelConfig config = model::read_config(command.common.model);
  const infer::GenerateOptions options = generate_options(command.sampling, config);
  const TextSide text(command.common.model);
  text.require_tokenizer();
  load_template(command);  // refuses before the model is loaded
  const infer::StopStrings checked(command.sampling.stops);
  const Engine engine(command.common);
  const auto model = engine.load(command.common);
  infer::Session session(engine.context(), *model,
                         {.experts_per_token = command.sampling.experts_per_token});
  return Chat(command, session, text, options).run();
}

}  // namespace

void add_chat(CommandLine& app) {
  auto options = std::make_shared<ChatCommand>();
  CommandLine command = app.command("chat", "Talk to a model");
  add_model_argument(command, options->common);
  command.option("--system", options->system, "system message, before the first turn").type("TEXT");
  command
      .option("--chat-template", options->chat_template,
              "Jinja template; default: the model folder's")
      .type("FILE");
  command
      .option("--template-date", options->template_date,
              "day that the template's strftime_now tells, such as 2026-11-20, or today; default: "
              "it has none")
      .type("DATE");
  add_sampling_flags(command, options->sampling);
  command.flag("-q,--quiet", options->common.quiet, "no messages on stderr but errors");
  add_run_flags(command, options->common);
  command.footer(std::string("While it runs:\n") + std::string(kHelp) +
                 "Without a terminal, each line of stdin is one message.\n\n"
                 "Example:\n  dsmoe chat my-model/ --temperature 0.7");
  command.runs([options] { return run_chat(*options); });
}

}  // namespace dsmoe::app
