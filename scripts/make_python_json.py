#!/usr/bin/env python3
"""Writes tests/fixtures/python_json.json: JSON texts and what Python's json makes of them.

    python3 scripts/make_python_json.py > tests/fixtures/python_json.json

The decision domain promises Python's layout byte for byte (its prompts are hashed); this file is the proof.
"""
import json
import random
import struct

random.seed(217)
cases = []


def add(text):
    cases.append([text, json.dumps(json.loads(text), ensure_ascii=False)])


# Numbers: every change of notation, signs, subnormals, limits, integers that no float holds.
for text in """0 -0 1 -1 0.0 -0.0 0e0 -0e0 0E-5 1.0 1.50 1e0 1e1 1e5 1E5 1e+5 1E-5 1e-4 1e-5 0.0001 0.00001 0.00012345 0.000012345
    123456.789 1e15 1e16 1e17 1e21 1e22 1e23 1e100 1e-100 1e308 -1e308 1.7976931348623157e308 1.7976931348623158e308 5e-324 4.9e-324 2.5e-324 2e-324
    1e-400 2.2250738585072014e-308 2.225073858507201e-308 9999999999999998.0 9999999999999999.0 99999999999999990.0 1234567890123456.7
    12345678901234567.8 123456789012345678.9 9007199254740991 9007199254740993 9007199254740993.0 9007199254740992e0 18446744073709551615
    18446744073709551616 -9223372036854775808 -9223372036854775809 100000000000000000000000000000000000000001 0.1 0.2 0.30000000000000004
    3.141592653589793238462643383279 2.675 1.005 0.5 0.25 1e-7 123e-7 123e-10 1.0e-6 4.35 5.684341886080801e-14 5.684341886080802e-14
    9.5367431640625e-07 3.0517578125e-05 6.103515625e-05 0.0001220703125 1.1102230246251565e-16 4503599627370496.5 4503599627370497.5
    72057594037927945.0 1.2345678901234567e+19 12e3 12e30 -12.5e-30 100 100.0 1000000.0 -273.15""".split():
    add(text)
add("1" + "0" * 400)
add("-" + "987654321" * 50)
add("0." + "0" * 50 + "1234567890123456789")
for exponent in range(-60, 61, 12):
    add(repr(2.0 ** exponent))
while len(cases) < 150:
    value = struct.unpack("<d", struct.pack("<Q", random.getrandbits(64)))[0]
    if value == value and abs(value) != float("inf"):
        add(repr(value) if random.random() < 0.5 else "%.20e" % value)

# Strings: every control character, escapes in and out, line separators that are data, planes beyond the first.
add(json.dumps("".join(map(chr, range(0, 32)))))
add(json.dumps("".join(map(chr, range(32, 160))), ensure_ascii=False))
for text in [
    r'"\u0000\u001f\u007f\u0080\u009f"', r'"\/ \" \\ \b \f \n \r \t"', r'"\u2028\u2029"', '"\u2028\u2029\u0085"', r'"\ud83d\ude00"', '"\U0001f600"',
    r'"\u00e9\u0301"', '"e\u0301"', '"\ufeffbom"', r'"\ufffe\uffff"', '"\ufffd"', '"\u200d\u200b\u00a0"', '"<|im_start|>system"', '"</s>"', r'"\u003c/script\u003e"',
    '""', '" "', r'"\\u0041"', r'"\\"', r'"\\\\"', r'"\"\\\""', '"\u4f60\u597d"', '"\u0645\u0631\u062d\u0628\u0627"', r'"\uD834\uDD1E"', '"\U0010ffff"', r'"\udbff\udfff"',
    r'"tab\there"', r'"a\u0009b"', r'"\u000b\u000e\u001b[31m"', "\"it's\"", '"{\\"a\\": [1, 2]}"',
]:
    add(text)

# Containers: spacing, order, emptiness, keys that are not words.
for text in [
    "[]", "{}", "[ ]", "{ }", "[[]]", "[{}]", "[null,true,false]", '{"b":1,"a":2,"c":{"z":[],"y":{}}}', '{"":0}', '{"a b":"c d"}', '{"\\n":"\\n"}',
    ' \t\r\n[ 1 ,\n2 ]\r\n', '{"k" : "v" , "l":[1,[2,[3,[4]]]]}', '{"1":1,"01":1,"1.0":1}', '{"A":1,"a":2}', '{"e":1e-5,"f":1E5,"g":100.0,"h":-0}', '[1.10,2.20,3.30]',
    '{"\u00e9":1,"e\u0301":2}', '[[[[[[[[[[1]]]]]]]]]]', '{"a":{"b":{"c":{"d":{"e":null}}}}}', '["a","b",["c"]]', '[0.1,0.10,1e-1]', '{"key":"\\u0000"}',
    '{"state":"$serde_json::private::Number"}', '{"$serde_json::private::Number":"1"}', '{"$serde_json::private::RawValue":"1"}', '[true , false , null]', "[" * 100 + "]" * 100,
]:
    add(text)
alphabet = ["a", "\u00e9", "\u6f22", "\U0001f600", '"', "\\", "\n", "\x01", "\u2028", " ", "/", "\x7f"]


def value(depth):
    kind = random.randrange(8 if depth else 6)
    if kind == 0:
        return random.choice([None, True, False])
    if kind == 1:
        return random.randrange(-10 ** random.randrange(1, 30), 10 ** random.randrange(1, 30))
    if kind == 2:
        return random.uniform(-1, 1) * 10.0 ** random.randrange(-30, 30)
    if kind < 6:
        return "".join(random.choices(alphabet, k=random.randrange(8)))
    if kind == 6:
        return [value(depth - 1) for _ in range(random.randrange(4))]
    return {"".join(random.choices(alphabet, k=3)): value(depth - 1) for _ in range(random.randrange(4))}


while len(cases) < 240:
    add(json.dumps(value(3), ensure_ascii=random.random() < 0.5, separators=random.choice([(",", ":"), (" , ", " : "), (", ", ": ")])))

print("[")
print(",\n".join(json.dumps(case) for case in cases))
print("]")
