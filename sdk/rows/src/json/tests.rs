//! The reader against `serde_json`, against cases in the manner of the public
//! JSON test suites, and against its own table of messages.

use std::fmt;

use proptest::{collection, prelude::*, sample::Index};
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess, VariantAccess, Visitor};

use super::*;

fn parse(descriptor: &str) -> TypeDescriptor {
    TypeDescriptor::parse(descriptor).expect("a descriptor")
}

fn read(descriptor: &str, line: &str) -> Result<Vec<u8>, String> {
    let mut reader = JsonReader::new(&parse(descriptor)).expect("a type for JSON");
    read_with(&mut reader, line)
}

fn read_with(reader: &mut JsonReader, line: &str) -> Result<Vec<u8>, String> {
    let mut out = b"before".to_vec();
    match reader.read(line, &mut out) {
        Ok(()) => Ok(out.split_off(6)),
        Err(error) => {
            assert_eq!(out, b"before", "an error leaves the output as it was");
            Err(error.to_string())
        }
    }
}

#[track_caller]
fn check(descriptor: &str, line: &str, expected: &[u8]) {
    assert_eq!(read(descriptor, line), Ok(expected.to_vec()), "{line}");
}

#[track_caller]
fn check_error(descriptor: &str, line: &str, expected: &str) {
    assert_eq!(read(descriptor, line), Err(expected.to_owned()), "{line}");
}

