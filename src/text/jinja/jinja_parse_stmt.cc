// Jinja's statements, and the token helpers both halves of the parser use.
#include <algorithm>

#include "base/utf8.h"
#include "text/jinja/jinja_callables.h"
#include "text/jinja/jinja_parser.h"

namespace dsmoe::text::jinja {
namespace {

std::string_view checked_source(std::string_view source, std::string_view what) {
  if (source.size() > kMaxTemplateBytes) {
    fail(ErrorKind::input, "{}: a chat template of {} bytes; at most {} are read", what,
         source.size(), kMaxTemplateBytes);
  }
  if (!is_valid_utf8(source))
    fail(ErrorKind::input, "{}: the chat template is not valid UTF-8", what);
  return source;
}

// Sets a counter for the lifetime of a block and puts it back.
class Restore {
 public:
  Restore(int& counter, int value) : counter_(counter), saved_(counter) { counter = value; }
  ~Restore() { counter_ = saved_; }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  int& counter_;
  int saved_;
};

}  // namespace

Parser::Parser(std::string_view source, std::string_view what)
    : what_(what), tokens_(lex(checked_source(source, what), what)) {}

Template Parser::parse_template() {
  Template result{.what = what_, .name_ids = {}, .body = body({})};
  for (const auto& [name_id, at] : calls_) {
    const auto id = static_cast<std::size_t>(name_id);
    if (!macros_.contains(name_id)) {
      fail_at_node(at, "the function '{}' is not supported", names_[id]);
    }
  }
  result.name_ids = std::move(name_ids_);
  return result;
}

// ---- tokens

const Token& Parser::peek(std::size_t ahead) const {
  return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)];
}

const Token& Parser::next() {
  const Token& token = peek();
  if (pos_ + 1 < tokens_.size()) ++pos_;
  return token;
}

bool Parser::is_op(std::string_view op) const {
  return peek().kind == TokenKind::op && peek().text == op;
}

bool Parser::is_name(std::string_view name, std::size_t ahead) const {
  return peek(ahead).kind == TokenKind::name && peek(ahead).text == name;
}

bool Parser::skip_op(std::string_view op) {
  const bool found = is_op(op);
  if (found) next();
  return found;
}

bool Parser::skip_name(std::string_view name) {
  const bool found = is_name(name);
  if (found) next();
  return found;
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail("expected '{}', found {}", op, describe(peek()));
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail("expected '{}', found {}", name, describe(peek()));
}

std::string Parser::expect_identifier(std::string_view role) {
  if (peek().kind != TokenKind::name || is_reserved_word(peek().text)) {
    fail("expected {}, found {}", role, describe(peek()));
  }
  return next().text;
}

void Parser::expect_block_end() {
  if (peek().kind != TokenKind::block_end) fail("expected '%}}', found {}", describe(peek()));
  next();
}

std::string Parser::describe(const Token& token) const {
  switch (token.kind) {
    case TokenKind::variable_end:
      return "'}}'";
    case TokenKind::block_end:
      return "'%}'";
    case TokenKind::string:
      return "a string";
    case TokenKind::end:
      return "the end of the template";
    default:
      return fmt::format("'{}'", token.text);
  }
}

int Parser::intern(const std::string& name) {
  const auto [slot, inserted] = name_ids_.try_emplace(name, static_cast<int>(names_.size()));
  if (inserted) names_.push_back(name);
  return slot->second;
}

// ---- statements

// Stops at the name of one of `end_tags` (not consumed), or with none at the end of the template.
Body Parser::body(std::initializer_list<std::string_view> end_tags) {
  const Nested nested(*this);
  Body result;
  while (peek().kind != TokenKind::end) {
    const Token& token = next();
    if (token.kind == TokenKind::data) {
      result.push_back(
          std::make_unique<Stmt>(Stmt{.kind = StmtKind::text, .at = token.at, .text = token.text}));
    } else if (token.kind == TokenKind::variable_begin) {
      result.push_back(output_statement());
    } else {
      const auto is_end = [&](std::string_view tag) { return is_name(tag); };
      if (std::any_of(end_tags.begin(), end_tags.end(), is_end)) return result;
      result.push_back(statement());
      expect_block_end();
    }
  }
  if (end_tags.size() > 0) {
    fail("the template ends where '{{% {} %}}' was expected", *(end_tags.end() - 1));
  }
  return result;
}

