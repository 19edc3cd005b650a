// Requests and responses as the API sees them: no sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace dsmoe::serve {

class BodyShare;

struct HttpRequest {
  std::string method;
  std::string path;                            // decoded, without the query
  std::map<std::string, std::string> query;    // decoded
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::shared_ptr<BodyShare> body_share;  // of the budget; null where there is no body
  std::string request_id;                 // the client's, if it was fit to be logged, or our own
  uint64_t owner = 0;                     // which API key; 0: none needed

  std::string_view header(const std::string& lower_name) const {
    const auto found = headers.find(lower_name);
    return found == headers.end() ? std::string_view() : std::string_view(found->second);
  }
  // Once it has been read. Its place in the budget goes to whoever keeps what was made of it.
  std::shared_ptr<BodyShare> drop_body() {
    body = {};
    return std::exchange(body_share, nullptr);
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string log_text = {};  // of a refusal: why, without words of the request; never sent
};

HttpResponse json_response(const OrderedJson& body, int status = 200);
std::string to_text(const OrderedJson& body);  // one line; broken UTF-8 becomes U+FFFD
const char* reason_phrase(int status);
std::string lower(std::string_view text);  // of ASCII letters

// How the end of an answer is told.
enum class Framing { length, chunked, until_close };
std::string format_head(const HttpResponse& response, Framing framing, bool keep_alive);

// Splits and decodes a request target; false when it is malformed. One in absolute form says which
// host is meant, and the header that says so too is replaced.
bool parse_target(std::string_view target, HttpRequest& request);

// What is wrong with the framing of a head, seen as it came, request line included: what the
// parser lets pass although a proxy in front may read it in another way.
struct FramingFault {
  int status;
  const char* text;
};
std::optional<FramingFault> framing_fault(std::string_view head);

// One request's way back to its client. Used on the I/O thread only.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void respond(HttpResponse response) = 0;
  // A stream: head first (its body is ignored), pieces, the end.
  virtual void begin_stream(HttpResponse head) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void end_stream() = 0;
  // Called at most once, when the client leaves before the end.
  virtual void on_gone(std::function<void()> callback) = 0;
};

}  // namespace dsmoe::serve
