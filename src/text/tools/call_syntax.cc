// The table of families.
#include "text/tools/call_syntax.h"

namespace dsmoe::text {
namespace {

constexpr CallSyntax kHermes{.name = "Hermes",
                             .body = CallBody::object,
                             .call_begin = "<tool_call>",
                             .call_end = "</tool_call>",
                             .between = "\n"};

constexpr CallSyntax kGlm{.name = "GLM",
                          .body = CallBody::key_value,
                          .call_begin = "<tool_call>",
                          .name_end = "\n",
                          .call_end = "</tool_call>",
                          .between = "\n",
                          .key_begin = "<arg_key>",
                          .key_end = "</arg_key>\n<arg_value>",
                          .value_end = "</arg_value>\n"};

constexpr CallSyntax kQwenCoder{.name = "Qwen3-Coder",
                                .body = CallBody::key_value,
                                .call_begin = "<tool_call>",
                                .name_begin = "\n<function=",
                                .name_end = ">\n",
                                .call_end = "</function>\n</tool_call>",
                                .between = "\n",
                                .key_begin = "<parameter=",
                                .key_end = ">\n",
                                .value_end = "\n</parameter>\n"};

constexpr CallSyntax kDeepSeekV3{.name = "DeepSeek V3",
                                 .body = CallBody::named,
                                 .section_begin = "<｜tool▁calls▁begin｜>",
                                 .call_begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                                 .name_end = "\n```json\n",
                                 .call_end = "\n```<｜tool▁call▁end｜>",
                                 .section_end = "<｜tool▁calls▁end｜>",
                                 .between = "\n"};

constexpr CallSyntax kDeepSeekV31{.name = "DeepSeek V3.1",
                                  .body = CallBody::named,
                                  .section_begin = "<｜tool▁calls▁begin｜>",
                                  .call_begin = "<｜tool▁call▁begin｜>",
                                  .name_end = "<｜tool▁sep｜>",
                                  .call_end = "<｜tool▁call▁end｜>",
                                  .section_end = "<｜tool▁calls▁end｜>"};

constexpr CallSyntax kKimi{.name = "Kimi",
                           .body = CallBody::named,
                           .section_begin = "<|tool_calls_section_begin|>",
                           .call_begin = "<|tool_call_begin|>functions.",
                           .name_end = ":0<|tool_call_argument_begin|>",
                           .call_end = "<|tool_call_end|>",
                           .section_end = "<|tool_calls_section_end|>"};

}  // namespace

std::string CallSyntax::all_markers() const {
  std::string all;
  for (const std::string_view part : {section_begin, call_begin, name_begin, name_end, call_end,
                                      section_end, key_begin, key_end, value_end}) {
    all += part;
  }
  return all;
}

const CallSyntax& hermes_syntax() { return kHermes; }

const CallSyntax* find_call_syntax(std::string_view source) {
  const auto has = [&](std::string_view marker) {
    return source.find(marker) != std::string_view::npos;
  };
  if (has("<|tool_calls_section_begin|>")) return &kKimi;
  if (has("<｜tool▁calls▁begin｜>")) return has("```json") ? &kDeepSeekV3 : &kDeepSeekV31;
  if (has("<tool_call>") && has("<arg_key>")) return &kGlm;
  if (has("<tool_call>")) return has("<function=") ? &kQwenCoder : &kHermes;
  return nullptr;
}

}  // namespace dsmoe::text
