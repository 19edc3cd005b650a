// A refusal as clients of the OpenAI API expect it.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace dsmoe::serve {

// Thrown where a request is read, caught where it is answered.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : std::runtime_error(message),
        status_(status),
        param_(std::move(param)),
        code_(std::move(code)) {}

  // Its text repeats words of the request: the log must not.
  ApiError quoting() && {
    quotes_request_ = true;
    return std::move(*this);
  }

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  // For the log: which field, and why if that holds nothing of what people write.
  std::string log_text() const;

 private:
  int status_;
  std::string param_, code_;
  bool quotes_request_ = false;
};

// 400 about one field of the request.
template <class... Args>
[[noreturn]] void refuse(const std::string& field, fmt::format_string<Args...> text,
                         Args&&... args) {
  throw ApiError(400, fmt::format(text, std::forward<Args>(args)...), field);
}

// {"error": {"message", "type", "param", "code"}}
OrderedJson error_body(int status, const std::string& message, const std::string& param = "",
                       const std::string& code = "");
OrderedJson error_body(const ApiError& error);

// base/error.h: input 400, resource 503, everything else 500.
int status_of(ErrorKind kind);

}  // namespace dsmoe::serve