// The rest of an opening tag and the body behind it.
Body Parser::block(std::initializer_list<std::string_view> end_tags) {
  skip_op(":");
  expect_block_end();
  return body(end_tags);
}

StmtPtr Parser::output_statement() {
  auto stmt = std::make_unique<Stmt>(Stmt{.kind = StmtKind::output, .at = peek().at});
  ExprPtr value = tuple_or_expression(/*allow_conditional=*/true, /*allow_empty=*/false);
  // Without autoescape, marking text as safe right before printing it changes nothing.
  while (value->kind == ExprKind::filter && value->filter->name == "safe") {
    ExprPtr input = std::move(value->operands[0]);
    value = std::move(input);
  }
  stmt->exprs.push_back(std::move(value));
  if (peek().kind != TokenKind::variable_end) fail("expected '}}}}', found {}", describe(peek()));
  next();
  return stmt;
}

StmtPtr Parser::statement() {
  const Token& token = peek();
  if (token.kind != TokenKind::name) fail("expected the name of a tag, found {}", describe(token));
  next();
  const std::string& tag = token.text;
  if (tag == "if") return if_statement(token.at);
  if (tag == "for") return for_statement(token.at);
  if (tag == "set") return set_statement(token.at);
  if (tag == "with") return with_statement(token.at);
  if (tag == "filter") return filter_statement(token.at);
  if (tag == "macro") return macro_statement(token.at);
  if (tag == "generation") return scope_statement(token.at);
  if (tag == "break") return loop_control(token.at, StmtKind::break_);
  if (tag == "continue") return loop_control(token.at, StmtKind::continue_);
  if (tag.starts_with("end") || tag == "else" || tag == "elif") {
    fail_at_node(token.at, "unexpected '{{% {} %}}'", tag);
  }
  fail_at_node(token.at, "the tag '{}' is not supported", tag);
}

StmtPtr Parser::if_statement(Position at) {
  auto stmt = std::make_unique<Stmt>(Stmt{.kind = StmtKind::if_, .at = at});
  while (true) {
    stmt->exprs.push_back(tuple_or_expression(/*allow_conditional=*/false, /*allow_empty=*/false));
    stmt->bodies.push_back(block({"elif", "else", "endif"}));
    if (!skip_name("elif")) break;
  }
  if (skip_name("else")) stmt->bodies.push_back(block({"endif"}));
  expect_name("endif");
  return stmt;
}

StmtPtr Parser::for_statement(Position at) {
  auto stmt = std::make_unique<Stmt>(Stmt{.kind = StmtKind::for_, .at = at});
  stmt->targets.push_back(target(/*allow_attribute=*/false));
  expect_name("in");
  stmt->exprs.push_back(tuple_or_expression(/*allow_conditional=*/false, /*allow_empty=*/false));
  if (skip_name("if")) {
    in_loop_filter_ = true;
    stmt->exprs.push_back(expression());
    in_loop_filter_ = false;
  }
  if (is_name("recursive")) fail("'recursive' in a for loop is not supported");
  const Restore scope(scope_depth_, scope_depth_ + 1);
  {
    const Restore loop(loop_depth_, loop_depth_ + 1);
    stmt->bodies.push_back(block({"else", "endfor"}));
  }
  if (skip_name("else")) stmt->bodies.push_back(block({"endfor"}));
  expect_name("endfor");
  return stmt;
}

StmtPtr Parser::set_statement(Position at) {
  auto stmt = std::make_unique<Stmt>(Stmt{.kind = StmtKind::set, .at = at});
  stmt->targets.push_back(target(/*allow_attribute=*/true));
  if (skip_op("=")) {
    stmt->exprs.push_back(tuple_or_expression(/*allow_conditional=*/true, /*allow_empty=*/false));
    return stmt;
  }
  stmt->kind = StmtKind::set_block;
  if (skip_op("|")) stmt->exprs.push_back(filter_chain(make(ExprKind::captured, at)));
  const Restore scope(scope_depth_, scope_depth_ + 1);
  const Restore loop(loop_depth_, 0);
  stmt->bodies.push_back(block({"endset"}));
  expect_name("endset");
  return stmt;
}

