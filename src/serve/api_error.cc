// Errors as JSON.
#include "serve/api_error.h"

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

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

Json error_body(int status, const std::string& message, const std::string& param,
                const std::string& code) {
  return {{"error",
           {{"message", message},
            {"type", type_of(status)},
            {"param", text_or_null(param)},
            {"code", text_or_null(code)}}}};
}

Json error_body(const ApiError& error) {
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
