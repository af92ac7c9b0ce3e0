//! Writes encoded records as JSON: what the reader of the same type reads back.
//!
//! JSON has no form for some values: numbers that are none are text (`"NaN"`, `"inf"`,
//! `"-inf"`), a map whose keys cannot stand in quotes is an array of pairs, and an
//! option of an option is `null` where either is none.

use std::fmt::Write as _;

use crate::descriptor::{TypeDescriptor, Variant};

/// Elements without bytes that a list may have.
const EMPTY_ELEMENTS_MAX: u32 = 1 << 16;

/// Appends a whole record as JSON, on one line.
///
/// ```
/// use engine_rows::{descriptor::TypeDescriptor, json::write_json};
///
/// let bid = TypeDescriptor::parse("Bid{price:u32,channel:string}").expect("a descriptor");
/// let mut text = String::new();
/// write_json(&bid, b"\x07\0\0\0\x05\0\0\0Apple", &mut text).expect("fits");
/// assert_eq!(text, r#"{"price":7,"channel":"Apple"}"#);
/// ```
///
/// # Errors
/// Returns an error that says in what way the bytes are not a record of the type.
pub fn write_json(descriptor: &TypeDescriptor, record: &[u8], out: &mut String) -> Result<(), String> {
    match descriptor {
        // As a whole record without a length.
        TypeDescriptor::String => write_text(utf8(record)?, out),
        TypeDescriptor::Bytes => write_bytes(record, out),
        _ => {
            let mut rest = record;
            write_value(descriptor, &mut rest, out)?;
            if !rest.is_empty() {
                return Err(format!("{} bytes follow the value", rest.len()));
            }
        }
    }
    Ok(())
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], String> {
    let (taken, left) = rest.split_at_checked(count).ok_or("it is shorter than its type says")?;
    *rest = left;
    Ok(taken)
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let taken = take(rest, N)?;
    Ok(*taken.first_chunk().expect("as many were taken"))
}

fn take_count(rest: &mut &[u8]) -> Result<u32, String> {
    take_array(rest).map(u32::from_le_bytes)
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| "text is not UTF-8".to_owned())
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if control < ' ' || control == '\u{7f}' => {
                write!(out, "\\u{:04x}", u32::from(control)).expect("text has room");
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

fn write_bytes(bytes: &[u8], out: &mut String) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return write_text(text, out);
    }
    out.push('[');
    for (index, byte) in bytes.iter().enumerate() {
        write!(out, "{}{byte}", if index == 0 { "" } else { "," }).expect("text has room");
    }
    out.push(']');
}

fn write_float(shown: &str, is_finite: bool, out: &mut String) {
    if is_finite {
        out.push_str(shown);
    } else {
        write_text(shown, out);
    }
}

/// A value that stands within another.
fn write_value(descriptor: &TypeDescriptor, rest: &mut &[u8], out: &mut String) -> Result<(), String> {
    macro_rules! number {
        ($type:ty) => {
            write!(out, "{}", <$type>::from_le_bytes(take_array(rest)?)).expect("text has room")
        };
    }
    macro_rules! float {
        ($type:ty) => {{
            let number = <$type>::from_le_bytes(take_array(rest)?);
            write_float(&format!("{number:?}"), number.is_finite(), out);
        }};
    }
    match descriptor {
        TypeDescriptor::Bool => out.push_str(if take_flag(rest)? { "true" } else { "false" }),
        TypeDescriptor::Char => {
            let scalar = char::from_u32(take_count(rest)?).ok_or("a number stands for no character")?;
            write_text(scalar.encode_utf8(&mut [0; 4]), out);
        }
        TypeDescriptor::U8 => number!(u8),
        TypeDescriptor::U16 => number!(u16),
        TypeDescriptor::U32 => number!(u32),
        TypeDescriptor::U64 => number!(u64),
        TypeDescriptor::I8 => number!(i8),
        TypeDescriptor::I16 => number!(i16),
        TypeDescriptor::I32 => number!(i32),
        TypeDescriptor::I64 => number!(i64),
        TypeDescriptor::F32 => float!(f32),
        TypeDescriptor::F64 => float!(f64),
        TypeDescriptor::String => {
            let count = take_count(rest)?;
            write_text(utf8(take(rest, count as usize)?)?, out);
        }
        TypeDescriptor::Bytes => {
            let count = take_count(rest)?;
            write_bytes(take(rest, count as usize)?, out);
        }
        TypeDescriptor::Option(inner) => {
            if take_flag(rest)? {
                write_value(inner, rest, out)?;
            } else {
                out.push_str("null");
            }
        }
        TypeDescriptor::List(element) => {
            let count = take_count(rest)?;
            write_many(("[", "]"), count, rest, out, |rest, out| write_value(element, rest, out))?;
        }
        TypeDescriptor::Map(key, value) => write_map(key, value, rest, out)?,
        TypeDescriptor::Tuple(elements) if elements.is_empty() => out.push_str("null"),
        TypeDescriptor::Tuple(elements) => write_array(elements, rest, out)?,
        TypeDescriptor::Struct { fields, .. } => {
            out.push('{');
            for (index, (name, field)) in fields.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { "," });
                write_text(name, out);
                out.push(':');
                write_value(field, rest, out)?;
            }
            out.push('}');
        }
        TypeDescriptor::Sum { variants, .. } => {
            let [number] = take_array(rest)?;
            let variant = variants.get(usize::from(number));
            write_variant(variant.ok_or_else(|| format!("there is no variant {number}"))?, rest, out)?;
        }
    }
    Ok(())
}

