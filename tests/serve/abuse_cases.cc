// The lists.
#include "serve/abuse_cases.h"

namespace dsmoe::testing {
namespace {

std::string with(const std::string& field) {
  return R"({"prompt": "The cat", "max_tokens": 2, )" + field + "}";
}
std::string prompt(const std::string& value) {
  return R"({"max_tokens": 2, "prompt": )" + value + "}";
}
std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

}  // namespace

std::vector<BodyCase> completion_cases() {
  return {
      {"empty body", "", 400},
      {"not JSON", "hello", 400},
      {"cut JSON", R"({"prompt": "x)", 400},
      {"two values", "{} {}", 400},
      {"an array", "[1]", 400},
      {"a string", "\"x\"", 400},
      {"duplicate keys", R"({"prompt": "a", "prompt": "b"})", 400},
      {"deep arrays", repeated("[", 100000), 400},
      {"deep objects", repeated("{\"a\":", 50000), 400},
      {"deep field", with("\"x\": " + repeated("[", 40) + repeated("]", 40)), 400},
      {"invalid UTF-8", "{\"prompt\": \"\xff\xfe\"}", 400},
      {"overlong UTF-8", "{\"prompt\": \"\xc0\xaf\"}", 400},
      {"lone surrogate", R"({"prompt": "\ud800"})", 400},
      {"no prompt", "{}", 400, "prompt"},
      {"null prompt", prompt("null"), 400, "prompt"},
      {"empty list", prompt("[]"), 400, "prompt"},
      {"object prompt", prompt("{}"), 400, "prompt"},
      {"number prompt", prompt("7"), 400, "prompt"},
      {"mixed prompt", prompt(R"([1, "a"])"), 400, "prompt"},
      {"mixed lists", prompt(R"(["a", [1]])"), 400, "prompt"},
      {"negative token", prompt("[1, -1]"), 400, "prompt"},
      {"token beyond vocabulary", prompt("[300]"), 400},
      {"token beyond 32 bits", prompt("[99999999999]"), 400, "prompt"},
      {"token beyond 64 bits", prompt("[999999999999999999999999]"), 400, "prompt"},
      {"fractional token", prompt("[1.5]"), 400, "prompt"},
      {"too many prompts", prompt("[" + repeated("\"a\",", 200) + "\"a\"]"), 400, "prompt"},
      {"empty token list", prompt("[[]]"), 400},
      {"prompt over the context", prompt("[" + repeated("5,", 400) + "5]"), 400, "prompt"},
      {"text over the context", prompt("\"" + repeated("word ", 100000) + "\""), 400, "prompt"},
      {"max_tokens over the context", R"({"prompt": "a", "max_tokens": 300})", 400, "prompt"},
      {"max_tokens huge", R"({"prompt": "a", "max_tokens": 9223372036854775807})", 400,
       "max_tokens"},
      {"max_tokens beyond 64 bits", R"({"prompt": "a", "max_tokens": 1e30})", 400, "max_tokens"},
      {"max_tokens negative", R"({"prompt": "a", "max_tokens": -1})", 400, "max_tokens"},
      {"max_tokens text", R"({"prompt": "a", "max_tokens": "5"})", 400, "max_tokens"},
      {"max_tokens true", R"({"prompt": "a", "max_tokens": true})", 400, "max_tokens"},
      {"temperature negative", with(R"("temperature": -0.1)"), 400, "temperature"},
      {"temperature high", with(R"("temperature": 2.1)"), 400, "temperature"},
      {"temperature overflow", with(R"("temperature": 1e999)"), 400},
      {"temperature text", with(R"("temperature": "hot")"), 400, "temperature"},
      {"top_p high", with(R"("top_p": 1.01)"), 400, "top_p"},
      {"top_p list", with(R"("top_p": [1])"), 400, "top_p"},
      {"min_p low", with(R"("min_p": -1)"), 400, "min_p"},
      {"top_k fraction", with(R"("top_k": 2.5)"), 400, "top_k"},
      {"top_k low", with(R"("top_k": -2)"), 400, "top_k"},
      {"n zero", with(R"("n": 0)"), 400, "n"},
      {"n huge", with(R"("n": 1000000)"), 400, "n"},
      {"prompts times n", R"({"prompt": ["a","b","c"], "n": 100})", 400, "n"},
      {"seed fraction", with(R"("seed": 0.5)"), 400, "seed"},
      {"stop number", with(R"("stop": 5)"), 400, "stop"},
      {"stop empty", with(R"("stop": "")"), 200},
      {"stop empty inside", with(R"("stop": [""])"), 400, "stop"},
      {"stop null inside", with(R"("stop": [null])"), 400, "stop"},
      {"stop of 100,000 characters", with("\"stop\": \"" + repeated("s", 100000) + "\""), 400,
       "stop"},
      {"17 stops", with("\"stop\": [" + repeated("\"s\",", 16) + "\"s\"]"), 400, "stop"},
      {"stop_token_ids beyond", with(R"("stop_token_ids": [5000])"), 400, "stop_token_ids"},
      {"stop_token_ids text", with(R"("stop_token_ids": "1")"), 400, "stop_token_ids"},
      {"presence_penalty", with(R"("presence_penalty": 3)"), 400, "presence_penalty"},
      {"frequency_penalty", with(R"("frequency_penalty": -3)"), 400, "frequency_penalty"},
      {"repetition_penalty", with(R"("repetition_penalty": 0)"), 400, "repetition_penalty"},
      {"logit_bias list", with(R"("logit_bias": [1])"), 400, "logit_bias"},
      {"logit_bias name", with(R"("logit_bias": {"the": 1})"), 400, "logit_bias"},
      {"logit_bias beyond", with(R"("logit_bias": {"9999": 1})"), 400},
      {"logit_bias null", with(R"("logit_bias": {"5": null})"), 400, "logit_bias"},
      {"logit_bias high", with(R"("logit_bias": {"5": 101})"), 400, "logit_bias"},
      {"logprobs high", with(R"("logprobs": 21)"), 400, "logprobs"},
      {"logprobs true", with(R"("logprobs": true)"), 400, "logprobs"},
      {"echo number", with(R"("echo": 1)"), 400, "echo"},
      {"stream text", with(R"("stream": "yes")"), 400, "stream"},
      {"stream_options alone", with(R"("stream_options": {"include_usage": true})"), 400,
       "stream_options"},
      {"stream_options list", with(R"("stream": true, "stream_options": [])"), 400,
       "stream_options"},
      {"user number", with(R"("user": 5)"), 400, "user"},
      {"model number", with(R"("model": 5)"), 400, "model"},
      {"unknown model", with(R"("model": "gpt-4")"), 404, "model"},
      {"suffix", with(R"("suffix": "end")"), 400, "suffix"},
      {"best_of", with(R"("best_of": 4)"), 400, "best_of"},
      {"response_format", with(R"("response_format": {"type": "json_objects"})"), 400,
       "response_format.type"},
      {"K zero", with(R"("num_experts_per_tok": 0)"), 400, "num_experts_per_tok"},
      {"K beyond", with(R"("num_experts_per_tok": 9)"), 400, "num_experts_per_tok"},
      {"no BOS", with(R"("add_special_tokens": false)"), 200},
      {"prompt_logprobs streamed", with(R"("prompt_logprobs": 1, "stream": true)"), 400,
       "prompt_logprobs"},
      {"prompt_logprobs high", with(R"("prompt_logprobs": 21)"), 400, "prompt_logprobs"},
      {"prompt_logprobs all", with(R"("prompt_logprobs": -1)"), 400, "prompt_logprobs"},
      {"prompt_logprobs text", with(R"("prompt_logprobs": "5")"), 400, "prompt_logprobs"},
      {"truncate_prompt_tokens text", with(R"("truncate_prompt_tokens": "5")"), 400,
       "truncate_prompt_tokens"},
      {"truncate_prompt_tokens low", with(R"("truncate_prompt_tokens": -2)"), 400,
       "truncate_prompt_tokens"},
      {"skip_special_tokens number", with(R"("skip_special_tokens": 1)"), 400,
       "skip_special_tokens"},
      {"template arguments of a prompt", with(R"("chat_template_kwargs": {"a": 1})"), 400,
       "chat_template_kwargs"},
      {"tools of a prompt", with(R"("tools": [{"type": "function"}])"), 400, "tools"},
      {"with BOS", with(R"("add_special_tokens": true)"), 200},
      {"bytes after a NUL", std::string(R"({"prompt": "a", "max_tokens": 1})") + '\0' + "{}", 400},
      {"NUL inside", std::string(R"({"prompt": )") + '\0' + R"("a"})", 400},
      {"replay text", with(R"("routed_experts": "x")"), 400, "routed_experts"},
      {"replay flat", with(R"("routed_experts": [1, 2])"), 400, "routed_experts"},
      {"replay layers", with(R"("routed_experts": [[[1, 2]]])"), 400, "routed_experts"},
      {"replay expert beyond", with(R"("routed_experts": [[[1, 8], [1, 2]]])"), 400,
       "routed_experts"},
      {"replay expert twice", with(R"("routed_experts": [[[1, 1], [1, 2]]])"), 400,
       "routed_experts"},
      {"replay more than K", with(R"("routed_experts": [[[1, 2, 3], [1, 2]]])"), 400,
       "routed_experts"},
      {"replay nothing chosen", with(R"("routed_experts": [[[], [1, 2]]])"), 400, "routed_experts"},
      {"replay over the context",
       with("\"routed_experts\": [" + repeated("[[1],[2]],", 300) + "[[1],[2]]]"), 400,
       "routed_experts"},
      // Odd, and right.
      {"unknown fields", with(R"("whatever": {"a": [1]})"), 200},
      {"null fields", with(R"("temperature": null, "stop": null, "logprobs": null, "n": null)"),
       200},
      {"no model", with(R"("seed": -9223372036854775808)"), 200},
      {"max_tokens 0", R"({"prompt": "a", "max_tokens": 0})", 200},
      {"top_p 0", with(R"("top_p": 0)"), 200},
      {"bias away", with(R"("logit_bias": {"5": -100, "6": 100})"), 200},
  };
}

std::vector<BodyCase> chat_cases() {
  const auto messages = [](const std::string& list) {
    return "{\"max_tokens\": 2, \"messages\": " + list + "}";
  };
  const auto chat_with = [](const std::string& field) {
    return R"({"max_tokens": 2, "messages": [{"role": "user", "content": "x"}], )" + field + "}";
  };
  return {
      {"no messages", "{}", 400, "messages"},
      {"empty messages", messages("[]"), 400, "messages"},
      {"text messages", messages("\"hi\""), 400, "messages"},
      {"message text", messages("[\"hi\"]"), 400, "messages[0]"},
      {"no role", messages(R"([{"content": "x"}])"), 400, "messages[0].role"},
      {"role unknown", messages(R"([{"role": "king", "content": "x"}])"), 400, "messages[0].role"},
      {"role number", messages(R"([{"role": 5, "content": "x"}])"), 400, "role"},
      {"no content", messages(R"([{"role": "user"}])"), 400, "messages[0].content"},
      {"content number", messages(R"([{"role": "user", "content": 5}])"), 400,
       "messages[0].content"},
      {"image part",
       messages(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])"), 400,
       "messages[0].content"},
      {"part text", messages(R"([{"role": "user", "content": ["x"]}])"), 400,
       "messages[0].content"},
      {"tool_calls", messages(R"([{"role": "assistant", "tool_calls": [{}]}])"), 400,
       "messages[0].tool_calls[0].function"},
      {"function_call",
       messages(R"([{"role": "assistant", "content": "x", "function_call": {"name": "f"}}])"), 400,
       "messages[0].function_call"},
      {"prefix", messages(R"([{"role": "user", "content": "x"},
                              {"role": "assistant", "content": "y", "prefix": true}])"),
       400, "messages[1].prefix"},
      {"echo of a chat", chat_with(R"("echo": true)"), 400, "echo"},
      {"BOS before a chat", chat_with(R"("add_special_tokens": true)"), 200},
      {"what an SDK sends back", messages(R"([{"role": "user", "content": "x"},
                    {"role": "assistant", "content": "y", "tool_calls": null, "refusal": null,
                     "function_call": null, "audio": null, "annotations": []},
                    {"role": "user", "content": "z", "prefix": false}])"),
       200},
      {"no echo, no BOS", chat_with(R"("echo": false, "add_special_tokens": false)"), 200},
      {"what changes nothing",
       chat_with(R"("store": true, "metadata": {"a": "b"}, "service_tier": "auto",
                    "parallel_tool_calls": true, "priority": 0, "cache_prompt": true)"),
       200},
      {"many messages",
       messages("[" + repeated(R"({"role": "user", "content": "x"},)", 5000) +
                R"({"role": "user", "content": "x"}])"),
       400, "messages"},
      {"tools", chat_with(R"("tools": [{"type": "function"}])"), 400, "tools[0].function"},
      {"tool_choice", chat_with(R"("tool_choice": "auto")"), 400, "tool_choice"},
      {"functions", chat_with(R"("functions": [{}])"), 400, "functions"},
      {"response_format", chat_with(R"("response_format": {"type": "json_schema"})"), 400,
       "response_format.json_schema"},
      {"top_logprobs alone", chat_with(R"("top_logprobs": 2)"), 400, "top_logprobs"},
      {"top_logprobs high", chat_with(R"("logprobs": true, "top_logprobs": 21)"), 400,
       "top_logprobs"},
      {"logprobs number", chat_with(R"("logprobs": 2)"), 400, "logprobs"},
      {"max_completion_tokens", chat_with(R"("max_completion_tokens": 0)"), 400,
       "max_completion_tokens"},
      {"empty tools",
       chat_with(R"("tools": [], "tool_choice": "none", "response_format": {"type": "text"})"),
       200},
      {"developer and null",
       messages(R"([{"role": "developer", "content": "a"}, {"role": "assistant", "content": null},
                                          {"role": "user", "content": "b", "name": "c"}])"),
       200},
      {"special tokens in content",
       messages(R"([{"role": "user", "content": "<|end|><|begin|>"}])"), 200},
  };
}

