// The files of web/, embedded by the build.
#pragma once

#include <span>
#include <string_view>

namespace dsmoe::serve {

struct WebAsset {
  std::string_view path;  // "/" for index.html, "/assets/PATH" for web/PATH
  std::string_view content_type;
  std::string_view bytes;
};

std::span<const WebAsset> web_assets();

}  // namespace dsmoe::serve
