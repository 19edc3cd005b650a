// Jinja's expression grammar. What dsmoe cannot evaluate is refused here, by name.
#include <algorithm>
#include <array>

#include "text/jinja/jinja_callables.h"
#include "text/jinja/jinja_parser.h"

namespace dsmoe::text::jinja {
namespace {

struct OperatorName {
  std::string_view text;
  Operator op;
};

constexpr std::array kComparisons = {
    OperatorName{"==", Operator::equal},  OperatorName{"!=", Operator::not_equal},
    OperatorName{"<", Operator::less},    OperatorName{"<=", Operator::less_equal},
    OperatorName{">", Operator::greater}, OperatorName{">=", Operator::greater_equal},
};
constexpr std::array kProducts = {
    OperatorName{"*", Operator::multiply},
    OperatorName{"/", Operator::divide},
    OperatorName{"//", Operator::floor_divide},
    OperatorName{"%", Operator::modulo},
};
constexpr std::array kSums = {
    OperatorName{"+", Operator::add},
    OperatorName{"-", Operator::subtract},
};

template <std::size_t N>
const OperatorName* find_operator(const std::array<OperatorName, N>& table, const Token& token) {
  if (token.kind != TokenKind::op) return nullptr;
  const auto hit = std::find_if(table.begin(), table.end(),
                                [&](const OperatorName& row) { return row.text == token.text; });
  return hit == table.end() ? nullptr : &*hit;
}

struct FunctionName {
  std::string_view text;
  Function function;
};
constexpr std::array kFunctions = {
    FunctionName{"range", Function::range},
    FunctionName{"namespace", Function::namespace_},
    FunctionName{"dict", Function::dict},
    FunctionName{"raise_exception", Function::raise_exception},
    FunctionName{"strftime_now", Function::strftime_now},
};

}  // namespace

bool is_reserved_word(std::string_view name) {
  static constexpr std::array<std::string_view, 9> kWords = {
      "and", "or", "not", "in", "is", "if", "else", "elif", "recursive"};
  return std::find(kWords.begin(), kWords.end(), name) != kWords.end();
}

void Parser::check_height(Expr& node) {
  for (const ExprPtr& operand : node.operands) {
    if (operand) node.height = std::max(node.height, operand->height + 1);
  }
  if (node.height > kMaxExprHeight) {
    fail_at_node(node.at, "an expression with more than {} nested operations", kMaxExprHeight);
  }
}

ExprPtr Parser::make(ExprKind kind, Position at, std::vector<ExprPtr> operands) {
  auto node = std::make_unique<Expr>(Expr{.kind = kind, .at = at});
  node->operands = std::move(operands);
  check_height(*node);
  return node;
}

ExprPtr Parser::expression() {
  const Nested nested(*this);
  ExprPtr node = without_conditional();
  while (is_name("if")) {
    const Position at = next().at;
    ExprPtr condition = without_conditional();
    ExprPtr otherwise = skip_name("else") ? expression() : nullptr;
    node = make_node(ExprKind::conditional, at, std::move(node), std::move(condition),
                     std::move(otherwise));
  }
  return node;
}

ExprPtr Parser::tuple_or_expression(bool allow_conditional, bool allow_empty) {
  const Position at = peek().at;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    const bool end =
        peek().kind == TokenKind::variable_end || peek().kind == TokenKind::block_end || is_op(")");
    if (end) break;
    items.push_back(allow_conditional ? expression() : without_conditional());
    if (!skip_op(",")) break;
    is_tuple = true;
  }
  if (is_tuple || (items.empty() && allow_empty))
    return make(ExprKind::tuple, at, std::move(items));
  if (items.empty()) fail("expected an expression, found {}", describe(peek()));
  return std::move(items[0]);
}

ExprPtr Parser::without_conditional() {
  ExprPtr node = conjunction();
  while (is_name("or")) {
    const Position at = next().at;
    ExprPtr right = conjunction();
    node = make_node(ExprKind::or_, at, std::move(node), std::move(right));
  }
  return node;
}

