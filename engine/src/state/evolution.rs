//! How state outlives a change of its type.
//!
//! A value that was written as one type is read as another if the new type holds all that
//! the old one could, or declares not to want it:
//!
//! | change | what becomes of a value |
//! |---|---|
//! | field of a struct added | 0, false, empty, absent: see [`default_value`] |
//! | field of a struct removed, or moved | dropped; found by its name |
//! | number widened: `u8` to `u16` and above, `i8` to `i16` and above, `u8` to `i16` and above, `f32` to `f64` | the same number |
//! | `T` made `option<T>` | present |
//! | variant of a sum added, or moved | found by its name |
//!
//! The rules hold at every depth, for elements of lists, options, tuples and values of maps.
//! Everything else is refused: another name, a narrower number, a variant removed, another
//! key of a map, since what was written might not fit.

use std::fmt;

use engine_rows::descriptor::{TypeDescriptor, Variant};

/// How values of an old type become values of a new one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Evolution {
    /// They are what they were.
    Same,
    /// By [`Converter::convert`].
    Converted(Box<Converter>),
}

/// A type cannot become another one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IncompatibleTypes {
    /// The place in the type: "field user.age"; empty: the type as a whole.
    place: String,
    /// What is wrong there.
    problem: String,
}

impl fmt::Display for IncompatibleTypes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() {
            return formatter.write_str(&self.problem);
        }
        write!(formatter, "field {}: {}", self.place, self.problem)
    }
}

impl std::error::Error for IncompatibleTypes {}

/// Bytes are not a value of the type that they were written as.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the bytes are no value of the type they were written as")]
pub struct Malformed;

/// Turns encoded values of one type into those of another.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Converter {
    old: TypeDescriptor,
    new: TypeDescriptor,
    changes: Vec<String>,
}

impl Evolution {
    /// Decides whether values of `old` can be read as `new`; both in the grammar of `wit/rows.md`.
    ///
    /// # Errors
    /// Returns the first place where they cannot.
    pub fn between(old: &str, new: &str) -> Result<Self, IncompatibleTypes> {
        if old == new {
            return Ok(Self::Same);
        }
        let parse = |text: &str| {
            TypeDescriptor::parse(text)
                .map_err(|error| IncompatibleTypes { place: String::new(), problem: format!("\"{text}\" is {error}") })
        };
        let (old, new) = (parse(old)?, parse(new)?);
        let mut changes = Vec::new();
        check(&old, &new, &mut Vec::new(), &mut changes)?;
        Ok(Self::Converted(Box::new(Converter { old, new, changes })))
    }

    /// What changes, one phrase each.
    pub fn changes(&self) -> &[String] {
        match self {
            Self::Same => &[],
            Self::Converted(converter) => &converter.changes,
        }
    }
}

impl Converter {
    /// Appends to `out` what a value as a whole becomes.
    ///
    /// # Errors
    /// Returns an error if the bytes are no value of the old type; `out` is of no use then.
    pub fn convert(&self, value: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
        let mut counted = Vec::new();
        let within = if has_no_length_as_a_whole(&self.old) {
            write_length(&mut counted, value.len())?;
            counted.extend_from_slice(value);
            &counted
        } else {
            value
        };
        if skip(&self.old, within)? != within.len() {
            return Err(Malformed);
        }
        let begin = out.len();
        convert(&self.old, &self.new, within, out)?;
        if has_no_length_as_a_whole(&self.new) {
            out.drain(begin..begin + LENGTH_BYTES);
        }
        Ok(())
    }
}

/// Bytes of a length or a count.
const LENGTH_BYTES: usize = 4;

/// Elements without bytes that a list may have: its count alone says how many there are, and
/// a damaged one would say billions.
const EMPTY_ELEMENTS_MAX: usize = 1 << 16;

/// Text and bytes, which have no length in front where they are a whole record.
fn has_no_length_as_a_whole(kind: &TypeDescriptor) -> bool {
    matches!(kind, TypeDescriptor::String | TypeDescriptor::Bytes)
}

fn write_length(out: &mut Vec<u8>, length: usize) -> Result<(), Malformed> {
    out.extend_from_slice(&u32::try_from(length).map_err(|_| Malformed)?.to_le_bytes());
    Ok(())
}

