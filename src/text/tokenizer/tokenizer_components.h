// The four component families of a tokenizer.json, each read into TokenizerParts.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "text/tokenizer/json_fields.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace dsmoe::text {

// Sequences are flattened. Each throws Error(input) with `path` in front for what is wrong or not
// supported.
void read_normalizer(const Json& json, const std::string& path, std::vector<NormalizerStep>& steps);
void read_pre_tokenizer(const Json& json, const std::string& path, TokenizerParts& parts);
void read_post_processor(const Json& json, const std::string& path, TokenizerParts& parts);
void read_decoder(const Json& json, const std::string& path, DecoderSteps& steps);

// Shared between the families.
ReplaceStep read_replace(const JsonFields& fields);
// Reads a Metaspace component and checks its field names.
PrependScheme read_prepend_scheme(const JsonFields& fields);

}  // namespace dsmoe::text