ExprPtr Parser::conjunction() {
  ExprPtr node = negation();
  while (is_name("and")) {
    const Position at = next().at;
    ExprPtr right = negation();
    node = make_node(ExprKind::and_, at, std::move(node), std::move(right));
  }
  return node;
}

ExprPtr Parser::negation() {
  if (!is_name("not")) return comparison();
  const Nested nested(*this);
  const Position at = next().at;
  return make_node(ExprKind::not_, at, negation());
}

ExprPtr Parser::comparison() {
  const Position at = peek().at;
  std::vector<ExprPtr> operands;
  std::vector<Operator> operators;
  operands.push_back(sum());
  while (true) {
    if (const OperatorName* row = find_operator(kComparisons, peek())) {
      next();
      operators.push_back(row->op);
    } else if (skip_name("in")) {
      operators.push_back(Operator::in);
    } else if (is_name("not") && is_name("in", 1)) {
      next();
      next();
      operators.push_back(Operator::not_in);
    } else {
      break;
    }
    operands.push_back(sum());
  }
  if (operators.empty()) return std::move(operands[0]);
  ExprPtr node = make(ExprKind::compare, at, std::move(operands));
  node->operators = std::move(operators);
  return node;
}

ExprPtr Parser::sum() {
  ExprPtr node = concatenation();
  while (const OperatorName* row = find_operator(kSums, peek())) {
    const Position at = next().at;
    ExprPtr right = concatenation();
    node = make_node(ExprKind::arithmetic, at, std::move(node), std::move(right));
    node->operators = {row->op};
  }
  return node;
}

ExprPtr Parser::concatenation() {
  const Position at = peek().at;
  std::vector<ExprPtr> parts;
  parts.push_back(product());
  while (skip_op("~")) parts.push_back(product());
  return parts.size() == 1 ? std::move(parts[0]) : make(ExprKind::concat, at, std::move(parts));
}

ExprPtr Parser::product() {
  ExprPtr node = power();
  while (const OperatorName* row = find_operator(kProducts, peek())) {
    const Position at = next().at;
    ExprPtr right = power();
    node = make_node(ExprKind::arithmetic, at, std::move(node), std::move(right));
    node->operators = {row->op};
  }
  return node;
}

// Unlike Python's, Jinja's ** groups from the left and binds less tightly than a sign.
ExprPtr Parser::power() {
  ExprPtr node = unary(true);
  while (is_op("**")) {
    const Position at = next().at;
    ExprPtr right = unary(true);
    node = make_node(ExprKind::arithmetic, at, std::move(node), std::move(right));
    node->operators = {Operator::power};
  }
  return node;
}