StmtPtr Parser::with_statement(Position at) {
  auto stmt = std::make_unique<Stmt>(Stmt{.kind = StmtKind::with, .at = at});
  while (peek().kind != TokenKind::block_end) {
    if (!stmt->targets.empty()) expect_op(",");
    stmt->targets.push_back(single_target(/*allow_attribute=*/false));
    expect_op("=");
    stmt->exprs.push_back(expression());
  }
  const Restore scope(scope_depth_, scope_depth_ + 1);
  stmt->bodies.push_back(block({"endwith"}));
  expect_name("endwith");
  return stmt;
}

StmtPtr Parser::filter_statement(Position at) {
  auto stmt = std::make_unique<Stmt>(Stmt{.kind = StmtKind::filter_block, .at = at});
  stmt->exprs.push_back(filter_chain(make(ExprKind::captured, at)));
  const Restore scope(scope_depth_, scope_depth_ + 1);
  const Restore loop(loop_depth_, 0);
  stmt->bodies.push_back(block({"endfilter"}));
  expect_name("endfilter");
  return stmt;
}

// A macro sees the variables of the template's top level and nothing else, so it may stand only
// there.
StmtPtr Parser::macro_statement(Position at) {
  if (scope_depth_ > 0) {
    fail_at_node(at, "a macro inside a loop, a macro or another block is not supported");
  }
  auto stmt = std::make_unique<Stmt>(Stmt{.kind = StmtKind::macro, .at = at});
  const std::string name = expect_identifier("the name of a macro");
  stmt->name_id = intern(name);
  stmt->text = name;
  macros_[stmt->name_id] = true;
  const Restore scope(scope_depth_, scope_depth_ + 1);
  expect_op("(");
  while (!is_op(")")) {
    const std::string parameter = expect_identifier("a parameter name");
    ExprPtr default_value = skip_op("=") ? expression() : nullptr;
    if (!default_value && !stmt->parameters.empty() && stmt->parameters.back().default_value) {
      fail("the parameter '{}' without a default follows one with a default", parameter);
    }
    stmt->parameters.push_back({.name_id = intern(parameter),
                                .name = parameter,
                                .default_value = std::move(default_value)});
    if (!skip_op(",")) break;
  }
  expect_op(")");
  in_macro_ = true;
  stmt->bodies.push_back(block({"endmacro"}));
  in_macro_ = false;
  expect_name("endmacro");
  return stmt;
}

// {% generation %} marks the assistant's words for training masks; it prints its body.
StmtPtr Parser::scope_statement(Position at) {
  auto stmt = std::make_unique<Stmt>(Stmt{.kind = StmtKind::scope, .at = at});
  const Restore scope(scope_depth_, scope_depth_ + 1);
  const Restore loop(loop_depth_, 0);
  stmt->bodies.push_back(block({"endgeneration"}));
  expect_name("endgeneration");
  return stmt;
}

StmtPtr Parser::loop_control(Position at, StmtKind kind) {
  if (loop_depth_ == 0) {
    fail_at_node(at, "'{}' outside of a loop", kind == StmtKind::break_ ? "break" : "continue");
  }
  return std::make_unique<Stmt>(Stmt{.kind = kind, .at = at});
}

ExprPtr Parser::target(bool allow_attribute) {
  const Position at = peek().at;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    items.push_back(single_target(allow_attribute));
    if (!skip_op(",")) break;
    is_tuple = true;
    if (is_op("=") || is_op(")") || is_name("in")) break;
  }
  return is_tuple ? make(ExprKind::tuple, at, std::move(items)) : std::move(items[0]);
}

ExprPtr Parser::single_target(bool allow_attribute) {
  const Nested nested(*this);
  if (skip_op("(")) {
    ExprPtr inner = target(allow_attribute);
    expect_op(")");
    return inner;
  }
  const Position at = peek().at;
  const std::string name = expect_identifier("the name of a variable");
  static constexpr std::string_view kConstants[] = {"true",  "false", "none", "True",
                                                    "False", "None",  "loop"};
  if (std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants)) {
    fail_at_node(at, "cannot assign to '{}'", name);
  }
  ExprPtr node = make(ExprKind::name, at);
  node->text = name;
  node->name_id = intern(name);
  if (!allow_attribute || !skip_op(".")) return node;
  node = make_node(ExprKind::attribute, at, std::move(node));
  node->text = expect_identifier("the name of an attribute");
  return node;
}

Template parse(std::string_view source, std::string_view what) {
  return Parser(source, what).parse_template();
}

}  // namespace dsmoe::text::jinja
