//! The JSON reader survives any line, takes what `serde_json` takes, and reads a
//! line in the same way before and after it has learnt its keys.

#![no_main]

use std::collections::HashMap;

use engine_rows::{descriptor::TypeDescriptor, json::JsonReader};
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;

const TYPES: [&str; 6] = [
    "Event[Bid(Bid{auction:u64,price:u32,channel:string,extra:option<string>})|Pair(u8,char)|Unit|*Other]",
    "T{a:list<map<string,option<i16>>>,b:bytes,c:tuple(f64,bool,tuple()),d:T{e:string}}",
    "string",
    "bytes",
    "list<f32>",
    "T{}",
];

fuzz_target!(|line: &str| {
    for descriptor in TYPES {
        let descriptor = TypeDescriptor::parse(descriptor).expect("a descriptor");
        let mut reader = JsonReader::new(&descriptor).expect("a type for JSON");
        let mut fresh = Vec::new();
        let first = reader.read(line, &mut fresh);
        let mut learnt = Vec::new();
        let second = reader.read(line, &mut learnt);
        assert_eq!((&first, &fresh), (&second, &learnt));
        if descriptor == TypeDescriptor::String {
            match serde_json::from_str::<String>(line) {
                Ok(text) => assert_eq!(fresh, text.into_bytes()),
                Err(_) => assert!(first.is_err()),
            }
        }
        // An object whose fields nobody reads; the reader's own limit of depth aside.
        if descriptor.to_string() == "T{}" {
            let is_object = serde_json::from_str::<HashMap<String, IgnoredAny>>(line).is_ok();
            let too_deep = first.as_ref().is_err_and(|error| error.problem.contains("nested"));
            assert!(first.is_ok() == is_object || too_deep, "{first:?}");
        }
    }
});