ExprPtr Parser::unary(bool with_filters) {
  const Nested nested(*this);
  ExprPtr node;
  if (is_op("-") || is_op("+")) {
    const ExprKind kind = is_op("-") ? ExprKind::negate : ExprKind::plus;
    const Position at = next().at;
    node = make_node(kind, at, unary(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
}

ExprPtr Parser::primary() {
  const Token& token = peek();
  ExprPtr node;
  if (token.kind == TokenKind::name) return identifier();
  if (token.kind == TokenKind::string) {
    std::string text;
    while (peek().kind == TokenKind::string) text += next().text;
    node = make(ExprKind::constant, token.at);
    node->value = make_string(std::move(text));
  } else if (token.kind == TokenKind::integer || token.kind == TokenKind::floating) {
    node = make(ExprKind::constant, token.at);
    if (token.kind == TokenKind::integer)
      node->value = token.integer;
    else
      node->value = token.floating;
    next();
  } else if (skip_op("(")) {
    node = tuple_or_expression(/*allow_conditional=*/true, /*allow_empty=*/true);
    expect_op(")");
  } else if (is_op("[")) {
    node = list_literal();
  } else if (is_op("{")) {
    node = dict_literal();
  } else {
    fail("expected an expression, found {}", describe(token));
  }
  return node;
}

ExprPtr Parser::identifier() {
  const Token& token = next();
  const std::string& name = token.text;
  const bool is_true = name == "true" || name == "True";
  if (is_true || name == "false" || name == "False") {
    ExprPtr node = make(ExprKind::constant, token.at);
    node->value = is_true;
    return node;
  }
  if (name == "none" || name == "None") {
    ExprPtr node = make(ExprKind::constant, token.at);
    node->value = None{};
    return node;
  }
  if (is_reserved_word(name)) {
    fail_at_node(token.at, "expected an expression, found '{}'", name);
  }
  if (name == "self" || name == "cycler" || name == "joiner" || name == "lipsum") {
    fail_at_node(token.at, "'{}' is not supported", name);
  }
  if (in_macro_ && (name == "caller" || name == "varargs" || name == "kwargs")) {
    fail_at_node(token.at, "'{}' in a macro is not supported", name);
  }
  if (in_loop_filter_ && name == "loop") {
    fail_at_node(token.at, "'loop' in the condition of a for loop is not supported");
  }
  ExprPtr node = make(ExprKind::name, token.at);
  node->text = name;
  node->name_id = intern(name);
  return node;
}

ExprPtr Parser::list_literal() {
  const Position at = next().at;
  std::vector<ExprPtr> items;
  while (!is_op("]")) {
    items.push_back(expression());
    if (!skip_op(",")) break;
  }
  expect_op("]");
  return make(ExprKind::list, at, std::move(items));
}

ExprPtr Parser::dict_literal() {
  const Position at = next().at;
  std::vector<ExprPtr> items;
  while (!is_op("}")) {
    items.push_back(expression());
    expect_op(":");
    items.push_back(expression());
    if (!skip_op(",")) break;
  }
  expect_op("}");
  return make(ExprKind::dict, at, std::move(items));
}

ExprPtr Parser::postfix(ExprPtr node) {
  while (true) {
    if (is_op(".") || is_op("[")) {
      node = subscript(std::move(node));
    } else if (is_op("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::filters_and_tests(ExprPtr node) {
  while (true) {
    if (is_op("|")) {
      next();
      node = filter(std::move(node));
    } else if (is_name("is")) {
      node = test(std::move(node));
    } else if (is_op("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::subscript(ExprPtr node) {
  const Position at = peek().at;
  if (next().text == "[") return bracket_subscript(std::move(node), at);
  const Token& token = next();
  if (token.kind == TokenKind::integer) {
    ExprPtr index = make(ExprKind::constant, token.at);
    index->value = token.integer;
    return make_node(ExprKind::item, at, std::move(node), std::move(index));
  }
  if (token.kind != TokenKind::name) {
    fail_at_node(token.at, "expected an attribute name, found {}", describe(token));
  }
  if (token.text.starts_with("__")) {
    fail_at_node(token.at, "the attribute '{}' is not supported: it is private to Python",
                 token.text);
  }
  node = make_node(ExprKind::attribute, token.at, std::move(node));
  node->text = token.text;
  return node;
}

ExprPtr Parser::bracket_subscript(ExprPtr node, Position at) {
  ExprPtr begin = is_op(":") ? nullptr : expression();
  if (!is_op(":")) {
    if (is_op(",")) fail("an index with ',' is not supported");
    expect_op("]");
    return make_node(ExprKind::item, at, std::move(node), std::move(begin));
  }
  next();
  ExprPtr end = is_op(":") || is_op("]") ? nullptr : expression();
  ExprPtr step;
  if (skip_op(":") && !is_op("]")) step = expression();
  expect_op("]");
  return make_node(ExprKind::slice, at, std::move(node), std::move(begin), std::move(end),
                   std::move(step));
}

ExprPtr Parser::call(ExprPtr callee) {
  if (callee->kind == ExprKind::name) return call_name(std::move(callee));
  if (callee->kind == ExprKind::attribute) return call_attribute(std::move(callee));
  fail("only names, macros and methods can be called");
}

ExprPtr Parser::call_name(ExprPtr callee) {
  const auto known =
      std::find_if(kFunctions.begin(), kFunctions.end(),
                   [&](const FunctionName& row) { return row.text == callee->text; });
  if (known == kFunctions.end()) {
    callee->kind = ExprKind::macro_call;
    calls_.emplace_back(callee->name_id, callee->at);  // macros may be defined further down
  } else {
    callee->kind = ExprKind::function;
    callee->function = known->function;
  }
  arguments(*callee);
  return callee;
}

ExprPtr Parser::call_attribute(ExprPtr callee) {
  const std::string name = callee->text;
  const bool on_loop =
      callee->operands[0]->kind == ExprKind::name && callee->operands[0]->text == "loop";
  callee->method = find_method(name);
  if (on_loop && name == "cycle") {
    callee->kind = ExprKind::loop_cycle;
  } else if (callee->method != nullptr) {
    callee->kind = ExprKind::method;
  } else {
    fail_at_node(callee->at, "the method '{}' is not supported", name);
  }
  arguments(*callee);
  return callee;
}

void Parser::arguments(Expr& node) {
  expect_op("(");
  while (!is_op(")")) {
    if (is_op("*") || is_op("**")) fail("'{}' in a call is not supported", peek().text);
    const Token& following = peek(1);
    if (peek().kind == TokenKind::name && following.kind == TokenKind::op &&
        following.text == "=") {
      const std::string keyword = next().text;
      if (std::find(node.keywords.begin(), node.keywords.end(), keyword) != node.keywords.end()) {
        fail("the argument '{}' is given twice", keyword);
      }
      node.keywords.push_back(keyword);
      next();
    } else if (!node.keywords.empty()) {
      fail("a positional argument after a named one");
    }
    node.operands.push_back(expression());
    if (!skip_op(",")) break;
  }
  expect_op(")");
  check_height(node);
}

ExprPtr Parser::filter(ExprPtr input) {
  const Position at = peek().at;
  const std::string name = expect_identifier("a filter name");
  const Filter* known = find_filter(name);
  if (known == nullptr) fail_at_node(at, "the filter '{}' is not supported", name);
  ExprPtr node = make_node(ExprKind::filter, at, std::move(input));
  node->filter = known;
  if (is_op("(")) arguments(*node);
  check_names_in_arguments(*node);
  return node;
}

// The filters of {% filter %} and {% set x | ... %}, applied to the text of the block.
ExprPtr Parser::filter_chain(ExprPtr input) {
  ExprPtr node = filter(std::move(input));
  while (skip_op("|")) node = filter(std::move(node));
  return node;
}

// map('upper') and select('odd') name a filter or a test in a string: check it as early as the
// others.
void Parser::check_names_in_arguments(const Expr& node) const {
  const std::string_view filter = node.filter->name;
  const bool by_attribute = filter == "selectattr" || filter == "rejectattr";
  const bool takes_test = by_attribute || filter == "select" || filter == "reject";
  const std::size_t where = by_attribute ? 2 : 1;
  if ((!takes_test && filter != "map") || node.operands.size() - node.keywords.size() <= where)
    return;
  const Expr& argument = *node.operands[where];
  const std::string* name =
      argument.kind == ExprKind::constant ? as_string(argument.value) : nullptr;
  if (name == nullptr) return;
  if (takes_test && find_test(*name) == nullptr) {
    fail_at_node(argument.at, "the test '{}' is not supported", *name);
  }
  if (!takes_test && find_filter(*name) == nullptr) {
    fail_at_node(argument.at, "the filter '{}' is not supported", *name);
  }
}

ExprPtr Parser::test(ExprPtr input) {
  const Position at = next().at;
  const bool negated = skip_name("not");
  const Position name_at = peek().at;
  const std::string name = next().text;
  const Test* known = find_test(name);
  if (known == nullptr) fail_at_node(name_at, "the test '{}' is not supported", name);
  ExprPtr node = make_node(ExprKind::test, at, std::move(input));
  node->test = known;
  const TokenKind kind = peek().kind;
  if (is_op("(")) {
    arguments(*node);
  } else if (kind == TokenKind::string || kind == TokenKind::integer ||
             kind == TokenKind::floating || is_op("[") || is_op("{") ||
             (kind == TokenKind::name && !is_name("else") && !is_name("or") && !is_name("and"))) {
    if (is_name("is")) fail("tests cannot be chained with 'is'");
    node->operands.push_back(postfix(primary()));
    check_height(*node);
  }
  return negated ? make_node(ExprKind::not_, at, std::move(node)) : std::move(node);
}

}  // namespace dsmoe::text::jinja
