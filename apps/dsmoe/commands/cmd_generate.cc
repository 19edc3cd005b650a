// dsmoe generate: one prompt, one answer, streamed as it comes.
#include <optional>

#include "base/log.h"
#include "base/readable.h"
#include "commands/command.h"
#include "commands/constraint_flags.h"
#include "commands/generate_options.h"
#include "commands/options.h"
#include "commands/text_side.h"
#include "commands/token_list.h"
#include "infer/sequence/stop.h"
#include "report/expert_table.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace dsmoe::app {
namespace {

struct GenerateCommand {
  CommonOptions common;
  SamplingFlags sampling;
  ConstraintFlags constraint;
  std::optional<std::string> prompt, prompt_file, tokens;  // exactly one
  bool ignore_eos = false;
  int64_t show_experts = 0;  // per cell; 0: no table
};

std::vector<int32_t> prompt_tokens(const GenerateCommand& command, const TextSide& text) {
  if (command.tokens) return parse_token_list(*command.tokens, "--tokens");
  if (command.prompt_file) {
    return text.encode(read_text_file(*command.prompt_file), AroundText::special);
  }
  return text.encode(*command.prompt == "-" ? read_standard_input() : *command.prompt,
                     AroundText::special);
}

// What one answer gave, as text and as tokens.
struct Answer {
  infer::Generation generation;
  std::string text;
  std::string stop;  // the stop string that ended it
};

Answer stream_answer(const GenerateCommand& command, infer::Session& session,
                     std::span<const int32_t> prompt, const infer::GenerateOptions& options,
                     const TextSide& text) {
  Answer answer;
  TextSide::Stream stream(text);
  infer::StopStrings stops(command.sampling.stops);
  const auto show = [&](const std::string& piece) {
    answer.text += piece;
    if (command.common.json || piece.empty()) return;
    write_output(for_terminal(piece));
    flush_output();
  };
  answer.generation = infer::generate(session, prompt, options, [&](int32_t token) {
    show(stops.push(stream.push(token)));
    return stops.stopped() ? infer::Next::stop : infer::Next::more;
  });
  if (!stops.stopped()) show(stops.push(stream.finish()));
  if (!stops.stopped()) show(stops.finish());
  answer.stop = stops.found();
  if (!command.common.json) print("\n");
  return answer;
}

// The experts of the answer's tokens. The last one has been chosen but not computed: it is now.
report::ExpertTable expert_table(infer::Session& session, const infer::Generation& generation,
                                 const TextSide& text) {
  const auto first = static_cast<std::size_t>(generation.prompt_tokens);
  const std::size_t end = first + generation.tokens.size();
  // An interrupted prompt may lack one token too: there is no answer then.
  if (!generation.tokens.empty() && session.tokens().size() + 1 == end &&
      static_cast<int64_t>(session.tokens().size()) < session.max_positions()) {
    session.append(generation.tokens.back());
  }
  const infer::Routes& routes = session.routes();
  report::ExpertTable table{.layers = infer::moe_layers(session.model().config),
                            .routes = {.num_layers = routes.num_layers, .top_k = routes.top_k}};
  for (const int32_t token : generation.tokens) {
    const std::string label = text.token_text(token);
    table.labels.push_back(text.has_tokenizer() ? report::quoted_token(label) : label);
  }
  const int64_t known = std::min(static_cast<int64_t>(end), routes.num_tokens());
  if (generation.prompt_tokens < known) {
    table.routes.append(routes.tokens(generation.prompt_tokens, known));
  }
  return table;
}

OrderedJson json_of(const report::ExpertTable& table, const infer::Generation& generation) {
  OrderedJson rows = OrderedJson::array();
  for (std::size_t i = 0; i < table.labels.size(); ++i) {
    OrderedJson layers = OrderedJson::array();
    const auto token = static_cast<int64_t>(i);
    for (std::size_t l = 0; l < table.layers.size() && token < table.routes.num_tokens(); ++l) {
      const infer::RoutesView slots = table.routes.view().slots(token, static_cast<int64_t>(l));
      layers.push_back({{"layer", table.layers[l]},
                        {"index", std::vector(slots.index.begin(), slots.index.end())},
                        {"gate", std::vector(slots.gate.begin(), slots.gate.end())}});
    }
    rows.push_back({{"token", generation.tokens[i]}, {"layers", layers}});
  }
  return rows;
}

OrderedJson json_of(const Answer& answer, uint64_t seed, const TextSide& text) {
  const infer::Generation& generation = answer.generation;
  OrderedJson json;
  if (text.has_tokenizer()) json["text"] = answer.text;
  json["tokens"] = generation.tokens;
  json["finish_reason"] = infer::name_of(generation.reason);
  if (!answer.stop.empty()) json["stop"] = answer.stop;
  json["seed"] = seed;
  json["prompt_tokens"] = generation.prompt_tokens;
  json["answer_tokens"] = generation.tokens.size();
  json["prompt_tokens_per_second"] = generation.prompt_rate();
  json["answer_tokens_per_second"] = generation.answer_rate();
  return json;
}

int run_generate(const GenerateCommand& command) {
  if (command.common.quiet) set_log_level(LogLevel::quiet);
  const model::ModelConfig config = model::read_config(command.common.model);
  infer::GenerateOptions options = generate_options(command.sampling, config);
  if (command.ignore_eos) options.stop_ids.clear();
  const TextSide text(command.common.model);
  if (!command.sampling.stops.empty()) text.require_tokenizer();
  const infer::StopStrings checked(command.sampling.stops);  // refuses before the model is loaded
  const std::vector<int32_t> prompt = prompt_tokens(command, text);
  options.constraint = constraint_of(command.constraint, text, config.vocab_size);
  const Engine engine(command.common);
  const auto model = engine.load(command.common);
  const auto prompt_size = static_cast<int64_t>(prompt.size());
  if (prompt_size > model->context) {
    fail(ErrorKind::input, "a prompt of {} tokens does not fit into the context of {}", prompt_size,
         model->context);
  }
  const int64_t wanted =
      options.max_tokens > 0 ? prompt_size + std::min(options.max_tokens, model->context) : 0;
  infer::Session session(engine.context(), *model,
                         {.max_positions = wanted,
                          .experts_per_token = command.sampling.experts_per_token,
                          .record_routing = command.show_experts > 0});
  const InterruptScope interrupt;
  options.cancelled = &InterruptScope::flag();
  const Answer answer = stream_answer(command, session, prompt, options, text);
  const bool cancelled = answer.generation.reason == infer::FinishReason::cancelled;
  if (command.common.json) {
    OrderedJson json = json_of(answer, options.seed, text);
    if (command.show_experts > 0) {
      json["experts"] = json_of(expert_table(session, answer.generation, text), answer.generation);
    }
    print_json(json);
  } else if (command.show_experts > 0 && !answer.generation.tokens.empty()) {
    print("\n{}", report::format_expert_table(
                      expert_table(session, answer.generation, text),
                      {.experts_per_cell = command.show_experts,
                       .columns = terminal_columns(),
                       .colour = stdout_has_colour() ? report::Colour::yes : report::Colour::no}));
  }
  flush_output();
  log_info("{}", describe_speed(answer.generation, options.seed));
  return cancelled ? kInterrupted : kDone;
}

}  // namespace