/// Bytes of a number, and whether it has a sign, if it is an integer.
fn integer(kind: &TypeDescriptor) -> Option<(usize, bool)> {
    Some(match kind {
        TypeDescriptor::U8 => (1, false),
        TypeDescriptor::U16 => (2, false),
        TypeDescriptor::U32 => (4, false),
        TypeDescriptor::U64 => (8, false),
        TypeDescriptor::I8 => (1, true),
        TypeDescriptor::I16 => (2, true),
        TypeDescriptor::I32 => (4, true),
        TypeDescriptor::I64 => (8, true),
        _ => return None,
    })
}

/// True if each number of the old type is one of the new type, which is wider.
fn is_widened(old: &TypeDescriptor, new: &TypeDescriptor) -> bool {
    match (integer(old), integer(new)) {
        (Some((old_bytes, old_sign)), Some((new_bytes, new_sign))) => old_bytes < new_bytes && (new_sign || !old_sign),
        _ => (old, new) == (&TypeDescriptor::F32, &TypeDescriptor::F64),
    }
}

fn check(
    old: &TypeDescriptor,
    new: &TypeDescriptor,
    place: &mut Vec<String>,
    changes: &mut Vec<String>,
) -> Result<(), IncompatibleTypes> {
    let refused = |place: &[String], problem: String| Err(IncompatibleTypes { place: place.join("."), problem });
    let at =
        |place: &[String]| if place.is_empty() { "the value".to_owned() } else { format!("field {}", place.join(".")) };
    if old == new {
        return Ok(());
    }
    match (old, new) {
        (TypeDescriptor::Struct { name: old_name, fields: old_fields }, TypeDescriptor::Struct { name, fields }) => {
            if old_name != name {
                return refused(place, format!("the struct {old_name} cannot become the struct {name}"));
            }
            for (field, kind) in fields {
                place.push(field.clone());
                match old_fields.iter().find(|(old_field, _)| old_field == field) {
                    Some((_, old_kind)) => check(old_kind, kind, place, changes)?,
                    None if default_value(kind, &mut Vec::new()) => changes.push(format!("{} is new", at(place))),
                    None => {
                        return refused(
                            place,
                            format!("it is new, and there is no value of {kind} to begin with: make it an option"),
                        );
                    }
                }
                place.pop();
            }
            for (field, _) in old_fields.iter().filter(|(field, _)| fields.iter().all(|(new, _)| new != field)) {
                place.push(field.clone());
                changes.push(format!("{} is dropped", at(place)));
                place.pop();
            }
            let order = |fields: &[(String, TypeDescriptor)], others: &[(String, TypeDescriptor)]| -> Vec<String> {
                let names = fields.iter().map(|(name, _)| name.clone());
                names.filter(|name| others.iter().any(|(other, _)| other == name)).collect()
            };
            if order(old_fields, fields) != order(fields, old_fields) {
                changes.push(format!("{} has its fields in another order", at(place)));
            }
            Ok(())
        }
        (TypeDescriptor::Sum { name: old_name, variants: old_variants }, TypeDescriptor::Sum { name, variants }) => {
            if old_name != name {
                return refused(place, format!("the enum {old_name} cannot become the enum {name}"));
            }
            for old_variant in old_variants {
                let Some(variant) = variants.iter().find(|variant| variant.name == old_variant.name) else {
                    return refused(place, format!("variant {} of {name} was removed", old_variant.name));
                };
                if old_variant.fields.len() != variant.fields.len() {
                    return refused(place, format!("variant {} of {name} has another number of fields", variant.name));
                }
                place.push(variant.name.clone());
                for (old_field, field) in old_variant.fields.iter().zip(&variant.fields) {
                    check(old_field, field, place, changes)?;
                }
                place.pop();
            }
            changes.push(format!("{} has other variants", at(place)));
            Ok(())
        }
        (TypeDescriptor::Option(old), TypeDescriptor::Option(new))
        | (TypeDescriptor::List(old), TypeDescriptor::List(new)) => check(old, new, place, changes),
        (TypeDescriptor::Map(old_key, old_value), TypeDescriptor::Map(key, value)) => {
            if old_key != key {
                return refused(place, format!("the key of a map cannot change from {old_key} to {key}"));
            }
            check(old_value, value, place, changes)
        }
        (TypeDescriptor::Tuple(old), TypeDescriptor::Tuple(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                place.push(index.to_string());
                check(old, new, place, changes)?;
                place.pop();
            }
            Ok(())
        }
        (old, new) if is_widened(old, new) => {
            changes.push(format!("{} is widened from {old} to {new}", at(place)));
            Ok(())
        }
        (old, TypeDescriptor::Option(new)) => {
            check(old, new, place, changes)?;
            changes.push(format!("{} may be absent from now on", at(place)));
            Ok(())
        }
        (old, new) => refused(place, format!("{old} cannot become {new}")),
    }
}

