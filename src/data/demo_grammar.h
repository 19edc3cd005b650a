// One grammar, two uses: an Author that draws each choice writes a text; one that reads each choice
// off a given text measures it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::data {

// A choice is written at the moment it is made, and no option of a choice is a prefix of another,
// so a text can be read back, left to right, in one way only. That makes the probability of a text
// the product of its choices' probabilities.
class Author {
 public:
  virtual ~Author() = default;

  virtual void write(std::string_view fixed) = 0;

  // Chooses, writes the option, returns its index. Equal weights unless given.
  size_t pick(std::span<const std::string> options, std::span<const uint32_t> weights = {});
  // Two digits from `low` to `high`, or one.
  int pick_number(int low, int high);

  // -ln of the probability of all choices so far.
  double nats() const { return nats_; }

 protected:
  virtual size_t choose(std::span<const std::string> options,
                        std::span<const uint32_t> weights) = 0;

 private:
  double nats_ = 0;
};

// Draws from (seed, document) alone.
class WritingAuthor : public Author {
 public:
  WritingAuthor(uint64_t seed, uint64_t document) : seed_(seed), document_(document) {}
  void write(std::string_view fixed) override { text_ += fixed; }
  std::string take_text() { return std::move(text_); }

 protected:
  size_t choose(std::span<const std::string> options, std::span<const uint32_t> weights) override;

 private:
  uint64_t seed_, document_;
  uint64_t num_choices_ = 0;
  std::string text_;
};

// Throws Error(input) where the text leaves the grammar, Error(internal) where it could be read in
// two ways.
class ReadingAuthor : public Author {
 public:
  explicit ReadingAuthor(std::string_view text) : rest_(text) {}
  void write(std::string_view fixed) override;
  std::string_view rest() const { return rest_; }

 protected:
  size_t choose(std::span<const std::string> options, std::span<const uint32_t> weights) override;

 private:
  std::string_view rest_;
};

}  // namespace dsmoe::data
