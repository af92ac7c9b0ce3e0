//! The encoding of records against the vectors in `wit/rows.json`.

use std::collections::{BTreeMap, BTreeSet};

use engine_rows::{
    key_hash::key_hash,
    row::{Row, Rows},
};
use engine_sdk::{
    Bytes, Key, Pair, Record,
    record::{DecodeError, Nesting},
};
use serde_json::Value;

#[derive(Record, Key)]
struct Bid<'a> {
    auction: u64,
    bidder: u64,
    price: u64,
    channel: &'a str,
    date_time: i64,
}

#[derive(Record)]
struct Mixed {
    a: u8,
    b: u32,
    c: bool,
    #[record(name = "type")]
    kind: i16,
    d: f64,
    e: Vec<u8>,
}

#[derive(Record, Key)]
enum Event<'a> {
    #[allow(dead_code, reason = "takes the first number")]
    Person,
    Bid(Bid<'a>),
    Moved(u32, String),
    #[record(other)]
    Other,
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../wit/rows.json")).expect("the vectors are JSON")
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal")).collect()
}

/// Descriptors and payloads by name of the vector.
#[derive(Default)]
struct Encoded(BTreeMap<&'static str, (String, Vec<u8>)>);

impl Encoded {
    fn add<T: Record + ?Sized>(&mut self, name: &'static str, record: T::Ref<'_>) {
        let mut payload = Vec::new();
        T::encode(record, &mut payload);
        let decoded = T::decode(&payload, |view| {
            let mut again = Vec::new();
            T::encode(T::peek(&view), &mut again);
            again
        });
        assert_eq!(decoded.as_ref(), Ok(&payload), "{name}: decoded and encoded again");
        for length in 0..payload.len() {
            // Text and bytes are whole at any length.
            if !matches!(T::descriptor(Nesting::ROOT).to_string().as_str(), "string" | "bytes") {
                assert_eq!(T::decode(&payload[..length], |_| ()), Err(DecodeError::TooShort), "{name}: {length} bytes");
            }
        }
        self.0.insert(name, (T::descriptor(Nesting::ROOT).to_string(), payload));
    }
}

#[test]
fn records_are_encoded_as_the_vectors_say() {
    let bid = |auction, bidder, price, channel, date_time| Bid { auction, bidder, price, channel, date_time };
    let mut encoded = Encoded::default();
    encoded.add::<bool>("bool", &true);
    encoded.add::<char>("char", &'ß');
    encoded.add::<u8>("u8", &u8::MAX);
    encoded.add::<u16>("u16", &u16::MAX);
    encoded.add::<u32>("u32", &u32::MAX);
    encoded.add::<u64>("u64", &u64::MAX);
    encoded.add::<i8>("i8", &i8::MIN);
    encoded.add::<i16>("i16", &i16::MIN);
    encoded.add::<i32>("i32", &-1);
    encoded.add::<i64>("i64", &i64::MIN);
    encoded.add::<f32>("f32", &1.5);
    encoded.add::<f64>("f64", &-0.1);
    encoded.add::<str>("string", "zwölf");
    encoded.add::<String>("empty string", &String::new());
    encoded.add::<[u8]>("bytes", &[0, 255, 16]);
    encoded.add::<Option<u16>>("some", &Some(513));
    encoded.add::<Option<u16>>("none", &None);
    encoded.add::<Vec<String>>("list", &["a", "", "bc"].map(str::to_owned).to_vec());
    encoded.add::<BTreeMap<String, u32>>("map", &[("b".to_owned(), 2), ("a".to_owned(), 1)].into());
    encoded.add::<()>("unit", &());
    encoded.add::<(u64, String)>("tuple", &(7, "seven".to_owned()));
    encoded.add::<((u8, u8), Option<Bytes>)>("nested tuple", &((1, 2), Some(Bytes(vec![0xab]))));
    encoded.add::<Bid<'_>>("struct", &bid(1000, 1001, 134_003, "Apple", 1_767_225_600_007));
    encoded.add::<Mixed>("mixed struct", &Mixed { a: 1, b: 2, c: true, kind: -3, d: 0.5, e: vec![4, 5] });
    encoded.add::<Event<'_>>("sum", &Event::Bid(bid(1, 2, 3, "", -1)));
    encoded.add::<Event<'_>>("sum without fields", &Event::Other);
    encoded.add::<Event<'_>>("sum with two fields", &Event::Moved(9, "x".to_owned()));

    let vectors = vectors();
    let mut names = BTreeSet::new();
    for vector in vectors["values"].as_array().unwrap() {
        let name = vector["name"].as_str().unwrap();
        names.insert(name);
        let payload = unhex(vector["payload"].as_str().unwrap());
        let expected = (vector["type"].as_str().unwrap().to_owned(), payload.clone());
        assert_eq!(encoded.0.get(name), Some(&expected), "{name}");
        if let Some(hash) = vector["key_hash"].as_u64() {
            assert_eq!(u64::from(key_hash(&payload)), hash, "{name}");
        }
    }
    assert!(encoded.0.keys().copied().eq(names), "each vector has a record and the other way round");
}

#[test]
fn a_pair_is_encoded_as_a_tuple() {
    let mut pair = Vec::new();
    Pair::<str, u64>::encode(("seven", &7), &mut pair);
    let mut tuple = Vec::new();
    <(String, u64)>::encode(&("seven".to_owned(), 7), &mut tuple);
    assert_eq!(pair, tuple);
    assert_eq!(Pair::<str, u64>::descriptor(Nesting::ROOT), <(String, u64)>::descriptor(Nesting::ROOT));
    assert_eq!(Pair::<str, u64>::decode(&pair, |(key, value)| (key.to_owned(), value)), Ok(("seven".to_owned(), 7)));
    assert_eq!(Pair::<str, u64>::decode(&pair[..3], |_| ()), Err(DecodeError::TooShort));
    pair.push(0);
    assert_eq!(Pair::<str, u64>::decode(&pair, |_| ()), Err(DecodeError::TooLong));
}

#[test]
fn batches_are_walked_as_the_vectors_say() {
    for vector in vectors()["rows"].as_array().unwrap() {
        let batch = unhex(vector["batch"].as_str().unwrap());
        let rows: Vec<Row<'_>> = Rows::new(&batch).map(|row| row.unwrap()).collect();
        let expected = vector["rows"].as_array().unwrap();
        assert_eq!(rows.len(), expected.len());
        for (row, expected) in rows.iter().zip(expected) {
            assert_eq!(u64::from(row.key_hash), expected["key_hash"].as_u64().unwrap());
            assert_eq!(row.timestamp.to_string(), expected["timestamp"].as_str().unwrap());
            assert_eq!(row.payload, unhex(expected["payload"].as_str().unwrap()));
        }
    }
}

#[test]
fn numbers_that_stand_for_nothing_are_refused() {
    assert_eq!(bool::decode(&[2], |_| ()), Err(DecodeError::NoSuchValue));
    assert_eq!(char::decode(&0xd800_u32.to_le_bytes(), |_| ()), Err(DecodeError::NoSuchValue));
    assert_eq!(Option::<u8>::decode(&[2, 0], |_| ()), Err(DecodeError::NoSuchValue));
    assert_eq!(Event::decode(&[4], |_| ()), Err(DecodeError::NoSuchValue));
    assert_eq!(str::decode(&[0xff], |_| ()), Err(DecodeError::NotUtf8));
    assert_eq!(u8::decode(&[0, 0], |_| ()), Err(DecodeError::TooLong));
    // A count that lies reserves no memory.
    assert_eq!(Vec::<u64>::decode(&u32::MAX.to_le_bytes(), |_| ()), Err(DecodeError::TooShort));
}

#[test]
fn text_of_each_short_length_is_copied_whole() {
    let text: String = ('a'..='z').chain('A'..='Z').collect();
    for length in 0..=text.len() {
        let mut out = b"#".to_vec();
        str::encode(&text[..length], &mut out);
        assert_eq!(out[1..], text.as_bytes()[..length]);
    }
}