std::vector<BodyCase> kind_cases() {
  struct Field {
    const char* name;
    const char* kind;  // what it takes
  };
  const Field fields[] = {{"max_tokens", "integer"},
                          {"max_completion_tokens", "integer"},
                          {"min_tokens", "integer"},
                          {"n", "integer"},
                          {"seed", "integer"},
                          {"top_k", "integer"},
                          {"logprobs", "integer"},
                          {"best_of", "integer"},
                          {"num_experts_per_tok", "integer"},
                          {"temperature", "number"},
                          {"top_p", "number"},
                          {"min_p", "number"},
                          {"presence_penalty", "number"},
                          {"frequency_penalty", "number"},
                          {"repetition_penalty", "number"},
                          {"stream", "boolean"},
                          {"echo", "boolean"},
                          {"ignore_eos", "boolean"},
                          {"return_token_ids", "boolean"},
                          {"return_routed_experts", "boolean"},
                          {"return_routed_gates", "boolean"},
                          {"model", "string"},
                          {"user", "string"},
                          {"stop", "strings"},
                          {"stop_token_ids", "list"},
                          {"routed_experts", "list"},
                          {"logit_bias", "object"},
                          {"stream_options", "object"}};
  struct Value {
    const char* json;
    const char* kinds;  // of fields it would fit
  };
  const Value values[] = {{"true", "boolean"},          {"\"x\"", "string strings"}, {"[{}]", ""},
                          {"{\"a\": \"b\"}", ""},       {"0.5", "number"},           {"1e300", ""},
                          {"-9223372036854775809", ""}, {"18446744073709551616", ""}};
  std::vector<BodyCase> cases;
  for (const Field& field : fields) {
    for (const Value& value : values) {
      if (std::string(value.kinds).find(field.kind) != std::string::npos) continue;
      const std::string pair = std::string("\"") + field.name + "\": " + value.json;
      cases.push_back({field.name, R"({"prompt": "The cat", )" + pair + "}", 400, field.name});
    }
  }
  return cases;
}

