// In builds without Boost there is no server.
#include "base/error.h"
#include "serve/http_server.h"

namespace dsmoe::serve {

struct HttpServer::State {};

bool is_loopback(const std::string& host) { return host == "127.0.0.1" || host == "localhost"; }

HttpServer::HttpServer(HttpOptions) {
  fail(ErrorKind::usage,
       "this program was built without Boost (libboost-dev), so it cannot serve; install it and "
       "build again");
}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return 0; }
Post HttpServer::post() { return {}; }
void HttpServer::run(Api&) {}
void HttpServer::shut_down() {}

}  // namespace dsmoe::serve