/// Appends the value that a new field begins with: 0, false, the character 0, empty text,
/// lists and maps, no option, and of a sum its first variant, each part by the same rule.
/// Returns false if there is none: a sum without variants.
pub fn default_value(kind: &TypeDescriptor, out: &mut Vec<u8>) -> bool {
    match kind {
        TypeDescriptor::Bool | TypeDescriptor::U8 | TypeDescriptor::I8 | TypeDescriptor::Option(_) => out.push(0),
        TypeDescriptor::U16 | TypeDescriptor::I16 => out.extend([0; 2]),
        TypeDescriptor::Char | TypeDescriptor::U32 | TypeDescriptor::I32 | TypeDescriptor::F32 => out.extend([0; 4]),
        TypeDescriptor::U64 | TypeDescriptor::I64 | TypeDescriptor::F64 => out.extend([0; 8]),
        TypeDescriptor::String | TypeDescriptor::Bytes | TypeDescriptor::List(_) | TypeDescriptor::Map(..) => {
            out.extend([0; LENGTH_BYTES]);
        }
        TypeDescriptor::Tuple(elements) => return elements.iter().all(|element| default_value(element, out)),
        TypeDescriptor::Struct { fields, .. } => return fields.iter().all(|(_, field)| default_value(field, out)),
        TypeDescriptor::Sum { variants, .. } => {
            let Some(first) = variants.first() else { return false };
            out.push(0);
            return first.fields.iter().all(|field| default_value(field, out));
        }
    }
    true
}

fn take(bytes: &[u8], count: usize) -> Result<&[u8], Malformed> {
    bytes.get(..count).ok_or(Malformed)
}

fn count(bytes: &[u8]) -> Result<usize, Malformed> {
    let count = bytes.first_chunk().ok_or(Malformed)?;
    Ok(u32::from_le_bytes(*count) as usize)
}

fn variant<'a>(variants: &'a [Variant], bytes: &[u8]) -> Result<&'a Variant, Malformed> {
    let index = bytes.first().ok_or(Malformed)?;
    variants.get(usize::from(*index)).ok_or(Malformed)
}

/// Where the values end that stand one behind the other from `begin` on.
fn skip_all<'a>(
    kinds: impl IntoIterator<Item = &'a TypeDescriptor>,
    begin: usize,
    bytes: &[u8],
) -> Result<usize, Malformed> {
    kinds.into_iter().try_fold(begin, |at, kind| Ok(at + skip(kind, &bytes[at..])?))
}

