// The recursive-descent parser: expressions in jinja_parse_expr.cc, statements in
// jinja_parse_stmt.cc.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/jinja_ast.h"
#include "text/jinja/jinja_lexer.h"

namespace dsmoe::text::jinja {

class Parser {
 public:
  Parser(std::string_view source, std::string_view what);
  Template parse_template();

 private:
  // Counts nested brackets, operators and blocks, so that no input exhausts the stack.
  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) {
        parser_.fail("nested deeper than {} levels", kMaxNesting);
      }
    }
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser& parser_;
  };

  // Tokens.
  const Token& peek(std::size_t ahead = 0) const;
  const Token& next();
  bool is_op(std::string_view op) const;
  bool is_name(std::string_view name, std::size_t ahead = 0) const;
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  std::string expect_identifier(std::string_view role);
  void expect_block_end();
  std::string describe(const Token& token) const;

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    fail_at(what_, peek().at, fmt::format(text, std::forward<Args>(args)...));
  }
  template <class... Args>
  [[noreturn]] void fail_at_node(Position at, fmt::format_string<Args...> text,
                                 Args&&... args) const {
    fail_at(what_, at, fmt::format(text, std::forward<Args>(args)...));
  }

  int intern(const std::string& name);

  // Expressions, loosest binding first.
  ExprPtr make(ExprKind kind, Position at, std::vector<ExprPtr> operands = {});
  template <class... Operands>
  ExprPtr make_node(ExprKind kind, Position at, Operands... operands) {
    std::vector<ExprPtr> list;
    (list.push_back(std::move(operands)), ...);
    return make(kind, at, std::move(list));
  }
  void check_height(Expr& node);
  ExprPtr expression();
  ExprPtr without_conditional();
  ExprPtr tuple_or_expression(bool allow_conditional, bool allow_empty);
  ExprPtr conjunction();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary();
  ExprPtr identifier();
  ExprPtr list_literal();
  ExprPtr dict_literal();
  ExprPtr postfix(ExprPtr node);
  ExprPtr filters_and_tests(ExprPtr node);
  ExprPtr subscript(ExprPtr node);
  ExprPtr bracket_subscript(ExprPtr node, Position at);
  ExprPtr call(ExprPtr callee);
  ExprPtr call_name(ExprPtr callee);
  ExprPtr call_attribute(ExprPtr callee);
  ExprPtr filter(ExprPtr input);
  ExprPtr filter_chain(ExprPtr input);
  ExprPtr test(ExprPtr input);
  void arguments(Expr& node);
  void check_names_in_arguments(const Expr& node) const;

  // Statements.
  Body body(std::initializer_list<std::string_view> end_tags);
  Body block(std::initializer_list<std::string_view> end_tags);
  StmtPtr output_statement();
  StmtPtr statement();
  StmtPtr if_statement(Position at);
  StmtPtr for_statement(Position at);
  StmtPtr set_statement(Position at);
  StmtPtr with_statement(Position at);
  StmtPtr filter_statement(Position at);
  StmtPtr macro_statement(Position at);
  StmtPtr scope_statement(Position at);
  StmtPtr loop_control(Position at, StmtKind kind);
  ExprPtr target(bool allow_attribute);
  ExprPtr single_target(bool allow_attribute);

  std::string what_;
  std::vector<Token> tokens_;
  std::size_t pos_ = 0;
  int nesting_ = 0;
  int loop_depth_ = 0;   // open for bodies inside the current macro
  int scope_depth_ = 0;  // open blocks that keep their variables to themselves
  bool in_macro_ = false;
  bool in_loop_filter_ = false;  // for ... if <here>
  std::unordered_map<std::string, int> name_ids_;
  std::vector<std::string> names_;
  std::unordered_map<int, bool> macros_;         // name_id of every macro of the template
  std::vector<std::pair<int, Position>> calls_;  // of names that must turn out to be macros
};

bool is_reserved_word(std::string_view name);

}  // namespace dsmoe::text::jinja
