"""Two hundred JSON schemas in the manner of the keyword tests of JSON Schema's public suite, within what dsmoe supports."""

import random

STRINGS = [
    {"type": "string"}, {"type": "string", "minLength": 2}, {"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3, "maxLength": 12},
    {"type": "string", "maxLength": 0}, {"type": "string", "pattern": "^a*$"}, {"type": "string", "pattern": "a+"}, {"type": "string", "pattern": "^\\S(|(.|\\n)*\\S)$"},
    {"type": "string", "pattern": "^[a-z]{2,4}-\\d{3}$"}, {"type": "string", "pattern": "^(foo|bar)+$"}, {"type": "string", "pattern": "^[^\"\\\\]{1,30}$"}, {"type": "string", "pattern": "^\\W\\w\\D\\d$"},
    {"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}, {"type": "string", "format": "time"}, {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "ipv6"}, {"type": "string", "format": "email"}, {"type": "string", "format": "uuid"}, {"type": "string", "format": "hostname"},
    {"type": "string", "format": "duration"}, {"type": "string", "format": "uri"}, {"type": "string", "enum": ["foo", "bar", 6]}, {"const": "a\tb\"c\\"},
]
NUMBERS = [
    {"type": "integer"}, {"type": "number"}, {"type": "number", "minimum": 1.1}, {"type": "integer", "minimum": -2}, {"type": "number", "maximum": 3.0},
    {"type": "integer", "maximum": 300}, {"type": "number", "exclusiveMinimum": 1.1}, {"type": "number", "exclusiveMaximum": 3.0}, {"type": "integer", "exclusiveMinimum": -7, "exclusiveMaximum": 7},
    {"type": "number", "minimum": -0.5, "maximum": 0.25}, {"type": "integer", "minimum": 1000, "maximum": 99999}, {"type": "number", "minimum": 0, "exclusiveMaximum": 1}, {"type": "integer", "minimum": 2.5, "maximum": 7.5},
    {"const": 2}, {"const": -2.5}, {"enum": [1, 2.5, -3]},
    {"type": "integer", "multipleOf": 7}, {"type": "number", "multipleOf": 0.25}, {"type": "integer", "multipleOf": 50, "minimum": -400, "exclusiveMaximum": 1000}, {"type": "number", "multipleOf": 1.5, "minimum": 10},
]
OTHERS = [
    {"type": "boolean"}, {"type": "null"}, {}, True, {"enum": [6, "foo", [], True, {"foo": 12}]}, {"const": {"foo": "bar", "baz": [1, None]}}, {"enum": [None, "hello\nworld", "é"]},
    {"type": ["integer", "string"]}, {"type": ["array", "object", "null"]}, {"type": "object"}, {"type": "array"}, {"type": ["string", "null"], "maxLength": 5},
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 4}]}, {"anyOf": [{"type": "null"}, {"anyOf": [{"const": 1}, {"const": "a"}]}]}, {"allOf": [{"type": "boolean"}]},
    {"oneOf": [{"type": "integer"}, {"type": "string", "minLength": 2}, {"type": "null"}]}, {"oneOf": [{"enum": ["a", 1]}, {"const": "b"}, {"type": "boolean"}]},
]
WHOLE = [
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value": {"type": "number"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["value", "children"], "additionalProperties": False}}},
    {"type": "object", "properties": {"foo": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "additionalProperties": False},
    {"type": "object", "properties": {"foo": {"type": "integer"}, "bar": {"$ref": "#/properties/foo"}}, "required": ["bar"]},
    {"$defs": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/a"}, "c": {"$ref": "#/$defs/b"}}, "$ref": "#/$defs/c"},
    {"$defs": {"tilde~field": {"type": "integer"}, "slash/field": {"type": "boolean"}}, "type": "object", "properties": {"tilde": {"$ref": "#/$defs/tilde~0field"}, "slash": {"$ref": "#/$defs/slash~1field"}}, "required": ["tilde", "slash"]},
    {"type": "object", "properties": {"$ref": {"type": "string"}}, "required": ["$ref"]},
    {"type": "object", "properties": {"foo\nbar": {"const": 1}, "foo\"bar": {"const": 2}, "foo\\bar": {"const": 3}, "foo\tbar": {"const": 4}, "föö": {"const": 5}}, "required": ["foo\nbar", "foo\"bar", "foo\\bar", "foo\tbar", "föö"]},
    {"type": "object", "properties": {"__proto__": {"type": "number"}, "toString": {"properties": {"length": {"type": "string"}}}, "constructor": {"type": "number"}}},
    {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}, "maxItems": 2},
    {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}},
    {"type": "array", "minItems": 2, "maxItems": 4}, {"type": "array", "items": {"type": "boolean"}, "minItems": 5}, {"type": "array", "items": {}, "maxItems": 1}, {"type": "array", "maxItems": 0},
    {"type": "object", "additionalProperties": {"type": "boolean"}}, {"type": "object", "properties": {"foo": {}, "bar": {}}, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "properties": {"foo": {"type": "array", "maxItems": 3}, "bar": {"type": "array"}}, "required": ["foo"], "additionalProperties": {"type": "integer"}},
    {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "discriminator": {"propertyName": "kind"}, "$defs": {"cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer", "multipleOf": 3}}, "required": ["kind"]}, "dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "puppy"]}, "name": {"type": "string"}}, "required": ["kind", "name"]}}},
    {"type": "array", "items": {"oneOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "number", "multipleOf": 0.5}]}, "minItems": 1},
    {"type": "object", "properties": {}, "additionalProperties": False}, {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"type": "null"}}},
]


def combined(pick):
    """A schema of an object or a list whose parts are of the lists above."""
    leaf = lambda: pick.choice(pick.choice([STRINGS, NUMBERS, OTHERS]))  # noqa: E731
    if pick.random() < 0.3:
        bounds = {"minItems": pick.randrange(3)} if pick.random() < 0.5 else {"maxItems": pick.randrange(1, 5)}
        return {"type": "array", "items": leaf(), **bounds}
    names = pick.sample(["foo", "bar", "baz", "quux", "name", "né", "a b"], pick.randrange(1, 6))
    schema = {"type": "object", "properties": {name: combined(pick) if pick.random() < 0.15 else leaf() for name in names}}
    schema["required"] = [name for name in names if pick.random() < 0.6]
    if pick.random() < 0.5:
        schema["additionalProperties"] = False
    return schema


def schemas(count=200):
    pick = random.Random(24)
    made = STRINGS + NUMBERS + OTHERS + WHOLE
    while len(made) < count:
        made.append(combined(pick))
    return made[:count]
