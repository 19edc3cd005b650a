// Errors as JSON.
#include "serve/api_error.h"

#include "base/utf8.h"

namespace dsmoe::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

}  // namespace

std::string ApiError::log_text() const {
  std::string text;
  if (!param_.empty()) text += " param=" + param_;
  if (!code_.empty()) text += " code=" + code_;
  if (!quotes_request_) text += " reason=" + in_quotes(what());
  return text;
}

OrderedJson error_body(int status, const std::string& message, const std::string& param,
                       const std::string& code) {
  return {{"error",
           {{"message", message},
            {"type", type_of(status)},
            {"param", text_or_null(param)},
            {"code", text_or_null(code)}}}};
}

OrderedJson error_body(const ApiError& error) {
  return error_body(error.status(), error.what(), error.param(), error.code());
}

int status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
    case ErrorKind::input:
      return 400;
    case ErrorKind::resource:
      return 503;
    default:
      return 500;
  }
}

}  // namespace dsmoe::serve
