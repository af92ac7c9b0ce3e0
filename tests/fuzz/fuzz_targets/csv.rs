//! The CSV reader survives any header and line.

#![no_main]

use engine_rows::{csv::CsvReader, descriptor::TypeDescriptor};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str)| {
    let (header, line) = input;
    let descriptor = "T{a:string,b:option<i32>,c:option<char>,d:option<f64>,e:option<S[A|*B]>}";
    let descriptor = TypeDescriptor::parse(descriptor).expect("a descriptor");
    let mut reader = CsvReader::new(&descriptor, b',').expect("a type for CSV");
    let _by_position = reader.read(line, &mut Vec::new());
    if reader.set_header(header).is_ok() {
        let _by_name = reader.read(line, &mut Vec::new());
    }
});
