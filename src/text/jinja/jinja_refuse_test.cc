// Malformed, unsupported and hostile templates: each ends in a message that names the fault and its
// place.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/jinja/jinja_eval.h"

namespace dsmoe::text::jinja {
namespace {

const Variables kVariables =
    Variables::parse(R"({"messages": [{"role": "user", "content": "hi"}], "n": 3})");

std::string repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::string parse_refusal(const std::string& source) {
  try {
    parse(source, "t");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    return error.what();
  }
  return "accepted";
}

std::string render_refusal(const std::string& source) {
  const Template parsed = parse(source, "t");
  try {
    render(parsed, kVariables);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    return error.what();
  }
  return "accepted";
}

using Cases = std::vector<std::pair<std::string, std::string>>;

TEST(JinjaRefuse, MalformedTemplates) {
  const Cases cases = {
      {"{{ n", "t: line 1, column 1: tag without its end '}}'"},
      {"a\n {% if n ", "t: line 2, column 2: tag without its end '%}'"},
      {"\xC3\xA9 {# x", "t: line 1, column 3: comment without its end '#}'"},
      {"{% raw %} {{ x", "t: line 1, column 1: raw block without its end '{% endraw %}'"},
      {"{{ 'abc }}", "t: line 1, column 4: string without its closing quote"},
      {"{{ 'a\\", "t: line 1, column 4: string without its closing quote"},
      {"{{ n & n }}", "t: line 1, column 6: unexpected character '&' inside a tag"},
      {"{{ \xC3\xA9 }}", "t: line 1, column 4: unexpected character '\xC3\xA9' inside a tag"},
      {"{{ (1] }}", "t: line 1, column 6: unexpected ']', expected ')'"},
      {"{{ 1) }}", "t: line 1, column 5: unexpected ')'"},
      {"{{ 1 + }}", "t: line 1, column 8: expected an expression, found '}}'"},
      {"{{ }}", "t: line 1, column 4: expected an expression, found '}}'"},
      {"{{ a b }}", "t: line 1, column 6: expected '}}', found 'b'"},
      {"{% if n %}x", "t: line 1, column 12: the template ends where '{% endif %}' was expected"},
      {"{% for x in n %}\n{% endif %}", "t: line 2, column 4: unexpected '{% endif %}'"},
      {"{% else %}", "t: line 1, column 4: unexpected '{% else %}'"},
      {"{% %}", "t: line 1, column 4: expected the name of a tag, found '%}'"},
      {"{% for x of n %}{% endfor %}", "t: line 1, column 10: expected 'in', found 'of'"},
      {"{% for 1 in n %}{% endfor %}",
       "t: line 1, column 8: expected the name of a variable, found '1'"},
      {"{% set true = 1 %}", "t: line 1, column 8: cannot assign to 'true'"},
      {"{% set x = 1 2 %}", "t: line 1, column 14: expected '%}', found '2'"},
      {"{{ n. }}", "t: line 1, column 7: expected an attribute name, found '}}'"},
      {"{{ n | }}", "t: line 1, column 8: expected a filter name, found '}}'"},
      {"{{ f(a=1, 2) }}", "t: line 1, column 11: a positional argument after a named one"},
      {"{{ dict(a=1, a=2) }}", "t: line 1, column 15: the argument 'a' is given twice"},
      {"{{ '\\u12' }}",
       "t: line 1, column 5: an escape sequence in a string needs 4 hexadecimal digits"},
      {"{{ '\\ud800' }}", "t: line 1, column 5: U+D800 is not a character"},
      {"{{ 99999999999999999999 }}",
       "t: line 1, column 4: the integer 99999999999999999999 needs more than 64 bits"},
      {"{% break %}", "t: line 1, column 4: 'break' outside of a loop"},
      {"{% for x in n %}{% set y %}{% continue %}{% endset %}{% endfor %}",
       "t: line 1, column 31: 'continue' outside of a loop"},
      {"{% macro f(a=1, b) %}{% endmacro %}",
       "t: line 1, column 18: the parameter 'b' without a default follows one with a default"},
      {"\xFF", "t: the chat template is not valid UTF-8"},
  };
  for (const auto& [source, message] : cases) EXPECT_EQ(parse_refusal(source), message) << source;
}

TEST(JinjaRefuse, UnsupportedConstructsByName) {
  const Cases cases = {
      {"{% include 'x' %}", "t: line 1, column 4: the tag 'include' is not supported"},
      {"{% import 'x' as y %}", "t: line 1, column 4: the tag 'import' is not supported"},
      {"{% extends 'x' %}", "t: line 1, column 4: the tag 'extends' is not supported"},
      {"{% call f() %}{% endcall %}", "t: line 1, column 4: the tag 'call' is not supported"},
      {"{% do x %}", "t: line 1, column 4: the tag 'do' is not supported"},
      {"{% autoescape true %}{% endautoescape %}",
       "t: line 1, column 4: the tag 'autoescape' is not supported"},
      {"{{ n | groupby('a') }}", "t: line 1, column 8: the filter 'groupby' is not supported"},
      {"{{ n | map('nope') }}", "t: line 1, column 12: the filter 'nope' is not supported"},
      {"{{ n | selectattr('a', 'nope') }}",
       "t: line 1, column 24: the test 'nope' is not supported"},
      {"{{ lipsum() }}", "t: line 1, column 4: 'lipsum' is not supported"},
      {"{{ n is sameas n }}", "t: line 1, column 9: the test 'sameas' is not supported"},
      {"{{ n.append(1) }}", "t: line 1, column 6: the method 'append' is not supported"},
      {"{{ open('/etc/passwd') }}", "t: line 1, column 4: the function 'open' is not supported"},
      {"{{ n.__class__.__mro__ }}",
       "t: line 1, column 6: the attribute '__class__' is not supported: it is private to Python"},
      {"{{ n[0](1) }}", "t: line 1, column 8: only names, macros and methods can be called"},
      {"{{ range(*n) }}", "t: line 1, column 10: '*' in a call is not supported"},
      {"{{ n[1, 2] }}", "t: line 1, column 7: an index with ',' is not supported"},
      {"{{ 0x1F }}",
       "t: line 1, column 4: hexadecimal, octal and binary numbers are not supported"},
      {"{{ '\\N{BULLET}' }}",
       "t: line 1, column 5: this escape sequence in a string is not supported"},
      {"{% for x in n recursive %}{% endfor %}",
       "t: line 1, column 15: 'recursive' in a for loop is not supported"},
      {"{% for x in n if loop.first %}{% endfor %}",
       "t: line 1, column 18: 'loop' in the condition of a for loop is not supported"},
      {"{% for x in n %}{% macro f() %}{% endmacro %}{% endfor %}",
       "t: line 1, column 20: a macro inside a loop, a macro or another block is not supported"},
      {"{% macro f() %}{{ caller() }}{% endmacro %}",
       "t: line 1, column 19: 'caller' in a macro is not supported"},
  };
  for (const auto& [source, message] : cases) EXPECT_EQ(parse_refusal(source), message) << source;
}

TEST(JinjaRefuse, FailuresWhileRendering) {
  const Cases cases = {
      {"{{ raise_exception('no ' ~ n) }}",
       "t: line 1, column 4: the template refuses this conversation: no 3"},
      {"a\n{{ strftime_now('%Y') }}",
       "t: line 2, column 4: the function 'strftime_now' needs a day: a prompt must not depend on "
       "the day it is made; give one with --template-date"},
      {"{{ nobody.home }}", "t: line 1, column 11: 'nobody' is undefined: it has no 'home'"},
      {"{{ messages[0].nope + 'x' }}",
       "t: line 1, column 21: cannot compute undefined 'nope' + a string"},
      {"{{ n + 'x' }}", "t: line 1, column 6: cannot compute an integer + a string"},
      {"{{ 2 ** 63 }}", "t: line 1, column 6: an integer result needs more than 64 bits"},
      {"{{ 9223372036854775807 + 1 }}",
       "t: line 1, column 24: an integer result needs more than 64 bits"},
      {"{{ (-9223372036854775807 - 1) // -1 }}",
       "t: line 1, column 31: an integer result needs more than 64 bits"},
      {"{{ n // 0 }}", "t: line 1, column 6: division by zero"},
      {"{{ n | selectattr }}",
       "t: line 1, column 8: 'selectattr' and 'rejectattr' need an attribute"},
      {"{{ n | trim(1) }}",
       "t: line 1, column 8: the argument 'chars' of 'trim' must be a string, not an integer"},
      {"{{ n | join(x=1) }}", "t: line 1, column 8: 'join' has no argument 'x'"},
      {"{{ n | length }}", "t: line 1, column 8: an integer has no length"},
      {"{% set x = messages | map('string') %}",
       "t: line 1, column 23: an iterator cannot be stored: add | list"},
      {"{{ messages | map('string') }}",
       "t: line 1, column 15: cannot print an iterator: add | list"},
      {"{{ range(3) }}", "t: line 1, column 4: cannot print a range: add | list"},
      {"{{ {1: 2} }}", "t: line 1, column 5: dict keys must be strings, not an integer"},
      {"{% set n.x = 1 %}",
       "t: line 1, column 8: 'n' is not a namespace: its attributes cannot be set"},
      {"{% set a, b = [1] %}", "t: line 1, column 8: cannot unpack 1 values into 2 variables"},
      {"{% set ns = namespace() %}{% for m in messages if ns.x %}{% endfor %}",
       "t: line 1, column 54: a namespace in the condition of a for loop is not supported"},
      {"{{ ('a' | safe) + 'b' }}",
       "t: line 1, column 11: the filter 'safe' is supported only as the last step of {{ ... }}"},
  };
  for (const auto& [source, message] : cases) EXPECT_EQ(render_refusal(source), message) << source;
}

// Deep nesting must be refused before it reaches the end of the stack, while parsing or while
// running.
TEST(JinjaRefuse, DepthIsBounded) {
  const std::string nested = "t: line 1, column ";
  for (const std::string& source :
       {"{{ " + repeat("(", 20000) + "1" + repeat(")", 20000) + " }}",
        "{{ " + repeat("[", 5000) + "1" + repeat("]", 5000) + " }}",
        "{{ " + repeat("-", 20000) + "1 }}", "{{ " + repeat("not ", 20000) + "1 }}",
        "{{ " + repeat("n[", 5000) + "1" + repeat("]", 5000) + " }}",
        "{{ " + repeat("1 if 1 else ", 10000) + "1 }}", "{{ 1" + repeat(" + 1", 20000) + " }}",
        "{{ n" + repeat(".x", 20000) + " }}", "{{ n" + repeat(" | trim", 20000) + " }}",
        "{{ 1" + repeat(" and 1", 20000) + " }}", repeat("{% if 1 %}", 10000),
        repeat("{% for x in n %}", 10000), repeat("{% set x %}", 10000),
        "{% set " + repeat("(", 20000) + "x" + repeat(")", 20000) + " = 1 %}"}) {
    const std::string message = parse_refusal(source);
    EXPECT_NE(message.find("nested"), std::string::npos) << message;
    EXPECT_EQ(message.substr(0, nested.size()), nested) << source.substr(0, 30);
  }
  EXPECT_NE(
      render_refusal("{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}").find("nested deeper"),
      std::string::npos);
  EXPECT_NE(render_refusal(
                "{% set ns = namespace(x=1) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}"
                "{% endfor %}{{ ns.x }}")
                .find("lists and dicts nested deeper than 100 levels"),
            std::string::npos);
}

// Every one of these asks for far more than it may have. Steps bound the time: one is 20 to 100 ns.
TEST(JinjaRefuse, HostileTemplatesEndWithinTheirSteps) {
  const std::string loop3 =
      "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}";
  const std::string loop = "{% for i in range(99999) %}";
  const std::string doubling = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}";
  const std::string dag =
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
      "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
  const std::string megabyte = "{% set s = 'a' * 1000000 %}";
  const std::vector<std::string> sources = {
      loop3 + "{% endfor %}{% endfor %}{% endfor %}",
      loop3 + "x{% endfor %}{% endfor %}{% endfor %}",
      loop + "{{ range(99999) | length }}{% endfor %}",
      doubling + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
      doubling + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
      doubling + "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
      doubling + "{% set ns.x = ns.x | list | join(ns.x) %}{% endfor %}",
      doubling + "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
      doubling + "{% set ns.x = [ns.x] | tojson | tojson | tojson | tojson %}{% endfor %}",
      dag + "{{ ns.x }}",
      dag + "{{ ns.x | tojson }}",
      dag + "{{ ns.x == ns.y }}",
      dag + "{{ ns.x | string | length }}",
      dag + "{{ [1] in [ns.x == ns.y] }}",
      "{{ 'a' * 1000000000000 }}",
      "{{ 'a' * 9223372036854775807 }}",
      "{{ [1] * 1000000000000 }}",
      "{{ [[]] * 9223372036854775807 }}",
      "{{ 'x' | indent(1000000000000) }}",
      "{{ 'x' | indent(9223372036854775807) }}",
      "{{ [1] | tojson(indent=1000000000000) }}",
      "{{ range(1000000000) }}",
      "{{ range(0, 9223372036854775807, 1) }}",
      "{{ range(-9223372036854775807, 9223372036854775807, 9) }}",
      megabyte + loop + "{{ (s ~ 'b') in s }}{% endfor %}",
      megabyte + loop + "{{ s.find('a' * 500000 ~ 'b') }}{% endfor %}",
      megabyte + loop + "{% set x = s.split('a') %}{% endfor %}",
      megabyte + loop + "{% set x = s.upper() %}{% endfor %}",
      megabyte + loop + "{% set x = s[::-1] %}{% endfor %}",
      megabyte + loop + "{% set x = s[5] %}{% endfor %}",
      megabyte + loop + "{% set x = s | length %}{% endfor %}",
      megabyte + loop + "{% set x = s.strip('a') %}{% endfor %}",
      megabyte + loop + "{% if s == s ~ '' %}{% endif %}{% endfor %}",
      megabyte + loop + "{% for c in s %}{% endfor %}{% endfor %}",
      "{% set s = ' ' * 1000000 %}" + loop + "{% set x = s | trim %}{% endfor %}",
      "{% set s = '\x01' * 1000000 %}" + loop + "{% set x = s | tojson %}{% endfor %}",
      "{% set s = '\xC2\xA0' * 500000 %}" + loop + "{% set x = [s] | string %}{% endfor %}",
      loop + "{{ messages | tojson(indent=1000) }}{% endfor %}",
      loop + "{{ messages | map('tojson') | map('list') | map('length') | join(',') }}{% endfor %}",
      loop3 + "{% set x = namespace(a=1, b=2, c=3) %}{% endfor %}{% endfor %}{% endfor %}",
      "{% macro f(k) %}{{ f(k - 1) ~ f(k - 1) if k else 'x' }}{% endmacro %}{{ f(60) }}",
      "{{ 'a' | map('map', 'map', 'map', 'map') | list }}",
  };
  const Limits limits;
  for (const std::string& source : sources) {
    std::int64_t steps = -1;
    std::string message = "accepted";
    const Template parsed = parse(source, "t");
    try {
      render(parsed, kVariables, limits, &steps);
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_NE(message, "accepted") << source;
    EXPECT_GT(steps, 0) << source;
    EXPECT_LE(steps, limits.max_steps + 10 * limits.steps_per_input_unit) << source;
    const bool named = message.find("too long") != std::string::npos ||
                       message.find("64 bits") != std::string::npos ||
                       message.find("a range of more than 100000") != std::string::npos ||
                       message.find("nested deeper") != std::string::npos ||
                       message.find("'map' inside 'map'") != std::string::npos;
    EXPECT_TRUE(named) << message;
  }
}

TEST(JinjaRefuse, SmallLimitsHold) {
  const Template parsed = parse("{% for i in range(1000) %}0123456789{% endfor %}", "t");
  EXPECT_EQ(render(parsed, kVariables).size(), 10000u);
  try {
    render(parsed, kVariables, {.max_output_bytes = 9999});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "t: line 1, column 27: the output is longer than 9999 bytes");
  }
  std::int64_t steps = 0;
  render(parsed, kVariables, {}, &steps);
  EXPECT_GT(steps, 3000);
  EXPECT_LT(steps, 10000);
  EXPECT_THROW(render(parsed, kVariables, {.max_steps = 1000, .steps_per_input_unit = 0}), Error);
  EXPECT_NO_THROW(render(parsed, kVariables, {.max_steps = steps, .steps_per_input_unit = 0}));
  EXPECT_THROW(parse(std::string(kMaxTemplateBytes + 1, 'x'), "t"), Error);
}

}  // namespace
}  // namespace dsmoe::text::jinja
