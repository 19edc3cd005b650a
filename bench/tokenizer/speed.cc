// Times Tokenizer::encode and decode on one file: tokenizer_speed TOKENIZER TEXT REPEATS [IDS_OUT].
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int run(char** argv) {
  using namespace dsmoe::text;
  auto start = std::chrono::steady_clock::now();
  const Tokenizer tokenizer = Tokenizer::from_file(argv[1]);
  const double load = seconds_since(start);
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::int32_t> ids;
  double encode = 1e30;
  for (int i = 0; i < std::max(std::atoi(argv[3]), 1); ++i) {
    start = std::chrono::steady_clock::now();
    ids = tokenizer.encode(text, {.add_special = AddSpecial::no});
    encode = std::min(encode, seconds_since(start));
  }
  start = std::chrono::steady_clock::now();
  const bool same = tokenizer.decode(ids) == text;
  const double decode = seconds_since(start);
  std::printf(
      "{\"bytes\": %zu, \"ids\": %zu, \"load_s\": %.4f, \"encode_s\": %.4f, \"decode_s\": %.4f, "
      "\"same\": %s}\n",
      text.size(), ids.size(), load, encode, decode, same ? "true" : "false");
  if (argv[4] != nullptr) {
    std::ofstream out(argv[4], std::ios::binary);
    out.write(reinterpret_cast<const char*>(ids.data()),
              static_cast<std::streamsize>(ids.size() * sizeof ids[0]));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s TOKENIZER TEXT REPEATS [IDS_OUT]\n", argv[0]);
    return 2;
  }
  try {
    return run(argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