#[test]
fn scalars_are_encoded_as_described() {
    check("bool", " true ", &[1]);
    check("char", r#""\u00e9""#, &0xe9_u32.to_le_bytes());
    check("u8", "255", &[255]);
    check("i16", "-32768", &(-32768_i16).to_le_bytes());
    check("i64", "-9223372036854775808", &i64::MIN.to_le_bytes());
    check("u64", "18446744073709551615", &u64::MAX.to_le_bytes());
    check("f64", "1", &1_f64.to_le_bytes());
    check("f64", "-0", &(-0_f64).to_le_bytes());
    check("f64", "1e-400", &0_f64.to_le_bytes());
    check("f32", "0.1", &0.1_f32.to_le_bytes());
    check("tuple()", "null", &[]);
    check("option<u8>", "null", &[0]);
    check("option<u8>", "7", &[1, 7]);
}

#[test]
fn text_has_a_length_only_within_a_record() {
    check("string", r#" "a\"\\\/\b\f\n\r\t\ud83d\ude00" "#, "a\"\\/\u{8}\u{c}\n\r\t\u{1f600}".as_bytes());
    check("bytes", r#""ab""#, b"ab");
    check("bytes", "[1, 2]", &[1, 2]);
    check("tuple(string,bytes,bytes)", r#"["ab","c",[9]]"#, b"\x02\0\0\0ab\x01\0\0\0c\x01\0\0\0\x09");
}

#[test]
fn containers_are_counted() {
    check("list<u8>", "[ ]", &[0, 0, 0, 0]);
    check("list<u8>", "[1 ,2]", &[2, 0, 0, 0, 1, 2]);
    check("map<u8,bool>", r#"{"1":true , "2":false}"#, &[2, 0, 0, 0, 1, 1, 2, 0]);
    check("map<string,u8>", r#"{"a":1,"b":2,"a":3}"#, b"\x02\0\0\0\x01\0\0\0b\x02\x01\0\0\0a\x03");
    check("map<u8,list<u8>>", r#"{"1":[1],"1":[],"1":[2,3]}"#, &[1, 0, 0, 0, 1, 2, 0, 0, 0, 2, 3]);
}

#[test]
fn fields_are_found_in_any_order_and_the_last_of_a_name_counts() {
    let descriptor = "T{a:u8,b:string,c:option<u8>}";
    let expected = |c: &[u8]| [&[1, 2, 0, 0, 0][..], b"bb", c].concat();
    check(descriptor, r#"{"a":1,"b":"bb","c":3}"#, &expected(&[1, 3]));
    check(descriptor, r#"{"c":3,"b":"bb","a":1}"#, &expected(&[1, 3]));
    check(descriptor, r#"{"b":"bb","x":[{"a":9}],"a":1}"#, &expected(&[0]));
    check(descriptor, r#"{"a":7,"b":"x","a":1,"c":null,"b":"bb"}"#, &expected(&[0]));
    check(descriptor, r#"{"\u0061":1,"b":"bb"}"#, &expected(&[0]));
    check("T{}", r#" { "a" : { } } "#, &[]);
}

#[test]
fn what_was_learnt_from_one_line_does_not_harm_the_next() {
    let mut reader = JsonReader::new(&parse("T{a:u8,b:option<u8>}")).expect("a type for JSON");
    for (line, expected) in [
        (r#"{"a":1,"b":2}"#, &[1, 1, 2][..]),
        (r#"{"a":3,"b":4}"#, &[3, 1, 4]),
        (r#"{"b":4,"a":3}"#, &[3, 1, 4]),
        (r#"{"a":3,"b":4}"#, &[3, 1, 4]),
        (r#"{"a": 3,"b":  4}"#, &[3, 1, 4]),
        (r#"{"a": 3, "b": 4}"#, &[3, 1, 4]),
        (r#"{"a": 5, "b": 6}"#, &[5, 1, 6]),
        (r#"{"a": 5}"#, &[5, 0]),
        (r#"{"a": 5, "a key that is longer than what is remembered": 1, "b": 6, "x": 0}"#, &[5, 1, 6]),
        (r#"{"a": 5, "a key that is longer than what is remembered": 1, "b": 7, "x": 0}"#, &[5, 1, 7]),
    ] {
        let mut out = Vec::new();
        assert_eq!(reader.read(line, &mut out), Ok(()), "{line}");
        assert_eq!(out, expected, "{line}");
    }
    let mut out = Vec::new();
    assert!(reader.read(r#"{"a": 5, "a key"#, &mut out).is_err());
    assert_eq!(reader.read(r#"{"a":1,"b":2}"#, &mut out), Ok(()));
}

#[test]
fn names_of_variants_are_learnt_and_forgotten() {
    let mut reader = JsonReader::new(&parse("S[A(T{a:u8})|*Other]")).expect("a type for JSON");
    let names: Vec<String> = (0..20).map(|index| format!("name{index}")).collect();
    let names = names.iter().map(String::as_str).chain(["a name that is longer than what is remembered"]);
    for name in names.clone().chain(names.clone()).chain(names) {
        for content in [r#"{"b":[1],"\ud800":2}"#, " [ ]", "{}", "null"] {
            let line = format!("{{\"{name}\":{content}}}");
            assert_eq!(read_with(&mut reader, &line), Ok(vec![1]), "{line}");
            assert_eq!(read_with(&mut reader, r#"{"A":{"a":7}}"#), Ok(vec![0, 7]));
        }
    }
}

#[test]
fn the_rest_of_a_line_that_nobody_asked_for_is_not_looked_at() {
    let mut reader = JsonReader::new(&parse("S[A(u8)|*Other]")).expect("a type for JSON");
    for line in [r#"{"B":{"b":}}"#, r#"{"B":"#, r#"{"B":1} ]"#, r#"{"B":"}"#] {
        assert_eq!(read_with(&mut reader, line), Ok(vec![1]), "{line}");
        let mut out = Vec::new();
        let length = reader.read_first_line(&format!("{line}\r\n{{\"A\":7}}\n"), &mut out);
        assert_eq!((length, out), (Some(line.len() + 1), vec![1]), "{line}");
        assert_eq!(reader.read_first_line(line, &mut Vec::new()), None, "a line without its end");
    }
    for line in [r#"{"B"}"#, r#"{B:1}"#, r#"{"A":}"#, "{}"] {
        assert!(read_with(&mut reader, line).is_err(), "{line}");
    }
    // What is part of a line has to be read to find its end.
    let mut reader = JsonReader::new(&parse("list<S[A(u8)|*Other]>")).expect("a type for JSON");
    assert_eq!(read_with(&mut reader, r#"[{"B":{"b":[1]}},{"A":7}]"#), Ok(vec![2, 0, 0, 0, 1, 0, 7]));
    assert!(read_with(&mut reader, r#"[{"B":{"b":}},{"A":7}]"#).is_err());
}

#[test]
fn lines_of_other_variants_are_passed_over_together_once_their_names_are_known() {
    let mut reader = JsonReader::new(&parse("S[A(u8)|*Other]")).expect("a type for JSON");
    let line = |name: &str, rest: &str| format!("{{\"{name}\":{rest}\n");
    let (b, c) = (line("B", "{\"b\":\"a text that is long enough to be compared\"}}"), line("C", "\r"));
    let behind = line("A", "7}                                              ");
    let text = format!("{b}{c}{c}{b}{behind}{b}");
    assert_eq!(reader.skip_other_lines(&text), (0, 0), "no name is known");
    for (known, skipped) in [(&b, (b.len(), 1)), (&c, (2 * (b.len() + c.len()), 4))] {
        assert_eq!(reader.read_first_line(known, &mut Vec::new()), Some(known.len() - 1));
        assert_eq!(reader.skip_other_lines(&text), skipped);
    }
    assert_eq!(reader.skip_other_lines(&text[2 * (b.len() + c.len())..]), (0, 0), "an A is wanted");
    assert_eq!(reader.skip_other_lines(b.trim_end()), (0, 0), "a line without its end");
    let long = format!("{{\"B\":{}\n", " ".repeat(LINE_BYTES_MAX));
    assert_eq!(reader.skip_other_lines(&long), (0, 0));
    // Names of variants that are wanted, and records of another form, are never passed over.
    assert_eq!(reader.read_first_line(&behind, &mut Vec::new()), Some(behind.len() - 1));
    assert_eq!(reader.skip_other_lines(&behind), (0, 0));
    let plain = JsonReader::new(&parse("T{a:u8}")).expect("a type for JSON");
    assert_eq!(plain.skip_other_lines(&text), (0, 0));
}

#[test]
fn the_first_line_of_a_text_is_read_as_one_alone() {
    let mut reader = JsonReader::new(&parse("T{a:u8,b:string}")).expect("a type for JSON");
    for (line, read) in [
        (r#"{"a":1,"b":"x"}"#, true),
        (" {\"b\" : \"\\n\" ,\t\"a\": 2 } \r", true),
        (r#"{"a":300,"b":"x"}"#, false),
        (r#"{"a":1,"b":"x"} {}"#, false),
        (r#"{"a":1,"b":"x"#, false),
        (r#"{"a":1"#, false),
        ("", false),
    ] {
        for behind in ["\"}\n", "{\"a\":1,\"b\":\"x\"}\n", ",\"b\":\"x\"}\n", "}"] {
            let (mut out, mut expected) = (b"before".to_vec(), b"before".to_vec());
            assert_eq!(reader.read(line, &mut expected).is_ok(), read, "{line}");
            let length = reader.read_first_line(&format!("{line}\n{behind}"), &mut out);
            assert_eq!((length, out), (read.then_some(line.len()), expected), "{line}");
        }
        assert_eq!(reader.read_first_line(line, &mut Vec::new()), None, "a line without its end");
    }
    let long = format!("{}{{\"a\":1,\"b\":\"\"}}\n", " ".repeat(LINE_BYTES_MAX));
    assert_eq!(reader.read_first_line(&long, &mut Vec::new()), None);
}

#[test]
fn objects_of_very_many_keys_are_read() {
    let keys: String = (0..1000).map(|index| format!("\"k{index}\":{index},")).collect();
    let mut reader = JsonReader::new(&parse("T{k7:u64,k999:u64}")).expect("a type for JSON");
    for _ in 0..3 {
        let mut out = Vec::new();
        assert_eq!(reader.read(&format!("{{{keys}\"end\":0}}"), &mut out), Ok(()));
        assert_eq!(out, [7_u64.to_le_bytes(), 999_u64.to_le_bytes()].concat());
    }
}

#[test]
fn sums_are_tagged_from_outside() {
    let descriptor = "S[A(u8)|B(u8,bool)|C|*D]";
    check(descriptor, r#"{"A":5}"#, &[0, 5]);
    check(descriptor, r#" { "B" : [ 5 , true ] } "#, &[1, 5, 1]);
    check(descriptor, r#""C""#, &[2]);
    check(descriptor, r#"{"C":null}"#, &[2]);
    check(descriptor, r#"{"Nobody":{"knows":[1,2]}}"#, &[3]);
    check(descriptor, r#""Nobody""#, &[3]);
    check(descriptor, r#"{"D":7}"#, &[3]);
    check_error(descriptor, r#""A""#, "column 1: expected an object {\"A\":…}, found a string");
    check_error(descriptor, r#"{"A":5,"C":null}"#, "column 7: expected \"}\" behind the only variant, found ','");
    check_error(descriptor, "{}", "column 2: expected the name of a variant in quotes, found '}'");
    check_error("S[A(u8)|C]", r#"{"X":1}"#, "column 2: unknown variant \"X\", expected one of A, C");
}

#[test]
fn messages_name_field_and_column() {
    let bid = "Event[Bid(Bid{price:u32,tags:list<string>,extra:map<string,u8>})|*Other]";
    for (line, expected) in [
        ("", "column 1: expected an object with one key or a string, found the end of the line"),
        (r#"{"Bid":{"price":"7"}}"#, "column 17, field \"Bid.price\": expected u32, found a string"),
        (r#"{"Bid":{"price":1.5}}"#, "column 17, field \"Bid.price\": expected u32, found 1.5"),
        (r#"{"Bid":{"price":1e3}}"#, "column 17, field \"Bid.price\": expected u32, found 1e3"),
        (r#"{"Bid":{"price":-1}}"#, "column 17, field \"Bid.price\": -1 is out of range for u32"),
        (r#"{"Bid":{"price":null}}"#, "column 17, field \"Bid.price\": expected u32, found null"),
        (
            r#"{"Bid":{"price":99999999999999999999}}"#,
            "column 17, field \"Bid.price\": 99999999999999999999 is out of range for u32",
        ),
        (r#"{"Bid":{"tags":[],"extra":{}}}"#, "column 29, field \"Bid.price\": the field is missing"),
        (r#"{"Bid":{"tags":["a",7]}}"#, "column 21, field \"Bid.tags[1]\": expected a string, found a number"),
        (r#"{"Bid":{"extra":{"a":300}}}"#, "column 22, field \"Bid.extra.a\": 300 is out of range for u8"),
        (r#"{"Bid":{"price":7"#, "column 18, field \"Bid\": expected \",\" or \"}\", found the end of the line"),
    ] {
        check_error(bid, line, expected);
    }
    for (line, expected) in [
        (r#"[{"Person":{"a":[1,}}]"#, "column 20, field \"[0].Other\": expected a value, found '}'"),
        (r#"[{"Person":1}] x"#, "column 16: text after the end of the value"),
        (r#"[{"Person":ö}]"#, "column 12, field \"[0].Other\": expected a value, found 'ö'"),
    ] {
        check_error(&format!("list<{bid}>"), line, expected);
    }
    check_error("string", "\"a\tb\"", "column 3: control character 0x09 in a string: write it as an escape");
    check_error("string", r#""abc"#, "column 5: the string is not closed");
    check_error("string", r#""\ud800x""#, "column 2: escape of half a surrogate pair");
    check_error("f64", "1e999", "column 1: 1e999 is out of range for f64");
    check_error("f32", "1e39", "column 1: 1e39 is out of range for f32");
    check_error("tuple(u8,u8)", "[1]", "column 1: expected an array of 2 elements, found 1");
    check_error("tuple(u8,u8)", "[1,2,3]", "column 6: expected an array of 2 elements, found more");
}

#[test]
fn nesting_and_size_are_capped() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    check("tuple(T[*Any])", &format!("[{{\"a\":{}}}]", nested(DEPTH_MAX - 3)), &[0]);
    let error = format!("objects and arrays are nested {DEPTH_MAX} deep or more");
    for depth in [DEPTH_MAX - 2, 100_000] {
        let refused = read("tuple(T[*Any])", &format!("[{{\"a\":{}}}]", nested(depth))).expect_err("too deep");
        assert!(refused.ends_with(&error), "{refused}");
    }
    let long = format!("\"{}\"", "x".repeat(LINE_BYTES_MAX));
    assert_eq!(read("string", &long), Err(format!("column 1: the line is longer than {LINE_BYTES_MAX} bytes")));
    // Each "{}," of a line becomes a hundred bytes.
    let fields: Vec<String> = (0..100).map(|index| format!("f{index}:option<u8>")).collect();
    let many = format!("[{}{{}}]", "{},".repeat(1_000_000));
    let refused = read(&format!("list<T{{{}}}>", fields.join(",")), &many).expect_err("too large");
    assert!(refused.ends_with(&format!("the row is longer than {ROW_BYTES_MAX} bytes")), "{refused}");
}

#[test]
fn types_that_do_not_fit_json_are_refused() {
    for (descriptor, expected) in [
        ("T{a:u8,a:u8}", "type T{a:u8,a:u8}: two fields have the same name"),
        (
            "list<map<f64,u8>>",
            "type map<f64,u8>: keys of a map in JSON are text, characters, whole numbers or truth values",
        ),
    ] {
        let error = JsonReader::new(&parse(descriptor)).expect_err("no type for JSON");
        assert_eq!(error.to_string(), expected);
    }
}

/// Cases in the manner of the public JSON test suites, as bytes: what must be
/// taken, what must be refused, and what `serde_json` decides.
#[test]
fn syntax_is_checked_also_where_nobody_reads() {
    let accepted: &[&str] = &[
        "[]",
        "[[]   ]",
        "[\"\"]",
        "[null]",
        "[1\n]",
        " [1]",
        "[2] ",
        "[true,false]",
        "[1,null,null,null,2]",
        "[-0]",
        "[-1]",
        "[-0.0]",
        "[0e+1]",
        "[0e1]",
        "[123e45]",
        "[123.456e-789]",
        "[1E22]",
        "[1E-2]",
        "[1e+2]",
        "[-123123.0e-5]",
        "[123.456789]",
        "[20e1]",
        "[0.4e00669999999999999999999999999999999]",
        "[-237462374673276894279832749832423479823246327846]",
        "[100000000000000000000]",
        "{}",
        "{\"a\":[]}",
        "{\"a\":1,\"a\":1}",
        "{\"\":0}",
        "{\"a\":\"b\",\"c\":{\"d\":[{}]}}",
        "{\"a\" : 1 }",
        "{\"title\":\"\\u041f\\u043e\\u043b\\u0442\\u043e\\u0440\\u0430\"}",
        "[\"\\u0060\\u012a\\u12AB\"]",
        "[\"\\ud801\\udc37\"]",
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]",
        "[\"\\\\u0000\"]",
        "[\"a/*b*/c/*d//e\"]",
        "[\"\u{7f}\"]",
        "[\"\u{10ffff}\"]",
        "[\"\u{2028}\u{2029}\"]",
        "[\"\\u0000\"]",
        "[\"\\uDBFF\\uDFFE\"]",
        "[\"\u{20ac}\u{1d11e}\"]",
        "\"\"",
        "42",
        "-0.1",
        "null",
        "\t[1]\r\n",
    ];
    let refused: &[&str] = &[
        "",
        " ",
        "[1 true]",
        "[a\u{e9}]",
        "[\"\": 1]",
        "[\"\"],",
        "[,1]",
        "[1,,2]",
        "[\"x\"]]",
        "[\"\",]",
        "[\"x\"",
        "[x",
        "[3[4]]",
        "[,]",
        "[-]",
        "[   , \"\"]",
        "[1,]",
        "[1,,]",
        "[\"a\u{b}\"]",
        "[*]",
        "[\"\"",
        "[1",
        "[{}",
        "[fals]",
        "[nul]",
        "[tru]",
        "[True]",
        "[++1234]",
        "[+1]",
        "[-01]",
        "[-1.0.]",
        "[-2.]",
        "[-NaN]",
        "[.-1]",
        "[.2e-3]",
        "[0.1.2]",
        "[0.3e+]",
        "[0.3e]",
        "[0.e1]",
        "[0E+]",
        "[0E]",
        "[0e+]",
        "[0e]",
        "[1.0e+]",
        "[1.0e-]",
        "[1.0e]",
        "[1eE2]",
        "[2.e+3]",
        "[9.e+]",
        "[Inf]",
        "[NaN]",
        "[0x1]",
        "[1+2]",
        "[0x42]",
        "[Infinity]",
        "[-foo]",
        "[- 1]",
        "[-012]",
        "[-.123]",
        "[-1x]",
        "[1ea]",
        "[1.]",
        "[.123]",
        "[1.2a-3]",
        "[1.8011670033376514H-308]",
        "[012]",
        "[\"x\", truth]",
        "{[: \"x\"}",
        "{\"x\", null}",
        "{\"x\"::\"b\"}",
        "{\"a\":\"a\" 123}",
        "{key: 'v'}",
        "{1:1}",
        "{9999E9999:1}",
        "{null:null}",
        "{\"id\":0,,,,,}",
        "{'a':0}",
        "{\"id\":0,}",
        "{\"a\":\"b\"}/**/",
        "{\"a\":\"b\"}//",
        "{\"a\":true} \"x\"",
        "{\"a\":",
        "{\"a\"",
        "{\"a\":/*comment*/\"b\"}",
        "{\"a\":1 \"b\":2}",
        "[\"\\uD800\\\"]",
        "[\"\\uD800\\u\"]",
        "[\"\\uD800\\u1\"]",
        "[\"\\u00A\"]",
        "[\"\\x00\"]",
        "[\"\\\\\\\"]",
        "[\"\\\u{9}\"]",
        "[\"\\\"]",
        "[\"\\a\"]",
        "[\"\\uqqqq\"]",
        "[\"\\",
        "[\"\\u",
        "['x']",
        "[\u{0}]",
        "[\"a\nb\"]",
        "[\"\t\"]",
        "\"\\UA66D\"",
        "\"",
        "\"asd",
        "abc",
        "\u{feff}{}",
        "[\u{2060}]",
        "<.>",
        "[<null>]",
        "[1]x",
        "]",
        "}",
        "[1}",
        "{]",
        "[\"a\", 4\n,1,",
        "\u{e5}",
        "{\"a\":true\u{c}}",
        "[\u{c}]",
        "{}}",
        "{\"\":",
        "[\"\u{0}\"]",
        "*",
        "\\",
    ];
    let mut reader = JsonReader::new(&parse("tuple(W[*Any])")).expect("a type for JSON");
    let mut check = |value: &str, expected: bool| {
        let line = format!("[{{\"any\":{value}}}]");
        // The wrapped value may be accepted where the bare one is not, as with `{"any":1}}`.
        let reference = serde_json::from_str::<[std::collections::BTreeMap<String, IgnoredAny>; 1]>(&line).is_ok();
        let read = reader.read(&line, &mut Vec::new());
        assert_eq!(read.is_ok(), reference, "{line}: {read:?}");
        assert_eq!(serde_json::from_str::<IgnoredAny>(value).is_ok(), expected, "{value}");
    };
    accepted.iter().for_each(|value| check(value, true));
    refused.iter().for_each(|value| check(value, false));
    for value in accepted.iter().chain(refused) {
        for descriptor in ["list<option<u8>>", "f64", "string", "map<string,option<string>>", "T{a:option<bool>}"] {
            agree(&parse(descriptor), value);
        }
    }
}

/// Reads by `serde_json` what the reader reads, one type at a time.
#[derive(Clone, Copy)]
struct Reference<'a> {
    descriptor: &'a TypeDescriptor,
    whole: bool,
}

/// Encodings that a map holds: of a key, and of its value.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn reference<'de, D: Deserializer<'de>>(descriptor: &TypeDescriptor, from: D) -> Result<Vec<u8>, D::Error> {
    Reference { descriptor, whole: false }.deserialize(from)
}

fn with_length(whole: bool, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short").to_le_bytes();
    if whole { bytes.to_vec() } else { [&length[..], bytes].concat() }
}

fn with_count(count: usize, items: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut bytes = u32::try_from(count).expect("few").to_le_bytes().to_vec();
    bytes.extend(items.into_iter().flatten());
    bytes
}

impl<'de> DeserializeSeed<'de> for Reference<'_> {
    type Value = Vec<u8>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<u8>, D::Error> {
        use serde::Deserialize;
        type T = TypeDescriptor;
        Ok(match self.descriptor {
            T::Bool => vec![u8::from(bool::deserialize(from)?)],
            T::Char => u32::from(char::deserialize(from)?).to_le_bytes().to_vec(),
            T::U8 => u8::deserialize(from)?.to_le_bytes().to_vec(),
            T::U16 => u16::deserialize(from)?.to_le_bytes().to_vec(),
            T::U32 => u32::deserialize(from)?.to_le_bytes().to_vec(),
            T::U64 => u64::deserialize(from)?.to_le_bytes().to_vec(),
            T::I8 => i8::deserialize(from)?.to_le_bytes().to_vec(),
            T::I16 => i16::deserialize(from)?.to_le_bytes().to_vec(),
            T::I32 => i32::deserialize(from)?.to_le_bytes().to_vec(),
            T::I64 => i64::deserialize(from)?.to_le_bytes().to_vec(),
            T::F32 | T::F64 => f64::deserialize(from)?.to_le_bytes().to_vec(),
            T::String => with_length(self.whole, String::deserialize(from)?.as_bytes()),
            T::Bytes => from.deserialize_any(self)?,
            T::Tuple(elements) if elements.is_empty() => {
                <()>::deserialize(from)?;
                Vec::new()
            }
            T::Option(_) => from.deserialize_option(self)?,
            T::List(_) | T::Tuple(_) => from.deserialize_seq(self)?,
            T::Map(..) | T::Struct { .. } => from.deserialize_map(self)?,
            T::Sum { .. } => from.deserialize_enum("", &[], self)?,
        })
    }
}

impl<'de> Visitor<'de> for Reference<'_> {
    type Value = Vec<u8>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.descriptor)
    }

    fn visit_none<E>(self) -> Result<Vec<u8>, E> {
        Ok(vec![0])
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Vec<u8>, E> {
        match self.descriptor {
            TypeDescriptor::Option(_) => Ok(vec![0]),
            _ => Err(E::custom("null")),
        }
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Vec<u8>, D::Error> {
        let TypeDescriptor::Option(element) = self.descriptor else { unreachable!("asked for an option") };
        Ok([vec![1], reference(element, from)?].concat())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<u8>, E> {
        match self.descriptor {
            TypeDescriptor::Bytes => Ok(with_length(self.whole, text.as_bytes())),
            _ => Err(E::custom("a string")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u8>, A::Error> {
        let mut next = |descriptor: &_| seq.next_element_seed(Reference { descriptor, whole: false });
        match self.descriptor {
            TypeDescriptor::Bytes => {
                let mut bytes = Vec::new();
                while let Some(byte) = next(&TypeDescriptor::U8)? {
                    bytes.extend(byte);
                }
                Ok(with_length(self.whole, &bytes))
            }
            TypeDescriptor::List(element) => {
                let mut items = Vec::new();
                while let Some(item) = next(element)? {
                    items.push(item);
                }
                Ok(with_count(items.len(), items))
            }
            TypeDescriptor::Tuple(elements) => {
                let mut bytes = Vec::new();
                for element in elements {
                    bytes.extend(next(element)?.ok_or_else(|| serde::de::Error::custom("short"))?);
                }
                match seq.next_element::<IgnoredAny>()? {
                    None => Ok(bytes),
                    Some(_) => Err(serde::de::Error::custom("long")),
                }
            }
            _ => Err(serde::de::Error::custom("an array")),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<u8>, A::Error> {
        match self.descriptor {
            TypeDescriptor::Map(key, value) => {
                let mut entries = Entries::new();
                while let Some(key) = map.next_key_seed(Reference { descriptor: key, whole: false })? {
                    entries.retain(|(known, _)| *known != key);
                    entries.push((key, map.next_value_seed(Reference { descriptor: value, whole: false })?));
                }
                Ok(with_count(entries.len(), entries.into_iter().map(|(key, value)| [key, value].concat())))
            }
            TypeDescriptor::Struct { fields, .. } => {
                let mut values = vec![None; fields.len()];
                while let Some(key) = map.next_key::<String>()? {
                    match fields.iter().position(|(name, _)| *name == key) {
                        Some(index) => {
                            let seed = Reference { descriptor: &fields[index].1, whole: false };
                            values[index] = Some(map.next_value_seed(seed)?);
                        }
                        None => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                let encoded = fields.iter().zip(values).map(|((_, kind), value)| match (kind, value) {
                    (_, Some(value)) => Ok(value),
                    (TypeDescriptor::Option(_), None) => Ok(vec![0]),
                    (_, None) => Err(serde::de::Error::custom("missing")),
                });
                Ok(encoded.collect::<Result<Vec<_>, _>>()?.concat())
            }
            _ => Err(serde::de::Error::custom("an object")),
        }
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Vec<u8>, A::Error> {
        let TypeDescriptor::Sum { variants, .. } = self.descriptor else { unreachable!("asked for a sum") };
        let (name, content) = access.variant::<String>()?;
        let known = variants.iter().position(|variant| variant.name == name);
        let Some(index) = known.or(variants.iter().position(|variant| variant.other)) else {
            return Err(serde::de::Error::custom("unknown variant"));
        };
        let mut bytes = vec![u8::try_from(index).expect("few variants")];
        match variants[index].fields.as_slice() {
            [] => content.unit_variant()?,
            [field] => bytes.extend(content.newtype_variant_seed(Reference { descriptor: field, whole: false })?),
            fields => {
                let tuple = TypeDescriptor::Tuple(fields.to_vec());
                bytes.extend(content.tuple_variant(fields.len(), Reference { descriptor: &tuple, whole: false })?);
            }
        }
        Ok(bytes)
    }
}

/// The reader takes what `serde_json` takes, and makes the same of it.
#[track_caller]
fn agree(descriptor: &TypeDescriptor, line: &str) {
    let mut reader = JsonReader::new(descriptor).expect("a type for JSON");
    let mut from = serde_json::Deserializer::from_str(line);
    let expected = Reference { descriptor, whole: true }.deserialize(&mut from);
    let expected = expected.and_then(|bytes| from.end().map(|()| bytes));
    // Twice: before and after the keys of the line are known.
    for _ in 0..2 {
        let mut out = Vec::new();
        let read = reader.read(line, &mut out);
        match &expected {
            Ok(expected) => {
                assert_eq!(read, Ok(()), "{descriptor} from {line}");
                assert_eq!(&out, expected, "{descriptor} from {line}");
            }
            Err(error) => assert!(read.is_err(), "{descriptor} from {line}: serde_json says {error}"),
        }
    }
    if !line.contains('\n') {
        let mut out = Vec::new();
        let length = reader.read_first_line(&format!("{line}\n\"}}{line}"), &mut out);
        assert_eq!(length, expected.is_ok().then_some(line.len()), "{descriptor} from {line}");
        assert_eq!(out, expected.unwrap_or_default(), "{descriptor} from {line}");
    }
}

/// Lines that look all the same are read faster; one that differs from them comes out as if it came first.
#[track_caller]
fn check_among_regular(descriptor: &TypeDescriptor, regular: &str, line: &str) {
    let mut fresh = JsonReader::new(descriptor).expect("a type for JSON");
    let mut used = fresh.clone();
    let read = |reader: &mut JsonReader, line: &str| {
        let mut out = Vec::new();
        let text = format!("{line}\n{}", "x".repeat(EXPECTED_BYTES_MAX));
        (reader.read_first_line(&text, &mut out), out)
    };
    for _ in 0..3 {
        read(&mut used, regular);
    }
    assert_eq!(read(&mut used, regular), read(&mut fresh.clone(), regular), "{descriptor} from {regular}");
    assert_eq!(read(&mut used, line), read(&mut fresh, line), "{descriptor} from {line} after {regular}");
}

#[test]
fn lines_that_differ_from_those_before_are_read_as_if_they_came_first() {
    let regular = r#"{"a":12,"x":"ignored","b":"text","y":{"z":[1,2]},"c":-7,"d":[1,2],"v":1}"#;
    let descriptor = parse("T{a:u8,b:string,c:i16,d:list<u8>}");
    for (from, to) in [
        ("12", "255"),
        ("12", "256"),
        ("12", "-1"),
        ("12", "012"),
        ("12", "1.0"),
        ("12", " 12"),
        ("-7", "32767"),
        ("-7", "32768"),
        ("-7", "-32768"),
        ("-7", "-32769"),
        ("text", ""),
        ("text", "exactly 16 bytes"),
        ("text", "no more than this: 17"),
        ("text", "te\\u0078t"),
        ("text", "te\u{1}xt"),
        ("text\"", "text"),
        ("ignored", "te\u{1}xt"),
        ("ignored", "\\n"),
        ("ignored", "\\q"),
        ("[1,2]", "[1,]"),
        (":[1,2],\"v\"", ":[1,2],\"w\""),
        (":[1,2],\"v\"", ":[1,999],\"v\""),
        (",\"v\":1", ""),
        ("\"a\":12,", ""),
        ("\"c\":-7,", ""),
        ("\"c\":-7", "\"a\":7"),
        ("\"v\":1}", "\"v\":1,\"a\":3}"),
        ("\"v\":1}", "\"v\":1 }"),
        ("\"v\":1}", "\"v\":1"),
        ("\"v\":1}", "\"v\":1}}"),
    ] {
        assert!(regular.contains(from), "{from}");
        check_among_regular(&descriptor, regular, &regular.replacen(from, to, 1));
    }
}

/// Types, but for `f32` and sums with a variant marked `*`, where the reader differs on purpose.
fn descriptors() -> impl Strategy<Value = TypeDescriptor> {
    use TypeDescriptor as T;
    let scalars = [T::Bool, T::Char, T::U8, T::U16, T::U32, T::U64, T::I8, T::I16, T::I32, T::I64, T::F64];
    let leaves = scalars.into_iter().chain([T::String, T::String, T::Bytes, T::Tuple(Vec::new())]);
    let keys = [T::Bool, T::Char, T::U8, T::I64, T::String];
    let leaf = prop::sample::select(leaves.collect::<Vec<_>>());
    leaf.prop_recursive(3, 24, 4, move |inner| {
        let name =
            prop::sample::select(vec!["a", "b", "cc", "a long name of a field, longer than any other", "\u{e9}\""]);
        let key = prop::sample::select(keys.to_vec());
        let fields = collection::btree_map(name, inner.clone(), 0..4);
        let contents = collection::vec(collection::vec(inner.clone(), 0..3), 1..4);
        prop_oneof![
            inner.clone().prop_map(|element| T::Option(Box::new(element))),
            inner.clone().prop_map(|element| T::List(Box::new(element))),
            (key, inner.clone()).prop_map(|(key, value)| T::Map(Box::new(key), Box::new(value))),
            collection::vec(inner, 1..4).prop_map(T::Tuple),
            (fields, any::<bool>()).prop_map(|(fields, reverse)| {
                let mut fields: Vec<_> = fields.into_iter().map(|(name, kind)| (name.to_owned(), kind)).collect();
                if reverse {
                    fields.reverse();
                }
                T::Struct { name: "S".to_owned(), fields }
            }),
            contents.prop_map(|contents| {
                let variants = contents.into_iter().enumerate().map(|(index, fields)| crate::descriptor::Variant {
                    name: format!("V{index}"),
                    other: false,
                    fields,
                });
                T::Sum { name: "E".to_owned(), variants: variants.collect() }
            }),
        ]
    })
}

/// Text of a value of the type, now and then of a neighbouring one.
fn text_of(descriptor: &TypeDescriptor) -> BoxedStrategy<String> {
    use TypeDescriptor as T;
    let join = |items: Vec<String>, open: &str, close: &str| format!("{open}{}{close}", items.join(","));
    let quoted = |text: String| serde_json::to_string(&text).expect("text is JSON");
    match descriptor {
        T::Bool => prop::sample::select(vec!["true", "false"]).prop_map(str::to_owned).boxed(),
        T::Char => any::<char>().prop_map(move |character| quoted(character.to_string())).boxed(),
        T::U8 | T::I8 => (-130_i32..260).prop_map(|number| number.to_string()).boxed(),
        T::U16 | T::I16 => (-33_000_i32..66_000).prop_map(|number| number.to_string()).boxed(),
        T::U32 | T::I32 => (-2_200_000_000_i64..4_400_000_000).prop_map(|number| number.to_string()).boxed(),
        T::U64 => any::<u64>().prop_map(|number| number.to_string()).boxed(),
        T::I64 => any::<i64>().prop_map(|number| number.to_string()).boxed(),
        // Few digits, which serde_json reads exactly.
        T::F32 | T::F64 => {
            (-999_999_i64..999_999, -9_i32..9).prop_map(|(digits, exponent)| format!("{digits}.25e{exponent}")).boxed()
        }
        T::String | T::Bytes => any::<String>().prop_map(quoted).boxed(),
        T::Tuple(elements) if elements.is_empty() => Just("null".to_owned()).boxed(),
        T::Option(element) => prop_oneof![Just("null".to_owned()), text_of(element)].boxed(),
        T::List(element) => {
            collection::vec(text_of(element), 0..4).prop_map(move |items| join(items, "[", "]")).boxed()
        }
        T::Map(key, value) => {
            let key = match **key {
                T::String | T::Char => text_of(key),
                _ => text_of(key).prop_map(|key| format!("\"{key}\"")).boxed(),
            };
            let entry = (key, text_of(value)).prop_map(|(key, value)| format!("{key}:{value}"));
            collection::vec(entry, 0..4).prop_map(move |items| join(items, "{", "}")).boxed()
        }
        T::Tuple(elements) => {
            let items: Vec<_> = elements.iter().map(text_of).collect();
            items.prop_map(move |items| join(items, "[", "]")).boxed()
        }
        T::Struct { fields, .. } => {
            let values: Vec<_> = fields.iter().map(|(_, kind)| text_of(kind)).collect();
            let names: Vec<_> = fields.iter().map(|(name, _)| quoted(name.clone())).collect();
            (values, any::<[bool; 4]>())
                .prop_map(move |(values, [reverse, ignored, duplicate, missing])| {
                    let pairs = names.iter().zip(values).map(|(name, value)| format!("{name}:{value}"));
                    let mut pairs: Vec<_> = pairs.collect();
                    if ignored {
                        pairs.insert(pairs.len() / 2, "\"ignored\":[{\"a\":\"\\ud800\"},1e999]".to_owned());
                    }
                    if duplicate {
                        pairs.extend(pairs.first().cloned());
                    }
                    if reverse {
                        pairs.reverse();
                    }
                    if missing {
                        pairs.pop();
                    }
                    join(pairs, "{", "}")
                })
                .boxed()
        }
        T::Sum { variants, .. } => {
            let texts = variants.iter().map(|variant| {
                let name = variant.name.clone();
                match variant.fields.as_slice() {
                    [] => Just(format!("\"{name}\"")).boxed(),
                    [field] => text_of(field).prop_map(move |field| format!("{{\"{name}\":{field}}}")).boxed(),
                    fields => text_of(&T::Tuple(fields.to_vec()))
                        .prop_map(move |fields| format!("{{\"{name}\":{fields}}}"))
                        .boxed(),
                }
            });
            prop::strategy::Union::new(texts.collect::<Vec<_>>()).boxed()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn values_equal_those_of_serde_json(
        (descriptor, text) in descriptors().prop_flat_map(|kind| (Just(kind.clone()), text_of(&kind))),
    ) {
        agree(&descriptor, &text);
        // White space wherever a structural byte stands outside strings.
        let mut spaced = String::new();
        let mut in_string = false;
        let mut escaped = false;
        for character in text.chars() {
            in_string ^= character == '"' && !escaped;
            escaped = in_string && character == '\\' && !escaped;
            spaced.push(character);
            if !in_string && "{}[]:,".contains(character) {
                spaced.push_str(" \t\r\n");
            }
        }
        agree(&descriptor, &spaced);
    }

    #[test]
    fn what_is_written_is_read_back(
        (descriptor, text) in descriptors().prop_flat_map(|kind| (Just(kind.clone()), text_of(&kind))),
    ) {
        let mut reader = JsonReader::new(&descriptor).expect("a type that fits JSON");
        if let Ok(record) = read_with(&mut reader, &text) {
            let mut written = String::new();
            write_json(&descriptor, &record, &mut written).expect("a record of the type");
            prop_assert!(serde_json::from_str::<serde_json::Value>(&written).is_ok(), "{written}");
            let again = read_with(&mut reader, &written).expect("JSON of the type");
            // An option of what may be null itself is told from none by the encoding only.
            let shown = descriptor.to_string();
            if !shown.contains("option<option<") && !shown.contains("option<tuple()>") {
                prop_assert_eq!(again, record, "{}", written);
            }
        }
    }

    #[test]
    fn damaged_text_is_judged_as_by_serde_json(
        (descriptor, text) in descriptors().prop_flat_map(|kind| (Just(kind.clone()), text_of(&kind))),
        damages in collection::vec((any::<Index>(), any::<Index>(), 0..4_u8), 1..4),
    ) {
        const BYTES: &[u8] = b"{}[]:,\"\\ \t\n0123456789.-+eEtrufalsnbd/\x00\x1f\x7fVa";
        let mut damaged = text.clone().into_bytes();
        for (place, byte, kind) in damages {
            if damaged.is_empty() {
                break;
            }
            let place = place.index(damaged.len());
            let byte = BYTES[byte.index(BYTES.len())];
            match kind {
                0 => damaged.truncate(place),
                1 => damaged.insert(place, byte),
                2 => damaged[place] = byte,
                _ => {
                    damaged.remove(place);
                }
            }
        }
        if let Ok(damaged) = String::from_utf8(damaged) {
            check_among_regular(&descriptor, &text, &damaged);
            // Floats with more digits than serde_json reads exactly are judged in another test.
            if !descriptor.to_string().contains("f64") {
                agree(&descriptor, &damaged);
            }
        }
    }

    #[test]
    fn floats_are_the_nearest_ones(text in "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?") {
        let expected: f64 = text.parse().expect("a number");
        check("f64", &text, &expected.to_le_bytes());
    }

    #[test]
    fn any_text_is_survived(descriptor in descriptors(), text in any::<String>()) {
        agree(&descriptor, &text);
    }
}
