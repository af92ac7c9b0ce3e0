//! Types that evolve, and what becomes of encoded values.

use proptest::prelude::*;

use super::*;

fn state(value_type: &str) -> StateDeclaration {
    StateDeclaration {
        name: "s".into(),
        kind: StateKind::Value,
        value_type: value_type.into(),
        map_key_type: None,
        time_to_live: None,
        taken_at_end: false,
    }
}

/// Converts bytes written in hexadecimal, with spaces.
#[track_caller]
fn check(old: &str, new: &str, bytes: &str, expected: &str) {
    let Evolution::Converted(conversion) = evolution(&state(old), &state(new)) else {
        panic!("{:?}", evolution(&state(old), &state(new)));
    };
    let bytes = from_hex(bytes);
    assert_eq!(conversion.convert(&bytes).unwrap(), from_hex(expected), "{old} to {new}");
    // What is cut off is found, wherever.
    for length in 0..bytes.len() {
        if !old.starts_with("string") {
            assert!(conversion.convert(&bytes[..length]).is_err(), "{old} cut to {length} bytes");
            assert!(conversion.convert(&[&bytes[..], &[0]].concat()).is_err());
        }
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[test]
fn values_are_rewritten_as_the_rules_say() {
    // Layouts as `wit/rows.md` describes them.
    check("u8", "u64", "fe", "fe 00 00 00 00 00 00 00");
    check("i16", "i64", "fe ff", "fe ff ff ff ff ff ff ff");
    check("u16", "i32", "fe ff", "fe ff 00 00");
    check("f32", "f64", "00 00 c0 3f", "00 00 00 00 00 00 f8 3f");
    check("u32", "option<u32>", "07 00 00 00", "01 07 00 00 00");
    check("string", "option<string>", "61 62", "01 02 00 00 00 61 62");
    check("string", "option<option<string>>", "61", "01 01 01 00 00 00 61");
    check("option<u8>", "option<u16>", "01 05", "01 05 00");
    check("option<u8>", "option<u16>", "00", "00");
    check("list<u8>", "list<u16>", "02 00 00 00 05 06", "02 00 00 00 05 00 06 00");
    check("map<string,u8>", "map<string,i16>", "01 00 00 00 01 00 00 00 61 05", "01 00 00 00 01 00 00 00 61 05 00");
    check("tuple(u8,bool)", "tuple(u16,bool)", "05 01", "05 00 01");
    check("A{a:u8,b:string,c:bool}", "A{c:bool,new:list<u8>,a:u16}", "05 01 00 00 00 61 01", "01 00 00 00 00 05 00");
    let zeros = "00 ".repeat(8 + 1 + 1 + 4);
    check("A{a:u8}", "A{a:u8,d:f64,e:option<u8>,f:tuple(bool,char)}", "05", &format!("05 {zeros}"));
    check("S[A|B(u8)]", "S[C|B(u16)|A]", "01 05", "01 05 00");
    check("S[A|B(u8)]", "S[C|B(u16)|A]", "00", "02");
    check("A{a:list<B{x:u8,y:u8}>}", "A{a:list<B{y:u8}>}", "02 00 00 00 01 02 03 04", "02 00 00 00 02 04");
}

#[test]
fn lists_are_rewritten_by_element_and_times_to_live_stay() {
    let long_lived = |kind, value_type: &str| StateDeclaration { kind, time_to_live: Some(1000), ..state(value_type) };
    let convert = |kind, bytes: &str| match evolution(&long_lived(kind, "u8"), &long_lived(kind, "u16")) {
        Evolution::Converted(conversion) => conversion.convert(&from_hex(bytes)),
        other => panic!("{other:?}"),
    };
    let time = "01 02 03 04 05 06 07 08";
    assert_eq!(convert(StateKind::Value, &format!("{time} 05")).unwrap(), from_hex(&format!("{time} 05 00")));
    assert_eq!(convert(StateKind::Map, &format!("{time} 05")).unwrap(), from_hex(&format!("{time} 05 00")));
    let list = convert(StateKind::List, &format!("09 00 00 00 {time} 05 09 00 00 00 {time} 06"));
    assert_eq!(list.unwrap(), from_hex(&format!("0a 00 00 00 {time} 05 00 0a 00 00 00 {time} 06 00")));
    assert!(convert(StateKind::List, "").unwrap().is_empty());
    assert!(convert(StateKind::Value, "01 02").is_err());
}

#[test]
fn other_changes_are_refused_with_the_reason() {
    let refused = |old: StateDeclaration, new: StateDeclaration, part: &str| match evolution(&old, &new) {
        Evolution::Incompatible(reason) => assert!(reason.contains(part), "{reason} does not say {part}"),
        other => panic!("{other:?}"),
    };
    for (old, new, part) in [
        ("u64", "u32", "u64 cannot be read as u32"),
        ("i8", "u64", "i8 cannot"),
        ("u32", "i32", "u32 cannot"),
        ("option<u8>", "u8", "option<u8> cannot"),
        ("A{a:u8}", "B{a:u8}", "A{a:u8} cannot be read as B{a:u8}"),
        ("A{a:u8}", "A{a:string}", "field \"a\": u8 cannot be read as string"),
        ("A{}", "A{s:S[X|Y]}", "the new field \"s\" is a sum, which has no default"),
        ("S[A|B]", "S[A]", "variant \"B\" of S is gone"),
        ("S[A(u8)]", "S[A]", "variant \"A\" of S is gone or has other fields"),
        ("map<u8,u8>", "map<u16,u8>", "cannot be read"),
        ("tuple(u8)", "tuple(u8,u8)", "cannot be read"),
        ("bytes", "string", "bytes cannot"),
        ("?", "u8", "the types are not known"),
    ] {
        refused(state(old), state(new), part);
    }
    let map = |key: &str| StateDeclaration { kind: StateKind::Map, map_key_type: Some(key.into()), ..state("u8") };
    refused(map("u8"), map("u16"), "keys of a map");
    refused(state("u8"), map("u8"), "another kind");
    refused(state("u8"), StateDeclaration { time_to_live: Some(5), ..state("u8") }, "time-to-live");
    let longer = StateDeclaration { time_to_live: Some(7), ..state("u8") };
    assert_eq!(evolution(&StateDeclaration { time_to_live: Some(5), ..state("u8") }, &longer), Evolution::Same);
}

/// A section of one value, one list, a map of two pairs, and a timer, whose types change.
#[test]
fn sections_are_rewritten_and_what_has_no_values_stays() {
    let put = |operation: u8, state: u8, rest: &[u8]| [&[operation, state, 1, b'k', 0], rest].concat();
    let timer = [&[7, 0][..], &[9; 8], &[1, b'k', 0]].concat();
    let section = |value: &[u8], element: &[u8], pair: &[u8]| {
        let with_length = |bytes: &[u8]| [&[u8::try_from(bytes.len()).unwrap()], bytes].concat();
        [
            vec![1],
            put(1, 0, &with_length(value)),
            put(2, 1, &with_length(&[&u32::try_from(element.len()).unwrap().to_le_bytes(), element].concat())),
            put(4, 2, &[&[1, b'm'], &with_length(pair)[..]].concat()),
            [&[6, 1, b'n'], &with_length(pair)[..]].concat(),
            put(3, 0, &[]),
            timer.clone(),
        ]
        .concat()
    };
    let declared = |value_type: &str| {
        [StateKind::Value, StateKind::List, StateKind::Map].map(|kind| StateDeclaration {
            name: format!("{kind:?}"),
            kind,
            ..state(value_type)
        })
    };
    let conversions = conversions(&declared("u8"), &declared("i16"));
    let converted = convert_section(&section(&[5], &[6], &[7]), &conversions).unwrap();
    assert_eq!(converted, section(&[5, 0], &[6, 0], &[7, 0]));
    let unchanged = section(&[5], &[6], &[7]);
    assert_eq!(convert_section(&unchanged, &[None, None, None]).unwrap(), unchanged);
    for length in 0..unchanged.len() {
        drop(convert_section(&unchanged[..length], &conversions));
    }
    assert!(convert_section(&section(&[5, 5], &[6], &[7]), &conversions).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Bytes that are no value of the old type end in an error, or in something; never in a panic.
    #[test]
    fn nonsense_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), number in 0_usize..3) {
        let (old, new) = [
            ("A{a:list<u16>,b:map<string,u8>,c:S[X(string)|Y]}", "A{a:list<u32>,c:S[Z|Y|X(string)]}"),
            ("list<A{a:u8,b:bytes}>", "list<A{b:option<bytes>}>"),
            ("option<tuple(f32,i8)>", "option<tuple(f64,i64)>"),
        ][number];
        if let Evolution::Converted(conversion) = evolution(&state(old), &state(new)) {
            drop(conversion.convert(&bytes));
        }
    }
}
