// A plain answer is what the events of a stream build up.
#include "serve/responses_writer.h"

#include <fmt/core.h>

#include <utility>

#include "serve/http_message.h"

namespace dsmoe::serve {
namespace {

using Kind = text::CallEvent::Kind;

OrderedJson usage_json(const Usage& usage) {
  return {{"input_tokens", usage.prompt},
          {"input_tokens_details", {{"cached_tokens", usage.reused}}},
          {"output_tokens", usage.answer},
          {"output_tokens_details", {{"reasoning_tokens", 0}}},
          {"total_tokens", usage.prompt + usage.answer}};
}

OrderedJson text_part(const std::string& text) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", OrderedJson::array()},
          {"logprobs", OrderedJson::array()}};
}

}  // namespace

// As OpenAI has it: what was asked for is said again.
OrderedJson ResponsesWriter::response(const char* status, const Usage* usage) const {
  const OrderedJson& repeated = frame_.request.repeated;
  const auto said = [&](const char* name, OrderedJson otherwise) {
    return repeated.contains(name) && !repeated[name].is_null() ? repeated[name]
                                                                : std::move(otherwise);
  };
  OrderedJson incomplete;
  if (was_cut_) incomplete = {{"reason", "max_output_tokens"}};
  OrderedJson json{{"id", "resp_" + frame_.request_id},
                   {"object", "response"},
                   {"created_at", frame_.created},
                   {"status", status},
                   {"background", false},
                   {"error", nullptr},
                   {"incomplete_details", incomplete},
                   {"instructions", said("instructions", nullptr)},
                   {"max_output_tokens", said("max_output_tokens", nullptr)},
                   {"model", frame_.model.id()},
                   {"output", output_},
                   {"parallel_tool_calls", said("parallel_tool_calls", true)},
                   {"previous_response_id", nullptr},
                   {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                   {"store", false},
                   {"temperature", said("temperature", frame_.request.sampler.temperature)},
                   {"text", said("text", {{"format", {{"type", "text"}}}})},
                   {"tool_choice", said("tool_choice", "auto")},
                   {"tools", said("tools", OrderedJson::array())},
                   {"top_p", said("top_p", frame_.request.sampler.top_p)},
                   {"truncation", "disabled"},
                   {"usage", usage == nullptr ? OrderedJson() : usage_json(*usage)},
                   {"user", said("user", nullptr)},
                   {"metadata", said("metadata", OrderedJson::object())}};
  if (was_closed_) json["closed_by_max_tokens"] = true;
  return json;
}

std::string ResponsesWriter::event(const char* type, OrderedJson data) {
  OrderedJson json{{"type", type}};
  json.update(data);
  json["sequence_number"] = sequence_number_++;
  return fmt::format("event: {}\ndata: {}\n\n", type, to_text(json));
}

// About a part of the item that grows.
std::string ResponsesWriter::item_event(const char* type, OrderedJson data) {
  OrderedJson json{{"item_id", item_["id"]}, {"output_index", output_.size()}};
  json.update(data);
  return event(type, std::move(json));
}

AnswerWriter::Pieces ResponsesWriter::begin(int64_t, const Usage&) {
  const OrderedJson data{{"response", response("in_progress", nullptr)}};
  return {event("response.created", data), event("response.in_progress", data)};
}

void ResponsesWriter::begin_text(Pieces& pieces) {
  item_ = {{"id", fmt::format("msg_{}_{}", frame_.request_id, output_.size())},
           {"type", "message"},
           {"status", "in_progress"},
           {"role", "assistant"},
           {"content", OrderedJson::array()}};
  pieces.push_back(
      event("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}}));
  item_["content"].push_back(text_part(""));
  pieces.push_back(
      item_event("response.content_part.added", {{"content_index", 0}, {"part", text_part("")}}));
}

void ResponsesWriter::begin_call(const std::string& name, Pieces& pieces) {
  const std::string id = fmt::format("{}_{}", frame_.request_id, output_.size());
  item_ = {{"id", "fc_" + id}, {"type", "function_call"}, {"status", "in_progress"},
           {"arguments", ""},  {"call_id", "call_" + id}, {"name", name}};
  pieces.push_back(
      event("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}}));
}

void ResponsesWriter::end_text(Pieces& pieces) {
  const OrderedJson& part = item_["content"][0];
  pieces.push_back(item_event(
      "response.output_text.done",
      {{"content_index", 0}, {"text", part["text"]}, {"logprobs", OrderedJson::array()}}));
  pieces.push_back(
      item_event("response.content_part.done", {{"content_index", 0}, {"part", part}}));
}

void ResponsesWriter::end_item(const char* status, Pieces& pieces) {
  if (item_.is_null()) return;
  if (item_["type"] == "message") {
    end_text(pieces);
  } else {
    pieces.push_back(item_event("response.function_call_arguments.done",
                                {{"name", item_["name"]}, {"arguments", item_["arguments"]}}));
  }
  item_["status"] = status;
  pieces.push_back(
      event("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}}));
  output_.push_back(std::exchange(item_, nullptr));
}

void ResponsesWriter::take(const text::CallEvent& said, Pieces& pieces) {
  switch (said.kind) {
    case Kind::text:
      if (!item_.is_null() && item_["type"] != "message") end_item("completed", pieces);
      if (item_.is_null()) begin_text(pieces);
      item_["content"][0]["text"].get_ref<std::string&>() += said.text;
      pieces.push_back(item_event(
          "response.output_text.delta",
          {{"content_index", 0}, {"delta", said.text}, {"logprobs", OrderedJson::array()}}));
      break;
    case Kind::begin:
      end_item("completed", pieces);
      begin_call(said.text, pieces);
      break;
    case Kind::arguments:
      item_["arguments"].get_ref<std::string&>() += said.text;
      pieces.push_back(
          item_event("response.function_call_arguments.delta", {{"delta", said.text}}));
      break;
    case Kind::end:
      end_item("completed", pieces);
      break;
  }
}

void ResponsesWriter::add(AnswerChoice& choice, Pieces& pieces) {
  for (const text::CallEvent& said : choice.read(choice.all)) take(said, pieces);
  if (choice.all.finish) {
    was_cut_ = choice.was_cut();
    was_closed_ = choice.was_closed();
    // An answer without a word is an empty text.
    if (item_.is_null() && output_.empty()) begin_text(pieces);
    end_item(was_cut_ ? "incomplete" : "completed", pieces);
  }
  choice.all = {};
}

AnswerWriter::Pieces ResponsesWriter::end(const Usage& usage) {
  return {event(was_cut_ ? "response.incomplete" : "response.completed",
                {{"response", response(was_cut_ ? "incomplete" : "completed", &usage)}})};
}

AnswerWriter::Pieces ResponsesWriter::fail(const ApiError& error) {
  const std::string code = error.code().empty() ? "server_error" : error.code();
  OrderedJson failed = response("failed", nullptr);
  failed["error"] = {{"code", code}, {"message", error.what()}};
  return {event("error", {{"code", code}, {"message", error.what()}, {"param", nullptr}}),
          event("response.failed", {{"response", std::move(failed)}})};
}

std::string ResponsesWriter::choice(AnswerChoice& choice) {
  Pieces unsent;
  add(choice, unsent);
  return "";
}

std::string ResponsesWriter::whole(const Pieces&, const Usage& usage) {
  return to_text(response(was_cut_ ? "incomplete" : "completed", &usage));
}

}  // namespace dsmoe::serve
