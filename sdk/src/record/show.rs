//! Encoded records as text for people, by their descriptors.

use std::fmt::Write as _;

use super::{DecodeError, Reader, TypeDescriptor};

/// A whole record as text, much as its `Debug` would be; bytes that are none as such.
pub(crate) fn show(descriptor: &TypeDescriptor, bytes: &[u8]) -> String {
    let mut text = String::new();
    match show_whole(descriptor, bytes, &mut text) {
        Ok(()) => text,
        Err(error) => format!("{bytes:?} ({error})"),
    }
}

fn show_whole(descriptor: &TypeDescriptor, bytes: &[u8], out: &mut String) -> Result<(), DecodeError> {
    match descriptor {
        TypeDescriptor::String => write!(out, "{:?}", utf8(bytes)?).expect("text has room"),
        TypeDescriptor::Bytes => write!(out, "{bytes:?}").expect("text has room"),
        _ => {
            let mut reader = Reader::new(bytes);
            show_within(descriptor, &mut reader, out)?;
            reader.finish()?;
        }
    }
    Ok(())
}

fn utf8(bytes: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)
}

fn show_within(descriptor: &TypeDescriptor, reader: &mut Reader<'_>, out: &mut String) -> Result<(), DecodeError> {
    macro_rules! number {
        ($type:ty) => {
            write!(out, "{}", <$type>::from_le_bytes(reader.array()?)).expect("text has room")
        };
    }
    match descriptor {
        TypeDescriptor::U8 => number!(u8),
        TypeDescriptor::U16 => number!(u16),
        TypeDescriptor::U32 => number!(u32),
        TypeDescriptor::U64 => number!(u64),
        TypeDescriptor::I8 => number!(i8),
        TypeDescriptor::I16 => number!(i16),
        TypeDescriptor::I32 => number!(i32),
        TypeDescriptor::I64 => number!(i64),
        TypeDescriptor::F32 => number!(f32),
        TypeDescriptor::F64 => number!(f64),
        TypeDescriptor::Bool => out.push_str(if reader.array()? == [0_u8] { "false" } else { "true" }),
        TypeDescriptor::Char => {
            let scalar = char::from_u32(u32::from_le_bytes(reader.array()?)).ok_or(DecodeError::NoSuchValue)?;
            write!(out, "{scalar:?}").expect("text has room");
        }
        TypeDescriptor::String | TypeDescriptor::Bytes => {
            let count = reader.count()?;
            show_whole(descriptor, reader.bytes(count)?, out)?;
        }
        TypeDescriptor::Option(value) => match reader.array()? {
            [0_u8] => out.push_str("None"),
            _ => parts(("Some(", ")"), [&**value], reader, out)?,
        },
        TypeDescriptor::List(element) => {
            let count = reader.count()?;
            parts(("[", "]"), std::iter::repeat_n(&**element, count), reader, out)?;
        }
        TypeDescriptor::Map(key, value) => {
            out.push('{');
            for index in 0..reader.count()? {
                out.push_str(if index == 0 { "" } else { ", " });
                show_within(key, reader, out)?;
                out.push_str(": ");
                show_within(value, reader, out)?;
            }
            out.push('}');
        }
        TypeDescriptor::Tuple(elements) => parts(("(", ")"), elements, reader, out)?,
        TypeDescriptor::Struct { name, fields } => {
            write!(out, "{name} {{").expect("text has room");
            for (index, (field, descriptor)) in fields.iter().enumerate() {
                write!(out, "{} {field}: ", if index == 0 { "" } else { "," }).expect("text has room");
                show_within(descriptor, reader, out)?;
            }
            out.push_str(" }");
        }
        TypeDescriptor::Sum { variants, .. } => {
            let [variant] = reader.array()?;
            let variant = variants.get(usize::from(variant)).ok_or(DecodeError::NoSuchValue)?;
            out.push_str(&variant.name);
            if !variant.fields.is_empty() {
                parts(("(", ")"), &variant.fields, reader, out)?;
            }
        }
    }
    Ok(())
}

/// Values one behind the other, between brackets.
fn parts<'d>(
    (open, close): (&str, &str),
    descriptors: impl IntoIterator<Item = &'d TypeDescriptor>,
    reader: &mut Reader<'_>,
    out: &mut String,
) -> Result<(), DecodeError> {
    out.push_str(open);
    for (index, descriptor) in descriptors.into_iter().enumerate() {
        out.push_str(if index == 0 { "" } else { ", " });
        show_within(descriptor, reader, out)?;
    }
    out.push_str(close);
    Ok(())
}
