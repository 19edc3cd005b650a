# Writes the C++ table of web/: cmake -DROOT=<web> -DOUT=<file> -P DsmoeEmbed.cmake
file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/*)
list(SORT files)
set(arrays "")
set(table "")
set(number 0)
foreach(name IN LISTS files)
  file(READ ${ROOT}/${name} hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  # Octal digits would merge with what follows; bytes as numbers do not.
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  if(name STREQUAL "index.html")
    set(path "/")
  else()
    set(path "/assets/${name}")
  endif()
  set(type "application/octet-stream")
  foreach(pair html=text/html css=text/css js=text/javascript mjs=text/javascript txt=text/plain json=application/json
               svg=image/svg+xml png=image/png ico=image/x-icon woff2=font/woff2)
    string(REGEX MATCH "^[^=]+" suffix "${pair}")
    string(REGEX REPLACE "^[^=]+=" "" value "${pair}")
    if(name MATCHES "\\.${suffix}$")
      set(type "${value}")
    endif()
  endforeach()
  if(type MATCHES "^text/")
    string(APPEND type "; charset=utf-8")
  endif()
  string(APPEND arrays "const unsigned char kBytes${number}[] = {${bytes}0};\n")
  string(APPEND table "    {\"${path}\", \"${type}\", {reinterpret_cast<const char*>(kBytes${number}), ${size}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT}.new "// Made from web/ by cmake/DsmoeEmbed.cmake.
#include \"serve/web_assets.h\"

namespace dsmoe::serve {
namespace {
${arrays}
const WebAsset kAssets[] = {
${table}};
}  // namespace
std::span<const WebAsset> web_assets() { return kAssets; }
}  // namespace dsmoe::serve
")
file(COPY_FILE ${OUT}.new ${OUT} ONLY_IF_DIFFERENT)
