// Stories, questions about them, records. Later mentions of a thing repeat an
// earlier choice, so they cost a reader who remembers nothing: that is what a trigram model lacks.
#include "data/demo_domains.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace dsmoe::data {
namespace {

using Words = std::vector<std::string>;

const Words kNames = {"Anna", "Ben", "Ella", "Finn", "Leo", "Lily",
                      "Max",  "Mia", "Nora", "Rosa", "Sam", "Tom"};
const Words kPronouns = {"She", "He",  "She", "He",  "He", "She",
                         "He",  "She", "She", "She", "He", "He"};
const Words kAnimals = {"bear", "cat", "duck", "fox", "frog", "mouse", "owl", "rabbit"};
const Words kCharacters = {"brave", "clever", "curious", "kind", "little", "sleepy"};
const Words kHomes = {"by the lake",   "in the forest",    "in a small garden",
                      "near the mill", "under the bridge", "on a green hill"};
const Words kTimes = {"morning", "afternoon", "evening", "night"};
const Words kColors = {"blue", "golden", "green", "red", "silver", "yellow"};
const Words kThings = {"ball", "bell", "boat", "book", "drum", "hat", "kite", "lamp"};
const Words kPlaces = {"behind a tree", "beside the road", "in the grass", "next to the well"};

struct City {
  std::string name, country;
};
const std::vector<City> kCities = {
    {"Athens", "Greece"}, {"Berlin", "Germany"}, {"Cairo", "Egypt"}, {"Dublin", "Ireland"},
    {"Lima", "Peru"},     {"Madrid", "Spain"},   {"Oslo", "Norway"}, {"Paris", "France"},
    {"Rome", "Italy"},    {"Tokyo", "Japan"}};

std::string lower(std::string word) {
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

const std::string& pick_word(Author& author, const Words& words) {
  return words[author.pick(words)];
}

Words without(Words words, const std::string& taken) {
  std::erase(words, taken);
  return words;
}

const std::string& pronoun(const std::string& name) {
  const auto at = std::find(kNames.begin(), kNames.end(), name);
  return kPronouns[static_cast<size_t>(at - kNames.begin())];
}

struct Character {
  std::string name, animal;
};

Character pick_friend(Author& author, const Character& of) {
  Character other;
  const Words names = without(kNames, of.name), animals = without(kAnimals, of.animal);
  other.name = pick_word(author, names);
  author.write(" the ");
  other.animal = pick_word(author, animals);
  return other;
}

// What happened to the thing after it was found. Returns the friend it was shared with.
Character write_middle(Author& author, const Character& hero, const std::string& thing) {
  const Words openings = {"Then ", "But the " + thing + " belonged to ",
                          hero.name + " showed the "};
  const size_t kind = author.pick(openings);
  if (kind == 2) author.write(thing + " to ");
  const Character other = pick_friend(author, hero);
  if (kind == 0) {
    author.write(" came along. " + hero.name + " and " + other.name + " played with the " + thing +
                 " until it was dark. ");
  } else if (kind == 1) {
    author.write(". " + hero.name + " gave it back, and " + other.name + " said thank you. ");
  } else {
    author.write(". " + pronoun(other.name) + " liked it very much. ");
  }
  return other;
}

}  // namespace

const std::vector<std::string>& domain_openings() {
  static const Words openings = {"Once upon a time there was a ", "Add ", "{\"name\": \"", "def ",
                                 "User: "};
  return openings;
}

void write_story(Author& author) {
  Character hero;
  pick_word(author, kCharacters);
  author.write(" ");
  hero.animal = pick_word(author, kAnimals);
  author.write(" named ");
  hero.name = pick_word(author, kNames);
  author.write(". " + hero.name + " lived ");
  const std::string& home = pick_word(author, kHomes);
  author.write(". One ");
  pick_word(author, kTimes);
  author.write(" " + hero.name + " found a ");
  const std::string& color = pick_word(author, kColors);
  author.write(" ");
  const std::string& thing = pick_word(author, kThings);
  author.write(" ");
  pick_word(author, kPlaces);
  author.write(". \"");
  author.pick(Words{"What a lovely " + thing + "!", "Who lost this " + thing + "?",
                    "I always wanted a " + thing + "!"});
  author.write("\" said " + hero.name + ". ");
  const Character other = write_middle(author, hero, thing);
  author.pick(Words{
      "In the end " + hero.name + " went home and slept " + home + ".",
      "From that day on the " + hero.animal + " and the " + other.animal + " were best friends.",
      "And nobody ever forgot the " + color + " " + thing + "."});
}

void write_addition(Author& author, const std::vector<std::vector<std::string>>& partners_of) {
  const int a = author.pick_number(10, 99);
  author.write(" + ");
  const std::vector<std::string>& partners = partners_of[static_cast<size_t>(a)];
  const int b = std::stoi(partners[author.pick(partners)]);
  author.write(addition_text({a, b}).substr(addition_prompt({a, b}).size() - 1));
}

void write_record(Author& author) {
  const std::string& name = pick_word(author, kNames);
  author.write("\", \"age\": ");
  const int age = author.pick_number(10, 69);
  author.write(std::string(", \"adult\": ") + (age >= 18 ? "true" : "false") + ", \"city\": \"");
  Words cities;
  for (const City& city : kCities) cities.push_back(city.name);
  const City& city = kCities[author.pick(cities)];
  author.write("\", \"country\": \"" + city.country + "\", \"likes\": [\"");
  const std::string& first = pick_word(author, kThings);
  author.write("\", \"");
  author.pick(without(kThings, first));
  author.write("\"], \"email\": \"" + lower(name) + "@" + lower(city.name) + ".example\"}");
}

void write_dialogue(Author& author) {
  Character hero;
  hero.name = pick_word(author, kNames);
  author.write(" the ");
  hero.animal = pick_word(author, kAnimals);
  author.write(" lived ");
  const std::string& home = pick_word(author, kHomes);
  author.write(". One ");
  const std::string& time = pick_word(author, kTimes);
  author.write(" " + hero.name + " found a ");
  const std::string& color = pick_word(author, kColors);
  author.write(" ");
  const std::string& thing = pick_word(author, kThings);
  author.write(" ");
  const std::string& place = pick_word(author, kPlaces);
  author.write(" and gave it to ");
  const Character other = pick_friend(author, hero);
  author.write(". ");
  const std::string it = "the " + thing;
  const std::vector<std::pair<std::string, std::string>> questions = {
      {"Who found " + it + "?", hero.name + " the " + hero.animal + " found " + it + "."},
      {"Who has " + it + " now?", other.name + " the " + other.animal + " has " + it + " now."},
      {"What did " + hero.name + " find?", hero.name + " found a " + color + " " + thing + "."},
      {"What color was " + it + "?", "The " + thing + " was " + color + "."},
      {"Where did " + hero.name + " live?", hero.name + " lived " + home + "."},
      {"Where was " + it + "?", "The " + thing + " was " + place + "."},
      {"When did " + hero.name + " find " + it + "?", "One " + time + "."},
  };
  Words asked;
  for (const auto& [question, answer] : questions) asked.push_back(question);
  const size_t kind = author.pick(asked);
  author.write("\n\nAssistant: " + questions[kind].second);
}

}  // namespace dsmoe::data
