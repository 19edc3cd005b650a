// Every block begins, grows and ends by an event.
#include "serve/messages_writer.h"

#include <fmt/core.h>

#include <utility>

#include "serve/http_message.h"

namespace dsmoe::serve {
namespace {

using Kind = text::CallEvent::Kind;

std::string event(const OrderedJson& data) {
  return "event: " + data["type"].get<std::string>() + "\ndata: " + to_text(data) + "\n\n";
}

OrderedJson usage_json(const Usage& usage) {
  return {{"input_tokens", usage.prompt - usage.reused},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.reused},
          {"output_tokens", usage.answer}};
}

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

OrderedJson messages_error(const ApiError& error, const std::string& request_id) {
  return {{"type", "error"},
          {"error", {{"type", type_of(error.status())}, {"message", error.what()}}},
          {"request_id", request_id}};
}

OrderedJson MessagesWriter::message(const Usage& usage) const {
  return {{"id", "msg_" + frame_.request_id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", frame_.model.id()},
          {"content", OrderedJson::array()},
          {"stop_reason", stop_reason_},
          {"stop_sequence", stop_sequence_},
          {"usage", usage_json(usage)}};
}

std::string MessagesWriter::call_id(int64_t call_idx) const {
  return fmt::format("toolu_{}_{}", frame_.request_id, call_idx);
}

void MessagesWriter::keep_ending(const AnswerChoice& choice) {
  was_closed_ = choice.was_closed();
  const std::string& stop = choice.all.stop_found;
  stop_reason_ = choice.was_cut()         ? "max_tokens"
                 : choice.num_calls() > 0 ? "tool_use"
                 : !stop.empty()          ? "stop_sequence"
                                          : "end_turn";
  if (!stop.empty()) stop_sequence_ = stop;
}

AnswerWriter::Pieces MessagesWriter::begin(int64_t, const Usage& usage) {
  return {event({{"type", "message_start"}, {"message", message(usage)}}),
          event({{"type", "ping"}})};
}

void MessagesWriter::begin_block(const OrderedJson& block, Pieces& pieces) {
  end_block(pieces);
  pieces.push_back(
      event({{"type", "content_block_start"}, {"index", num_blocks_}, {"content_block", block}}));
  is_open_ = true;
  is_text_ = block["type"] == "text";
}

void MessagesWriter::end_block(Pieces& pieces) {
  if (!std::exchange(is_open_, false)) return;
  pieces.push_back(event({{"type", "content_block_stop"}, {"index", num_blocks_++}}));
}

void MessagesWriter::add(AnswerChoice& choice, Pieces& pieces) {
  for (const text::CallEvent& each : choice.read(choice.all)) {
    if (each.kind == Kind::begin) {
      begin_block({{"type", "tool_use"},
                   {"id", call_id(num_calls_++)},
                   {"name", each.text},
                   {"input", OrderedJson::object()}},
                  pieces);
      continue;
    }
    if (each.kind == Kind::end) {
      end_block(pieces);
      continue;
    }
    const bool is_text = each.kind == Kind::text;
    if (is_text && !(is_open_ && is_text_)) begin_block({{"type", "text"}, {"text", ""}}, pieces);
    const OrderedJson delta =
        is_text ? OrderedJson{{"type", "text_delta"}, {"text", each.text}}
                : OrderedJson{{"type", "input_json_delta"}, {"partial_json", each.text}};
    pieces.push_back(
        event({{"type", "content_block_delta"}, {"index", num_blocks_}, {"delta", delta}}));
  }
  if (choice.all.finish) {
    keep_ending(choice);
    end_block(pieces);
  }
  choice.all = {};
}

AnswerWriter::Pieces MessagesWriter::end(const Usage& usage) {
  OrderedJson delta{{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}};
  if (was_closed_) delta["closed_by_max_tokens"] = true;
  return {event({{"type", "message_delta"}, {"delta", delta}, {"usage", usage_json(usage)}}),
          event({{"type", "message_stop"}})};
}

AnswerWriter::Pieces MessagesWriter::fail(const ApiError& error) {
  return {event(messages_error(error, frame_.request_id))};
}

// The blocks of the answer, as a list.
std::string MessagesWriter::choice(AnswerChoice& choice) {
  OrderedJson blocks = OrderedJson::array();
  std::string arguments;
  const auto close_call = [&] {
    if (blocks.empty() || blocks.back()["type"] != "tool_use") return;
    OrderedJson input = OrderedJson::parse(arguments, nullptr, /*allow_exceptions=*/false);
    if (input.is_object()) blocks.back()["input"] = std::move(input);  // else it was cut
    arguments.clear();
  };
  for (const text::CallEvent& each : choice.read(choice.all)) {
    if (each.kind == Kind::text) {
      close_call();
      if (blocks.empty() || blocks.back()["type"] != "text") {
        blocks.push_back({{"type", "text"}, {"text", ""}});
      }
      blocks.back()["text"].get_ref<std::string&>() += each.text;
    } else if (each.kind == Kind::begin) {
      close_call();
      blocks.push_back({{"type", "tool_use"},
                        {"id", call_id(num_calls_++)},
                        {"name", each.text},
                        {"input", OrderedJson::object()}});
    } else if (each.kind == Kind::arguments) {
      arguments += each.text;
    }
  }
  close_call();
  keep_ending(choice);
  choice.all = {};
  return to_text(blocks);
}

std::string MessagesWriter::whole(const Pieces& choices, const Usage& usage) {
  OrderedJson whole = message(usage);
  whole["content"] = OrderedJson::parse(choices.front());
  if (was_closed_) whole["closed_by_max_tokens"] = true;
  return to_text(whole);
}

}  // namespace dsmoe::serve