void add_generate(CommandLine& app) {
  auto options = std::make_shared<GenerateCommand>();
  CommandLine command = app.command("generate", "Continue a prompt");
  add_model_argument(command, options->common);
  CommandLine input = command.exactly_one("Input");
  input.option("-p,--prompt", options->prompt, "text to continue; -: what standard input holds")
      .type("TEXT");
  input.option("--prompt-file", options->prompt_file, "file of text to continue").type("FILE");
  input.option("--tokens", options->tokens, "token ids to continue, e.g. 1,2,3").type("IDS");
  add_sampling_flags(command, options->sampling);
  add_constraint_flags(command, options->constraint);
  command.flag("--ignore-eos", options->ignore_eos, "go on after the end-of-text token");
  command
      .option("--show-experts", options->show_experts,
              "then a table of each token's N strongest experts per layer; default N: 2")
      .value_optional("2")
      .range(int64_t{1}, int64_t{64})
      .type("N");
  add_output_flags(command, options->common);
  add_run_flags(command, options->common);
  command.footer(
      "The answer is a function of model, prompt, options and seed, for any number of threads.\n\n"
      "Example:\n"
      "  dsmoe generate my-model/ -p \"Once upon a time\" --max-tokens 100 \\\n"
      "    --temperature 0.7 --seed 1");
  command.runs([options] { return run_generate(*options); });
}

}  // namespace dsmoe::app