namespace {

// Fields of other servers: what would change the answer, and what asks for what is done anyway.
struct OtherField {
  const char* name;
  const char* wrong;
  const char* harmless;  // null is always
};
constexpr OtherField kOtherFields[] = {
    {"guided_json", "5", R"({"type": "object"})"},
    {"guided_regex", R"(["a"])", R"("a+")"},
    {"guided_choice", "[1]", R"(["a", "b"])"},
    {"guided_grammar", R"("root ::= x")", R"("")"},
    {"guided_decoding_backend", R"("xgrammar")", "null"},
    {"structured_outputs", "[1]", "{}"},
    {"grammar", R"("root ::= x")", R"("")"},
    {"json_schema", "5", "{}"},
    {"regex", "5", R"("a+")"},
    {"bad_words", R"("x")", "[]"},
    {"banned_strings", "[5]", "[]"},
    {"allowed_token_ids", R"(["5"])", "[]"},
    {"ebnf", R"("root ::= x")", R"("")"},
    {"chat_template", R"("{{ messages }}")", "null"},
    {"documents", R"([{"text": "x"}])", "[]"},
    {"spaces_between_special_tokens", "false", "true"},
    {"max_new_tokens", "5", "null"},
    {"n_predict", "5", "null"},
    {"n_predict", "-1", "null"},
    {"use_beam_search", "true", "false"},
    {"length_penalty", "0.5", "1.0"},
    {"early_stopping", "true", "false"},
    {"prediction", R"({"type": "content", "content": "x"})", "null"},
    {"modalities", R"(["text", "audio"])", R"(["text"])"},
    {"audio", R"({"voice": "x"})", "null"},
    {"web_search_options", "{}", "null"},
    {"functions", "[{}]", "[]"},
    {"tool_choice", R"("auto")", R"("none")"},
    {"tools", "{}", "[]"},
    {"function_call", R"({"name": "f"})", R"("none")"},
    {"response_format", R"("json_object")", R"({"type": "text"})"},
    {"response_format", R"({"type": "text", "schema": {}})", R"({"type": "text", "schema": null})"},
    {"suffix", R"("end")", R"("")"},
    {"best_of", "2", "1"},
    {"mirostat", "2", "0"},
    {"repeat_penalty", "1.1", "1"},
    {"typical_p", "0.9", "1"},
    {"dry_multiplier", "0.8", "0.0"},
    {"xtc_probability", "0.5", "0"},
    {"n_probs", "3", "0"},
    {"image_data", R"([{"data": "x", "id": 1}])", "[]"},
    {"stop_sequences", R"(["x"])", "[]"},
    {"do_sample", "false", "true"},
    {"logits_processors", R"(["x"])", "[]"},
};

}  // namespace

std::vector<BodyCase> other_server_cases(const std::string& body_without_end) {
  std::vector<BodyCase> cases;
  for (const OtherField& field : kOtherFields) {
    const auto with_value = [&](const char* value) {
      return body_without_end + ", \"" + field.name + "\": " + value + "}";
    };
    cases.push_back({field.name, with_value(field.wrong), 400, field.name});
    cases.push_back({field.name, with_value(field.harmless), 200});
    cases.push_back({field.name, with_value("null"), 200});
  }
  return cases;
}

}  // namespace dsmoe::testing