fn take_flag(rest: &mut &[u8]) -> Result<bool, String> {
    match take_array(rest)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(format!("the byte {other} stands for neither 0 nor 1")),
    }
}

fn write_variant(variant: &Variant, rest: &mut &[u8], out: &mut String) -> Result<(), String> {
    if variant.fields.is_empty() {
        write_text(&variant.name, out);
        return Ok(());
    }
    out.push('{');
    write_text(&variant.name, out);
    out.push(':');
    match &variant.fields[..] {
        [field] => write_value(field, rest, out)?,
        fields => write_array(fields, rest, out)?,
    }
    out.push('}');
    Ok(())
}

fn write_array(elements: &[TypeDescriptor], rest: &mut &[u8], out: &mut String) -> Result<(), String> {
    out.push('[');
    for (index, element) in elements.iter().enumerate() {
        out.push_str(if index == 0 { "" } else { "," });
        write_value(element, rest, out)?;
    }
    out.push(']');
    Ok(())
}

fn write_map(key: &TypeDescriptor, value: &TypeDescriptor, rest: &mut &[u8], out: &mut String) -> Result<(), String> {
    use TypeDescriptor as T;
    let count = take_count(rest)?;
    match key {
        T::String | T::Char => write_many(("{", "}"), count, rest, out, |rest, out| {
            write_value(key, rest, out)?;
            out.push(':');
            write_value(value, rest, out)
        }),
        T::Bool | T::U8 | T::U16 | T::U32 | T::U64 | T::I8 | T::I16 | T::I32 | T::I64 => {
            write_many(("{", "}"), count, rest, out, |rest, out| {
                out.push('"');
                write_value(key, rest, out)?;
                out.push_str("\":");
                write_value(value, rest, out)
            })
        }
        _ => write_many(("[", "]"), count, rest, out, |rest, out| {
            out.push('[');
            write_value(key, rest, out)?;
            out.push(',');
            write_value(value, rest, out)?;
            out.push(']');
            Ok(())
        }),
    }
}

fn write_many(
    (open, close): (&str, &str),
    count: u32,
    rest: &mut &[u8],
    out: &mut String,
    mut write: impl FnMut(&mut &[u8], &mut String) -> Result<(), String>,
) -> Result<(), String> {
    out.push_str(open);
    for index in 0..count {
        out.push_str(if index == 0 { "" } else { "," });
        let before = rest.len();
        write(rest, out)?;
        // Damaged bytes could name any number of them.
        if rest.len() == before && EMPTY_ELEMENTS_MAX <= index {
            return Err(format!("it has {count} elements without content"));
        }
    }
    out.push_str(close);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(descriptor: &str, record: &[u8]) -> Result<String, String> {
        let mut out = String::new();
        write_json(&TypeDescriptor::parse(descriptor).expect("a descriptor"), record, &mut out).map(|()| out)
    }

    #[test]
    fn what_json_has_no_form_for_is_told_all_the_same() {
        assert_eq!(written("f64", &f64::NAN.to_le_bytes()).unwrap(), "\"NaN\"");
        assert_eq!(written("f32", &f32::NEG_INFINITY.to_le_bytes()).unwrap(), "\"-inf\"");
        assert_eq!(written("f32", &0.1_f32.to_le_bytes()).unwrap(), "0.1");
        assert_eq!(written("bytes", b"\xff\x01").unwrap(), "[255,1]");
        assert_eq!(written("map<tuple(u8,u8),bool>", &[1, 0, 0, 0, 7, 8, 1]).unwrap(), "[[[7,8],true]]");
        assert_eq!(written("string", b"a\x1b\"\\\n").unwrap(), r#""a\u001b\"\\\n""#);
    }

    #[test]
    fn bytes_that_do_not_fit_are_refused() {
        for (descriptor, record, expected) in [
            ("u32", &[1, 2, 3][..], "it is shorter than its type says"),
            ("u8", &[1, 2], "1 bytes follow the value"),
            ("bool", &[2], "the byte 2 stands for neither 0 nor 1"),
            ("char", &[0, 0, 0xd8, 0xff], "a number stands for no character"),
            ("string", &[0xff], "text is not UTF-8"),
            ("E[A|B]", &[2], "there is no variant 2"),
            ("list<tuple()>", &[0xff; 4], "it has 4294967295 elements without content"),
            ("list<u64>", &[0xff; 4], "it is shorter than its type says"),
        ] {
            assert_eq!(written(descriptor, record).unwrap_err(), expected, "{descriptor}");
        }
    }
}