/// Length of the value that the bytes begin with.
fn skip(kind: &TypeDescriptor, bytes: &[u8]) -> Result<usize, Malformed> {
    let fixed = |length: usize| take(bytes, length).map(<[u8]>::len);
    match kind {
        TypeDescriptor::Bool | TypeDescriptor::U8 | TypeDescriptor::I8 => fixed(1),
        TypeDescriptor::U16 | TypeDescriptor::I16 => fixed(2),
        TypeDescriptor::Char | TypeDescriptor::U32 | TypeDescriptor::I32 | TypeDescriptor::F32 => fixed(4),
        TypeDescriptor::U64 | TypeDescriptor::I64 | TypeDescriptor::F64 => fixed(8),
        TypeDescriptor::String | TypeDescriptor::Bytes => fixed(LENGTH_BYTES + count(bytes)?),
        TypeDescriptor::Option(element) => match bytes.first().ok_or(Malformed)? {
            0 => Ok(1),
            1 => Ok(1 + skip(element, &bytes[1..])?),
            _ => Err(Malformed),
        },
        TypeDescriptor::List(element) => {
            let elements = count(bytes)?;
            // A list of what takes no bytes must not be walked over.
            if elements == 0 || skip(element, &bytes[LENGTH_BYTES..])? == 0 {
                return Ok(LENGTH_BYTES);
            }
            (0..elements).try_fold(LENGTH_BYTES, |at, _| Ok(at + skip(element, &bytes[at..])?))
        }
        TypeDescriptor::Map(key, value) => (0..count(bytes)?).try_fold(LENGTH_BYTES, |at, _| {
            let at = at + skip(key, &bytes[at..])?;
            let next = at + skip(value, &bytes[at..])?;
            // Keys differ, so that there is at most one that takes no bytes.
            if next == LENGTH_BYTES && 1 < count(bytes)? { Err(Malformed) } else { Ok(next) }
        }),
        TypeDescriptor::Tuple(elements) => skip_all(elements, 0, bytes),
        TypeDescriptor::Struct { fields, .. } => skip_all(fields.iter().map(|(_, field)| field), 0, bytes),
        TypeDescriptor::Sum { variants, .. } => skip_all(&variant(variants, bytes)?.fields, 1, bytes),
    }
}

