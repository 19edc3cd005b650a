// Formats as patterns.
#include "constrain/string_format.h"

#include <utility>

namespace dsmoe::constrain {
namespace {

// Every date exists: no 29th of February. Times have no leap seconds.
#define DSMOE_DATE                                                                    \
  "(?:19|20)[0-9]{2}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-" \
  "(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define DSMOE_TIME                                                        \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-]" \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define DSMOE_LABEL "[a-z0-9](?:[a-z0-9-]{0,14}[a-z0-9])?"
#define DSMOE_HOST DSMOE_LABEL "(?:\\." DSMOE_LABEL "){0,3}"
#define DSMOE_OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

constexpr std::pair<std::string_view, const char*> kFormats[] = {
    {"date", DSMOE_DATE},
    {"time", DSMOE_TIME},
    {"date-time", DSMOE_DATE "T" DSMOE_TIME},
    {"duration",
     "P(?:[0-9]{1,4}W|[0-9]{1,4}Y(?:[0-9]{1,3}M(?:[0-9]{1,3}D)?)?|[0-9]{1,3}M(?:[0-9]{1,3}D)?|"
     "[0-9]{1,3}D(?:T[0-9]{1,3}H)?|T(?:[0-9]{1,3}H(?:[0-9]{1,3}M(?:[0-9]{1,3}S)?)?|"
     "[0-9]{1,3}M(?:[0-9]{1,3}S)?|[0-9]{1,3}S))"},
    {"email",
     "[a-z0-9][a-z0-9_-]{0,14}(?:\\.[a-z0-9][a-z0-9_-]{0,14}){0,2}@" DSMOE_HOST "\\.[a-z]{2,12}"},
    {"hostname", DSMOE_HOST},
    {"ipv4", DSMOE_OCTET "(?:\\." DSMOE_OCTET "){3}"},
    {"ipv6", "(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"},
    {"uri", "https?://" DSMOE_HOST "\\.[a-z]{2,12}(?:/[A-Za-z0-9_.~-]{1,15}){0,8}/?"},
};

#undef DSMOE_DATE
#undef DSMOE_TIME
#undef DSMOE_LABEL
#undef DSMOE_HOST
#undef DSMOE_OCTET

}  // namespace

const char* pattern_of_format(std::string_view format) {
  for (const auto& [name, pattern] : kFormats) {
    if (name == format) return pattern;
  }
  return nullptr;
}

std::string_view known_formats() {
  return "date, time, date-time, duration, email, hostname, ipv4, ipv6, uuid, uri";
}

}  // namespace dsmoe::constrain
