// The grammars of the demo corpus's domains, each after its opening words.
#pragma once

#include <string>
#include <vector>

#include "data/demo_corpus.h"
#include "data/demo_grammar.h"

namespace dsmoe::data {

// The words that open a document of each domain, in the order of kDemoDomains. None begins another.
const std::vector<std::string>& domain_openings();

void write_story(Author& author);
// partners_of[a]: the numbers that may be added to a.
void write_addition(Author& author, const std::vector<std::vector<std::string>>& partners_of);
void write_record(Author& author);
void write_program(Author& author);
void write_dialogue(Author& author);

}  // namespace dsmoe::data