/// Converts the value that the bytes begin with.
fn convert(old: &TypeDescriptor, new: &TypeDescriptor, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    if old == new {
        out.extend_from_slice(&bytes[..skip(old, bytes)?]);
        return Ok(());
    }
    match (old, new) {
        (TypeDescriptor::Struct { fields: old_fields, .. }, TypeDescriptor::Struct { fields, .. }) => {
            let mut at = 0;
            let mut places = Vec::with_capacity(old_fields.len());
            for (_, field) in old_fields {
                places.push(at);
                at += skip(field, &bytes[at..])?;
            }
            for (name, field) in fields {
                match old_fields.iter().position(|(old_name, _)| old_name == name) {
                    Some(place) => convert(&old_fields[place].1, field, &bytes[places[place]..], out)?,
                    None => {
                        default_value(field, out);
                    }
                }
            }
            Ok(())
        }
        (TypeDescriptor::Sum { variants: old_variants, .. }, TypeDescriptor::Sum { variants, .. }) => {
            let old_variant = variant(old_variants, bytes)?;
            let place = variants.iter().position(|variant| variant.name == old_variant.name).ok_or(Malformed)?;
            out.push(u8::try_from(place).map_err(|_| Malformed)?);
            let mut at = 1;
            for (old_field, field) in old_variant.fields.iter().zip(&variants[place].fields) {
                convert(old_field, field, &bytes[at..], out)?;
                at += skip(old_field, &bytes[at..])?;
            }
            Ok(())
        }
        (TypeDescriptor::Option(old), TypeDescriptor::Option(new)) => {
            let is_present = *bytes.first().ok_or(Malformed)?;
            out.push(is_present);
            if is_present == 0 { Ok(()) } else { convert(old, new, &bytes[1..], out) }
        }
        (TypeDescriptor::List(old), TypeDescriptor::List(new)) => {
            let elements = count(bytes)?;
            write_length(out, elements)?;
            let mut at = LENGTH_BYTES;
            for _ in 0..elements {
                let length = skip(old, &bytes[at..])?;
                if length == 0 && EMPTY_ELEMENTS_MAX < elements {
                    return Err(Malformed);
                }
                convert(old, new, &bytes[at..], out)?;
                at += length;
            }
            Ok(())
        }
        (TypeDescriptor::Map(key, old), TypeDescriptor::Map(_, new)) => {
            let pairs = count(bytes)?;
            write_length(out, pairs)?;
            let mut at = LENGTH_BYTES;
            for _ in 0..pairs {
                let key_bytes = skip(key, &bytes[at..])?;
                out.extend_from_slice(&bytes[at..at + key_bytes]);
                at += key_bytes;
                convert(old, new, &bytes[at..], out)?;
                at += skip(old, &bytes[at..])?;
            }
            Ok(())
        }
        (TypeDescriptor::Tuple(old), TypeDescriptor::Tuple(new)) => {
            let mut at = 0;
            for (old, new) in old.iter().zip(new) {
                convert(old, new, &bytes[at..], out)?;
                at += skip(old, &bytes[at..])?;
            }
            Ok(())
        }
        (TypeDescriptor::F32, TypeDescriptor::F64) => {
            let number = f32::from_le_bytes(*bytes.first_chunk().ok_or(Malformed)?);
            out.extend_from_slice(&f64::from(number).to_le_bytes());
            Ok(())
        }
        (old, new) if is_widened(old, new) => {
            let ((old_bytes, has_sign), (new_bytes, _)) =
                (integer(old).ok_or(Malformed)?, integer(new).ok_or(Malformed)?);
            let number = take(bytes, old_bytes)?;
            let is_negative = has_sign && number.last().is_some_and(|byte| 0x80 <= *byte);
            out.extend_from_slice(number);
            out.resize(out.len() + new_bytes - old_bytes, if is_negative { 0xff } else { 0 });
            Ok(())
        }
        (old, TypeDescriptor::Option(new)) => {
            out.push(1);
            convert(old, new, bytes, out)
        }
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn converted(old: &str, new: &str, value: &[u8]) -> Vec<u8> {
        let Evolution::Converted(converter) = Evolution::between(old, new).expect("compatible") else {
            panic!("{old} is {new}")
        };
        let mut out = b"before".to_vec();
        converter.convert(value, &mut out).expect("a value of the old type");
        assert_eq!(&out[..6], b"before");
        out.split_off(6)
    }

    #[track_caller]
    fn refused(old: &str, new: &str, expected: &str) {
        assert_eq!(Evolution::between(old, new).expect_err("incompatible").to_string(), expected);
    }

    #[test]
    fn fields_are_found_by_name_new_ones_are_zero_and_old_ones_go() {
        let old = "P{id:u32,name:string,age:u8}";
        let new = "P{name:string,age:u16,tags:list<string>,id:u32,email:option<string>}";
        let value = b"\x07\0\0\0\x03\0\0\0Bob\x2a";
        assert_eq!(converted(old, new, value), b"\x03\0\0\0Bob\x2a\0\0\0\0\0\x07\0\0\0\0");
        let evolution = Evolution::between(old, new).unwrap();
        assert_eq!(
            evolution.changes(),
            [
                "field age is widened from u8 to u16",
                "field tags is new",
                "field email is new",
                "the value has its fields in another order"
            ]
        );
        assert_eq!(converted(old, "P{age:u8}", value), b"\x2a");
        assert_eq!(
            Evolution::between(old, "P{age:u8}").unwrap().changes(),
            ["field id is dropped", "field name is dropped"]
        );
    }

    #[test]
    fn numbers_keep_their_value() {
        assert_eq!(converted("i8", "i64", &[0x80]), (-128_i64).to_le_bytes());
        assert_eq!(converted("u8", "i16", &[0x80]), 128_i16.to_le_bytes());
        assert_eq!(converted("u32", "u64", &u32::MAX.to_le_bytes()), u64::from(u32::MAX).to_le_bytes());
        assert_eq!(converted("f32", "f64", &1.5_f32.to_le_bytes()), 1.5_f64.to_le_bytes());
    }

    #[test]
    fn text_as_a_whole_has_no_length_and_within_an_option_it_has() {
        assert_eq!(converted("string", "option<string>", b"abc"), b"\x01\x03\0\0\0abc");
        assert_eq!(converted("S[A|B(string)]", "S[B(string)|C|A]", b"\x01\x01\0\0\0x"), b"\0\x01\0\0\0x");
        assert_eq!(converted("S[A|B(string)]", "S[B(string)|C|A]", b"\0"), b"\x02");
    }

    #[test]
    fn what_might_not_fit_is_refused_with_its_place() {
        refused("u64", "u32", "u64 cannot become u32");
        refused("i8", "u64", "i8 cannot become u64");
        refused("u64", "i64", "u64 cannot become i64");
        refused("P{a:u8}", "Q{a:u8}", "the struct P cannot become the struct Q");
        refused("P{a:list<Q{b:string}>}", "P{a:list<Q{b:u8}>}", "field a.b: string cannot become u8");
        refused("option<u8>", "u8", "option<u8> cannot become u8");
        refused("S[A|B]", "S[A]", "variant B of S was removed");
        refused("map<u8,u8>", "map<u16,u8>", "the key of a map cannot change from u8 to u16");
        refused("tuple(u8)", "tuple(u8,u8)", "tuple(u8) cannot become tuple(u8,u8)");
    }

    #[test]
    fn bytes_that_are_no_value_are_refused() {
        for (old, new, value) in [
            ("P{a:string}", "P{a:string,b:u8}", b"\x09\0\0\0abc".as_slice()),
            ("P{a:u8}", "P{a:u16}", b"\x01\x02"),
            ("option<u8>", "option<u16>", b"\x02\x01"),
            ("S[A]", "S[A|B]", b"\x01"),
            ("list<tuple()>", "list<option<tuple()>>", b"\xff\xff\xff\xff"),
        ] {
            let Evolution::Converted(converter) = Evolution::between(old, new).unwrap() else { panic!("{old}") };
            assert_eq!(converter.convert(value, &mut Vec::new()), Err(Malformed), "{old}");
        }
    }

    /// A value as the program sees it, for which the rules are written a second time.
    #[derive(Clone, Debug, PartialEq)]
    enum Value {
        Integer(i128),
        Text(String),
        Option(Option<Box<Value>>),
        List(Vec<Value>),
        Struct(Vec<(String, Value)>),
    }

    fn encode(kind: &TypeDescriptor, value: &Value, out: &mut Vec<u8>) {
        match (kind, value) {
            (TypeDescriptor::String, Value::Text(text)) => {
                out.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
                out.extend(text.as_bytes());
            }
            (TypeDescriptor::Option(_), Value::Option(None)) => out.push(0),
            (TypeDescriptor::Option(kind), Value::Option(Some(value))) => {
                out.push(1);
                encode(kind, value, out);
            }
            (TypeDescriptor::List(kind), Value::List(values)) => {
                out.extend(u32::try_from(values.len()).unwrap().to_le_bytes());
                values.iter().for_each(|value| encode(kind, value, out));
            }
            (TypeDescriptor::Struct { fields, .. }, Value::Struct(values)) => {
                for ((name, kind), (of, value)) in fields.iter().zip(values) {
                    assert_eq!(name, of);
                    encode(kind, value, out);
                }
            }
            (kind, Value::Integer(number)) => out.extend(&number.to_le_bytes()[..integer(kind).unwrap().0]),
            _ => panic!("{value:?} is no {kind}"),
        }
    }

    /// Types with a value of each.
    fn typed() -> impl Strategy<Value = (TypeDescriptor, Value)> {
        let leaf = prop_oneof![
            any::<u8>().prop_map(|n| (TypeDescriptor::U8, Value::Integer(n.into()))),
            any::<i16>().prop_map(|n| (TypeDescriptor::I16, Value::Integer(n.into()))),
            any::<u32>().prop_map(|n| (TypeDescriptor::U32, Value::Integer(n.into()))),
            "[a-zé]{0,5}".prop_map(|text| (TypeDescriptor::String, Value::Text(text))),
        ];
        leaf.prop_recursive(4, 30, 5, |inner| {
            prop_oneof![
                (inner.clone(), any::<bool>()).prop_map(|((kind, value), some)| {
                    (TypeDescriptor::Option(Box::new(kind)), Value::Option(some.then(|| Box::new(value))))
                }),
                (inner.clone(), 0_usize..4).prop_map(|((kind, value), count)| {
                    (TypeDescriptor::List(Box::new(kind)), Value::List(vec![value; count]))
                }),
                prop::collection::vec(inner, 0..5).prop_map(|fields| {
                    let named = fields
                        .into_iter()
                        .enumerate()
                        .map(|(index, (kind, value))| ((format!("f{index}"), kind), (format!("f{index}"), value)));
                    let (kinds, values) = named.unzip();
                    (TypeDescriptor::Struct { name: "S".to_owned(), fields: kinds }, Value::Struct(values))
                }),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn converted_values_are_those_of_the_model((old, value) in typed(), seed in any::<u64>()) {
            let mut random = seed;
            let (new, expected) = evolve(&old, &value, &mut random);
            let evolution = Evolution::between(&old.to_string(), &new.to_string());
            let evolution = evolution.map_err(|error| TestCaseError::fail(format!("{old} to {new}: {error}")))?;
            let whole = |kind: &TypeDescriptor, value: &Value| {
                let mut bytes = Vec::new();
                encode(kind, value, &mut bytes);
                if has_no_length_as_a_whole(kind) { bytes.split_off(LENGTH_BYTES) } else { bytes }
            };
            let old_bytes = whole(&old, &value);
            let mut out = Vec::new();
            match &evolution {
                Evolution::Same => out.extend(&old_bytes),
                Evolution::Converted(converter) => {
                    converter.convert(&old_bytes, &mut out).unwrap();
                    // The beginning of a value is none.
                    for cut in 0..old_bytes.len() {
                        let is_text = has_no_length_as_a_whole(&old);
                        prop_assert!(is_text || converter.convert(&old_bytes[..cut], &mut Vec::new()).is_err());
                    }
                }
            }
            prop_assert_eq!(out, whole(&new, &expected), "{} to {}", old, new);
        }
    }

    fn next(random: &mut u64, below: u64) -> u64 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*random >> 33) % below
    }

    /// A type that the old one may become, and what the value becomes by the rules.
    fn evolve(old: &TypeDescriptor, value: &Value, random: &mut u64) -> (TypeDescriptor, Value) {
        if next(random, 6) == 0 && !matches!(old, TypeDescriptor::Option(_)) {
            let (kind, value) = evolve(old, value, random);
            return (TypeDescriptor::Option(Box::new(kind)), Value::Option(Some(Box::new(value))));
        }
        match (old, value) {
            (TypeDescriptor::U8, _) if next(random, 2) == 0 => (TypeDescriptor::I32, value.clone()),
            (TypeDescriptor::I16, _) if next(random, 2) == 0 => (TypeDescriptor::I64, value.clone()),
            (TypeDescriptor::U32, _) if next(random, 2) == 0 => (TypeDescriptor::U64, value.clone()),
            // An option or a list may hold no value: its type evolves by a value of the model's own.
            (TypeDescriptor::Option(kind), Value::Option(inner)) => match inner {
                Some(inner) => {
                    let (kind, inner) = evolve(kind, inner, random);
                    (TypeDescriptor::Option(Box::new(kind)), Value::Option(Some(Box::new(inner))))
                }
                None => (TypeDescriptor::Option(kind.clone()), value.clone()),
            },
            (TypeDescriptor::List(kind), Value::List(values)) => {
                let seed = *random;
                let mut evolved = None;
                let mut of_new = Vec::new();
                for value in values {
                    *random = seed;
                    let (kind, value) = evolve(kind, value, random);
                    evolved = Some(kind);
                    of_new.push(value);
                }
                (TypeDescriptor::List(Box::new(evolved.unwrap_or_else(|| (**kind).clone()))), Value::List(of_new))
            }
            (TypeDescriptor::Struct { name, fields }, Value::Struct(values)) => {
                let mut kinds = Vec::new();
                let mut of_new = Vec::new();
                for ((field, kind), (_, value)) in fields.iter().zip(values) {
                    if next(random, 5) == 0 {
                        continue;
                    }
                    let (kind, value) = evolve(kind, value, random);
                    kinds.push((field.clone(), kind));
                    of_new.push((field.clone(), value));
                }
                if next(random, 2) == 0 {
                    let at = usize::try_from(next(random, kinds.len() as u64 + 1)).unwrap();
                    kinds.insert(at, ("added".to_owned(), TypeDescriptor::String));
                    of_new.insert(at, ("added".to_owned(), Value::Text(String::new())));
                }
                if next(random, 2) == 0 {
                    kinds.reverse();
                    of_new.reverse();
                }
                (TypeDescriptor::Struct { name: name.clone(), fields: kinds }, Value::Struct(of_new))
            }
            _ => (old.clone(), value.clone()),
        }
    }
}
